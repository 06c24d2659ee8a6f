"""The keys of the section ``policy``: for all policies, for PPO, and for PPG, which extends PPO's.

``models.actor_critic`` has the keys of networks, and ``models.intrinsic`` those of intrinsic rewards.
"""

from __future__ import annotations

from typing import Any, Literal

from ding_lite.config.schema import DROPPED, Key, Name

Schedule = Literal["constant", "linear", "cosine"]  # of rl.schedules.schedule
OFF: dict[str, Any] = dict(needs="not on_policy", strict=True)
DECAYING = "learn.lr_schedule=linear or learn.lr_schedule=cosine"
REFERENCE: dict[str, Any] = dict(needs="learn.pretrained_model_path", strict=True)

POLICY: dict[str, Any] = dict(
    type=Key("ppo", Name, doc='the policy: a registered name, or "package.module:Class"'),
    device=Key(
        "auto",
        doc='"cpu", "cuda", "cuda:N" or "mps"; "auto": a GPU, if there is one, for large models; with '
        "environments of tensors the device of the tensors",
    ),
    cuda_graph=Key(True, doc="on a GPU: launch all kernels of acting, and all of a gradient, in one call"),
    model=dict(type=Key("vac", Name, doc='the model: a registered name, or "package.module:Class"')),
    collect=dict(
        n_sample=Key(2048, low=2, doc="transitions in a rollout, over all environments"),
        n_step=Key(
            None,
            int | None,
            low=1,
            doc="steps of each environment in a rollout; sets n_sample to n_step times the environments",
        ),
    ),
    learn=dict(sequence_length=Key(64, low=1, doc="most steps that gradients go back in recurrent networks")),
    eval=dict(eval_freq=Key(10_000, low=0, doc="env steps between evaluations; 0: only at the end")),
    normalize=dict(
        obs=Key(
            False, bool | Literal["initial"], doc='scale to mean 0, std 1; "initial": from random steps only'
        ),
        obs_samples=Key(1000, low=2, needs="normalize.obs or intrinsic.type", doc="random steps, in total"),
        obs_clip=Key(10.0, above=0, needs="normalize.obs", doc="bound of scaled observations"),
    ),
)

