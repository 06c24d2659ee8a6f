"""Every key of the section ``policy``: of all policies, of PPO and of PPG, which adds to PPO's.

Those of networks are in ``models.actor_critic``, those of intrinsic rewards in ``models.intrinsic``.
"""

from __future__ import annotations

from typing import Any, Literal

from ding_lite.config.schema import DROPPED, Key, Name
from ding_lite.data.replay import MOST_USES

Schedule = Literal["constant", "linear", "cosine"]  # rl.schedules.SCHEDULES
OFF: dict[str, Any] = dict(needs="not on_policy", strict=True)

POLICY: dict[str, Any] = dict(
    type=Key(
        "ppo",
        Name,
        doc='"ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy", a name that you registered, or '
        '"package.module:Class"',
    ),
    device=Key(
        "auto",
        doc='one of "auto", "cpu", "cuda", "cuda:N" and "mps". "auto" is a GPU, if there is one, for models '
        "with convolutions or a layer of more than 256 x 256 weights; smaller ones are faster on the "
        "CPU",
    ),
    cuda_graph=Key(
        True,
        doc="on a GPU, without a recurrent network: launch all kernels of acting in one call, and those of a "
        "gradient. Then a print in a loss or a model runs only while a graph is captured",
    ),
    model=dict(
        type=Key("vac", Name, doc='the model: a registered name, or "package.module:Class"'),
    ),
    collect=dict(n_sample=Key(2048, low=2, doc="transitions in a rollout, over all environments")),
    learn=dict(
        sequence_length=Key(
            64, low=1, doc="rows of the runs that recurrent networks learn from; gradients go no further back"
        ),
    ),
    eval=dict(
        eval_freq=Key(
            10_000,
            low=0,
            doc="env steps between evaluations, at the first boundary past each; 0: only at the end",
        ),
    ),
    normalize=dict(
        obs=Key(
            False,
            bool | Literal["initial"],
            doc="scale observations to mean 0 and std 1. Statistics begin with obs_samples random steps "
            'before training; True: they are updated after each iteration, "initial": they stay',
        ),
        obs_samples=Key(1000, low=2, doc="random steps, over all environments, before training"),
        obs_clip=Key(
            10.0, above=0, needs="normalize.obs", doc="scaled observations are clipped to +- obs_clip"
        ),
    ),
)