PPO: dict[str, Any] = dict(
    on_policy=Key(True, doc="learn from each rollout once it is collected, or draw from a replay buffer"),
    recompute_adv=Key(
        False, doc="compute old values and advantages again at each pass; off-policy by V-trace"
    ),
    nstep_return=Key(False, doc="value targets of nstep steps, new at each pass; off-policy not corrected"),
    nstep=Key(3, low=1, needs="nstep_return", doc="rewards in a value target"),
    intrinsic=dict(
        type=Key(
            None, Name | None, doc='an intrinsic reward: "rnd", a registered name, or "package.module:Class"'
        ),
    ),
    learn=dict(
        learning_rate=Key(3e-4, above=0, doc="step size of Adam, before its schedule"),
        batch_size=Key(64, low=1, doc="samples in a minibatch"),
        epoch_per_collect=Key(10, low=1, needs="on_policy", strict=True, doc="passes over each rollout"),
        update_per_collect=Key(None, int | None, low=1, **OFF, doc="optimiser steps; None: reuse decides"),
        reuse=Key(3.0, above=0, **OFF, doc="off-policy: mean number of uses of a transition"),
        proximal=Key(
            "decoupled", Literal["decoupled", "behaviour"], **OFF, doc="r = pi / pi_prox, or pi / mu"
        ),
        weight_bound=Key(2.0, low=1, **OFF, doc="off-policy: upper bound of w = pi_prox / mu"),
        adam_eps=Key(1e-5, above=0, doc="epsilon of Adam"),
        grad_clip_type=Key("clip_norm", Literal["clip_norm", "clip_value"] | None, doc="gradient clipping"),
        grad_clip_value=Key(0.5, above=0, needs="learn.grad_clip_type", doc="largest norm, or value"),
        adv_norm=Key("minibatch", Literal["minibatch", "batch", False], doc="normalise advantages over this"),
        value_norm=Key(True, doc="the value network predicts normalised targets (PopArt)"),
        value_norm_std=Key(
            None,
            float | None,
            above=0,
            needs="learn.value_norm",
            doc="the value loss is weighted as for targets of this std; None: 10, with a shared encoder 1",
        ),
        value_norm_decay=Key(0.95, low=0, high=1, needs="learn.value_norm", doc="weight of earlier targets"),
        value_weight=Key(0.5, low=0, doc="weight of the value loss 0.5 (V - R)^2"),
        entropy_weight=Key(None, float | None, low=0, doc="entropy bonus; None: 0.01, 0 with a Box action"),
        clip_ratio=Key(
            0.2, above=0, doc="epsilon of the clip: no gain from a ratio outside of 1 - eps .. 1 + eps"
        ),
        dual_clip=Key(None, float | None, above=1, doc="bound of r where A is negative (arXiv:1912.09729)"),
        value_clip=Key(None, float | None, above=0, doc="epsilon of the value's clip"),
        value_loss=Key("mse", Literal["mse", "smooth_l1"], doc="smooth_l1 is linear for errors above 1"),
        critic_warmup=Key(0, low=0, doc="number of first iterations in which only the value learns"),
        kl_beta=Key(0.0, low=0, **REFERENCE, doc="weight of KL(pi || pi_ref) to the frozen policy"),
        kl_type=Key(
            "exact", Literal["exact", "k1", "k2", "k3"], needs="learn.kl_beta", doc="exact, or estimated"
        ),
        pretrained_model_path=Key(
            None, str | None, needs="learn.kl_beta", strict=True, doc="run of the frozen policy"
        ),
        target_kl=Key(None, float | None, above=0, doc="a pass with 1.5 times this KL is the policy's last"),
        lr_schedule=Key(
            "constant", Schedule | Literal["adaptive"], doc='how learning_rate changes; "adaptive": by the KL'
        ),
        desired_kl=Key(
            0.01, above=0, needs="learn.lr_schedule=adaptive", doc='the KL that "adaptive" aims at'
        ),
        lr_final=Key(0.0, low=0, needs=DECAYING, doc="final factor of learning_rate"),
        clip_schedule=Key("constant", Schedule, doc="how clip_ratio and value_clip change; to 0 at the end"),
        entropy_schedule=Key("constant", Schedule, doc="how entropy_weight changes; to 0 at the end"),
        schedule_env_step=Key(None, int | None, low=1, doc="length of the schedules; None: max_env_step"),
    ),
    collect=dict(
        unroll_len=Key(1, low=0, doc="steps of a segment of advantages; 0, 1: the whole rollout"),
        discount_factor=Key(0.99, low=0, high=1, doc="gamma: weight of the next step's value"),
        gae_lambda=Key(0.95, low=0, high=1, doc="lambda of GAE; 0: one step's TD error, 1: the whole return"),
    ),
    normalize=dict(
        reward=Key(False, doc="divide rewards by the std of the discounted return"),
        reward_discount=Key(
            None, float | None, low=0, high=1, needs="normalize.reward", doc="gamma; None: discount_factor"
        ),
        reward_clip=Key(None, float | None, above=0, doc="largest size of a reward, after its scale"),
    ),
    other=dict(
        replay_buffer=dict(
            replay_buffer_size=Key(10_000, int | None, low=1, **OFF, doc="transitions; None: four rollouts"),
            max_use=Key(3, low=1, **OFF, doc="most times that a transition is drawn"),
            max_staleness=Key(4, low=0, **OFF, doc="largest age of a drawn transition, in iterations"),
        )
    ),
)

PPO_OFFPOLICY: dict[str, Any] = dict(
    on_policy=False,
    learn=dict(learning_rate=1e-3, reuse=9.0),  # nearly as many uses as the epochs of ppo
    other=dict(replay_buffer=dict(max_use=9)),
)

PHASE: dict[str, Any] = dict(low=1, needs="not learn.update_per_collect")
AUXILIARY: dict[str, Any] = dict(needs="learn.aux_train_epoch")

PPG: dict[str, Any] = dict(
    recompute_adv=True,
    model=dict(type="ppg"),
    learn=dict(
        learning_rate=5e-4,
        adv_norm="batch",
        epoch_per_collect=DROPPED,
        reuse=DROPPED,
        actor_epoch_per_collect=Key(1, **PHASE, doc="E_pi: passes of the policy; off-policy mean uses"),
        critic_epoch_per_collect=Key(
            1, **PHASE, doc="E_V: the value's passes; if equal to E_pi, in one loop with one Adam"
        ),
        aux_train_epoch=Key(6, low=0, doc="E_aux: passes of an auxiliary phase; 0: no such phase"),
        aux_freq=Key(8, low=1, **AUXILIARY, doc="N_pi: iterations between auxiliary phases"),
        aux_bc_weight=Key(1.0, low=0, **AUXILIARY, doc="beta_clone, the weight of KL(pi_old || pi)"),
        aux_value_weight=Key(1.0, low=0, **AUXILIARY, doc="weight of the value network's own error"),
        aux_learning_rate=Key(
            None, float | None, above=0, **AUXILIARY, doc="of the auxiliary phase; None: learning_rate"
        ),
        aux_batch_size=Key(
            None, int | None, low=1, **AUXILIARY, doc="of the auxiliary phase; None: batch_size"
        ),
    ),
    other=dict(replay_buffer=dict(replay_buffer_size=None)),
)