PPO: dict[str, Any] = dict(
    on_policy=Key(True, doc="learn from each rollout once it is collected, or draw from a replay buffer"),
    recompute_adv=Key(False, doc="compute values and advantages again at each pass; off-policy by V-trace"),
    nstep_return=Key(
        False, doc="value targets of nstep steps in place of GAE's; off-policy they are not corrected"
    ),
    nstep=Key(3, low=1, needs="nstep_return", doc="rewards in a value target"),
    intrinsic=dict(
        type=Key(
            None,
            Name | None,
            doc='an intrinsic reward: "rnd", a name that you registered, or "package.module:Class"; None: '
            "none. Its class declares its other keys (``models.intrinsic``)",
        ),
    ),
    learn=dict(
        learning_rate=Key(3e-4, above=0, doc="step size of Adam, before its schedule"),
        batch_size=Key(64, low=1, doc="samples in a minibatch"),
        epoch_per_collect=Key(
            10, low=1, high=MOST_USES, needs="on_policy", strict=True, doc="passes over each rollout"
        ),
        update_per_collect=Key(
            None,
            int | None,
            low=1,
            **OFF,
            doc="off-policy: optimiser steps after each collect; None: ceil(reuse n_sample / batch_size)",
        ),
        reuse=Key(3.0, above=0, **OFF, doc="off-policy: mean number of uses of a transition"),
        proximal=Key(
            "decoupled",
            Literal["decoupled", "behaviour"],
            **OFF,
            doc="off-policy: clip around the policy of the iteration's start, or the one that collected",
        ),
        weight_bound=Key(2.0, low=1, **OFF, doc="off-policy: upper bound of w"),
        adam_eps=Key(1e-5, above=0, doc="epsilon of Adam"),
        grad_clip_type=Key(
            "clip_norm",
            Literal["clip_norm", "clip_value"] | None,
            doc="gradients are scaled to a norm, or each is clipped; None: no bound",
        ),
        grad_clip_value=Key(
            0.5, above=0, needs="learn.grad_clip_type", doc="the largest norm, or the largest absolute value"
        ),
        adv_norm=Key(
            "minibatch",
            Literal["minibatch", "batch"] | bool,
            doc="normalise advantages: in each minibatch (True is the same), over the whole pass, or not",
        ),
        value_norm=Key(False, doc="the value network predicts in units of the targets' std (PopArt)"),
        value_norm_decay=Key(
            0.95,
            low=0,
            high=1,
            needs="learn.value_norm",
            doc="weight of earlier targets after an iteration; 1: all have equal weight",
        ),
        value_weight=Key(0.5, low=0, doc="weight of the value loss 0.5 (V - R)^2"),
        entropy_weight=Key(
            None,
            float | None,
            low=0,
            doc="weight of the entropy bonus; None: 0.01, or 0 where a Box is among the actions",
        ),
        clip_ratio=Key(0.2, above=0, doc="epsilon: the ratio gains nothing outside of 1 - eps .. 1 + eps"),
        dual_clip=Key(
            None,
            float | None,
            above=1,
            needs="not learn.kl_penalty",
            doc="bound of the ratio where the advantage is negative (arXiv:1912.09729); None: none",
        ),
        value_clip=Key(
            None,
            float | None,
            above=0,
            needs="not nstep_return",
            doc="clips the value this far from that at the start of the pass, in units of the loss; None: "
            "no clip",
        ),
        value_loss=Key("mse", Literal["mse", "smooth_l1"], doc="smooth_l1 is linear for errors above 1"),
        kl_penalty=Key(
            None,
            float | None,
            above=0,
            doc="in place of the clip: this times KL(pi_prox || pi) over the whole distribution",
        ),
        kl_beta=Key(
            0.0,
            low=0,
            needs="learn.pretrained_model_path",
            strict=True,
            doc="weight of KL(pi || pi_ref) to the frozen policy of pretrained_model_path",
        ),
        kl_type=Key(
            "exact",
            Literal["exact", "k1", "k2", "k3"],
            doc='that KL: "exact", or an estimate by the actions taken (rl.losses.reference_kl)',
        ),
        pretrained_model_path=Key(
            None,
            str | None,
            needs="learn.kl_beta",
            strict=True,
            doc="the run or checkpoint of the frozen policy that kl_beta refers to",
        ),
        target_kl=Key(
            None,
            float | None,
            above=0,
            doc="the policy's epochs end when the KL of one exceeds 1.5 times this; None: they do not",
        ),
        compile=Key(False, doc="torch.compile for gradient steps on the CPU, in place of NumPy and autograd"),
        lr_schedule=Key(
            "constant",
            Schedule | Literal["adaptive"],
            doc='how the learning rate changes over schedule_env_step; "adaptive": after each pass of the '
            "policy, lr / 1.5 where its KL exceeds 2 desired_kl, 1.5 lr where it is below desired_kl / "
            "2",
        ),
        desired_kl=Key(
            0.01, above=0, needs="learn.lr_schedule=adaptive", doc='the KL that "adaptive" aims at'
        ),
        lr_final=Key(
            0.0,
            low=0,
            needs="learn.lr_schedule=linear or learn.lr_schedule=cosine",
            doc="share of the learning rate at the end of its schedule",
        ),
        clip_schedule=Key("constant", Schedule, doc="how clip_ratio and value_clip change"),
        clip_final=Key(
            0.0,
            low=0,
            needs="not learn.clip_schedule=constant",
            doc="share of the clip range at the end of its schedule",
        ),
        entropy_schedule=Key("constant", Schedule, doc="how entropy_weight changes"),
        entropy_final=Key(
            0.0,
            low=0,
            needs="not learn.entropy_schedule=constant",
            doc="share of the entropy weight at the end of its schedule",
        ),
        schedule_env_step=Key(
            None,
            int | None,
            low=1,
            doc="env steps until the end of schedules; None: the config's max_env_step",
        ),
    ),
    collect=dict(
        unroll_len=Key(
            1, low=0, high=10_000, doc="steps of the segments of advantages; 0 and 1: the whole rollout"
        ),
        discount_factor=Key(0.99, low=0, high=1, doc="gamma: weight of the next step's value"),
        gae_lambda=Key(
            0.95, low=0, high=1, doc="lambda of the advantages: 0 is one step's error, 1 the whole return"
        ),
    ),
    normalize=dict(
        reward=Key(False, doc="divide rewards by the std of the discounted return"),
        reward_discount=Key(
            None,
            float | None,
            low=0,
            high=1,
            needs="normalize.reward",
            doc="discount of that return; None: collect.discount_factor",
        ),
        reward_clip=Key(
            None,
            float | None,
            above=0,
            doc="scaled training rewards are clipped to -reward_clip .. reward_clip; None: no clip",
        ),
    ),
    other=dict(
        replay_buffer=dict(
            replay_buffer_size=Key(10_000, low=1, **OFF, doc="transitions; the oldest rollouts leave first"),
            max_use=Key(3, low=1, high=MOST_USES, **OFF, doc="most times that a transition is drawn"),
            max_staleness=Key(
                4,
                low=0,
                high=MOST_USES,
                **OFF,
                doc="largest age, in iterations, of a transition that is drawn",
            ),
        )
    ),
)


def _buffer() -> dict[str, Any]:
    limits = PPO["other"]["replay_buffer"]
    size = Key(None, int | None, low=1, **OFF, doc="transitions; None: 4 n_sample")
    return {**limits, "replay_buffer_size": size}


AUXILIARY: dict[str, Any] = dict(needs="learn.aux_train_epoch")

PPG: dict[str, Any] = dict(
    recompute_adv=True,
    model=dict(type="ppg"),
    learn=dict(
        value_norm=True,  # in the auxiliary phase a value error is added to a KL, which has no unit
        learning_rate=5e-4,
        adv_norm="batch",
        epoch_per_collect=DROPPED,
        reuse=DROPPED,
        actor_epoch_per_collect=Key(
            1,
            low=1,
            high=MOST_USES,
            needs="not learn.update_per_collect",
            doc="E_pi: passes of the policy over each rollout; off-policy the mean uses of a transition. "
            "One loop serves both losses if the value has as many, and the same buffer; else the "
            "value's come first",
        ),
        critic_epoch_per_collect=Key(
            1,
            low=1,
            high=MOST_USES,
            needs="not learn.update_per_collect",
            doc="E_V: as actor_epoch_per_collect, of the value",
        ),
        aux_train_epoch=Key(6, low=0, doc="E_aux: passes of an auxiliary phase; 0: no such phase"),
        aux_freq=Key(8, low=1, **AUXILIARY, doc="N_pi: iterations between auxiliary phases"),
        aux_bc_weight=Key(1.0, low=0, **AUXILIARY, doc="beta_clone, the weight of KL(pi_old || pi)"),
        aux_value_weight=Key(
            1.0, low=0, **AUXILIARY, doc="weight of the value network's own error in that phase"
        ),
        aux_learning_rate=Key(
            None,
            float | None,
            above=0,
            **AUXILIARY,
            doc="learning rate of the auxiliary phase; None: learning_rate",
        ),
        aux_batch_size=Key(
            None,
            int | None,
            low=1,
            **AUXILIARY,
            doc="samples in a minibatch of the auxiliary phase; None: batch_size",
        ),
        allow_raw_values=Key(False, doc="train without any scale of the values: the KL will not hold"),
    ),
    other=dict(
        replay_buffer=dict(
            replay_buffer_size=DROPPED,
            max_use=DROPPED,
            max_staleness=DROPPED,
            policy=_buffer(),
            value=_buffer(),
        ),
    ),
)
