"""Proximal Policy Optimization (arXiv:1707.06347).

    r     = pi(a|s) / pi_old(a|s)
    L_pi  = -mean(min(r A, clip(r, 1 - eps, 1 + eps) A))  -  entropy_weight * entropy
    L_V   = 0.5 mean((V - R)^2)
    L     = L_pi + value_weight * L_V

Off-policy (``on_policy=False``), pi_old and the weight of a sample are those of ``policies.replay``.

Shapes: T steps, B envs, N samples of a minibatch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ding_lite.config.registry import POLICY_REGISTRY
from ding_lite.config.schema import Key, default_values, leaves, merged_config
from ding_lite.data.buffer import MOST_USES, Limits, ReplayBuffer
from ding_lite.data.minibatches import TAKEN_NAMES, Batch
from ding_lite.data.rollout import Rollout
from ding_lite.errors import ConfigError, ContractError, NumericsError
from ding_lite.fast.closed_form import Options, are_numbers
from ding_lite.fast.compiling import COMPILE_FROM, WITHOUT_CLOSED_FORM, may_compile
from ding_lite.fast.gradients import Loss, Metrics, name_of_loss
from ding_lite.fast.switch import PolicyGradients, are_library_methods
from ding_lite.models.heads import parameter_ranges
from ding_lite.policies.actor_critic import ActorCriticPolicy
from ding_lite.policies.base import Policy
from ding_lite.policies.contract import checked_loss
from ding_lite.policies.diagnostics import dead_units
from ding_lite.policies.failed_step import non_finite_step
from ding_lite.policies.memory import memory_faults
from ding_lite.policies.optimizer import Optimizer, in_mode
from ding_lite.policies.reference import Reference, check_fits
from ding_lite.policies.replay import ReplaySource
from ding_lite.policies.without_effect import ENTROPY_WEIGHT
from ding_lite.rl import losses
from ding_lite.rl.schedules import ADAPTIVE, SCHEDULES, adapted_rate, schedule
from ding_lite.rl.seeding import GeneratorState
from ding_lite.trees import box_size, map_tree

OFF_POLICY_LEARN = ("update_per_collect", "reuse", "proximal", "weight_bound")
# Keys that have no effect on the other kind of data, and are refused there.
OFF_POLICY_ONLY = ("priority", "priority_IS_weight", *(f"learn.{k}" for k in OFF_POLICY_LEARN))
ON_POLICY_ONLY = ("learn.epoch_per_collect",)
ROLLOUTS_KEPT = 4  # by a buffer without a given size
DEAD_UNITS_EVERY, DEAD_UNITS_OF = 10, 256  # iterations; observations
LOSSES = ("loss", "actor_loss", "critic_loss")  # those of a loop; each consists of policy_loss and value_loss


def buffer_capacity(size: int | None, n_sample: int) -> int:
    """Returns the transitions that a replay buffer of the given size holds; None: four rollouts."""
    return ROLLOUTS_KEPT * n_sample if size is None else size


class Loop(NamedTuple):
    """A loop of gradient steps over the passes of a source, which each iteration runs.

    Attributes:
        source: of the minibatches.
        optimizer: takes the steps.
        loss: of a minibatch.
        after_target_kl: replaces ``loss`` once target_kl has stopped the policy; None ends the passes.
        metrics: names of the metrics of ``loss`` and ``after_target_kl``.
        grad_norm, epochs: the names of these metrics; ``epochs`` counts the passes before target_kl, and None
            leaves it out. Two loops have no name in common.
    """

    source: ReplaySource
    optimizer: Optimizer
    loss: Loss
    after_target_kl: Loss | None = None
    metrics: tuple[str, ...] = ()
    grad_norm: str = "grad_norm"
    epochs: str | None = "epochs"

    def metric_names(self) -> list[str]:
        """Returns the names of all metrics of the loop."""
        passes = [] if self.epochs is None else [self.epochs]
        return [*self.metrics, self.grad_norm, *passes, *self.source.metric_names()]


@POLICY_REGISTRY.register("ppo")
class PPOPolicy(ActorCriticPolicy):
    """PPO with the options of "The 37 Implementation Details of PPO".

    A custom policy overrides :meth:`policy_loss`, which may read ``batch.dist``, or :meth:`value_loss`, which
    may read ``batch.new_value``: the model's fresh outputs on a :class:`~ding_lite.data.minibatches.Batch`. A
    loss changes nothing and returns ``(0-d loss, dict of 0-d metrics)``. The coefficients of losses in
    ``cfg`` and hooks are read when an iteration's passes begin. A layer may be frozen at any time; one that
    was frozen when the policy was made stays so.
    """

    config: dict[str, Any] = dict(
        on_policy=True,  # learn from each rollout once it is collected, or draw from a replay buffer
        priority=False,  # off-policy: draw in proportion to |advantage|^alpha
        priority_IS_weight=False,  # weigh prioritised samples by (N P)^-beta
        recompute_adv=True,  # compute values and advantages again at each pass, by the newest network
        transition_with_policy_data=Key(True, fixed_because="log_prob is always stored"),
        learn=dict(
            epoch_per_collect=Key(10, low=1, high=MOST_USES),  # on-policy: passes over each rollout
            # Off-policy: optimiser steps after each collect; None: as many as reuse (PPG: the epochs of each
            # network) asks for, ceil(reuse n_sample / batch_size).
            update_per_collect=Key(None, (int,), low=1, optional=True),
            reuse=Key(3.0, above=0),  # off-policy: mean number of uses of a transition
            # Off-policy: clip around the policy of this iteration's start, or around the one that collected.
            proximal=Key("decoupled", choices=("decoupled", "behaviour")),
            weight_bound=Key(2.0, low=1),  # off-policy: upper bound of a sample's weight pi_prox / mu
            weight_decay=Key(0.0, fixed_because="Adam has none here"),
            # Normalise advantages: in each minibatch (True is the same), over the whole pass, or not.
            adv_norm=Key("minibatch", choices=("minibatch", "batch", True, False)),
            value_weight=Key(0.5, low=0),  # weight of the value loss 0.5 (V - R)^2
            # Weight of the entropy bonus; None: 0.01 for discrete actions, 0 where a Box is among them.
            entropy_weight=Key(None, (float,), low=0, optional=True),
            clip_ratio=Key(0.2, above=0),  # epsilon: the ratio gains nothing outside of 1 - eps .. 1 + eps
            # Bound of the ratio where the advantage is negative, such as 3.0 (arXiv:1912.09729); None: none.
            dual_clip=Key(None, (float,), above=1, optional=True),
            # Clips the value this far from that at the start of the pass (with recompute_adv=False of
            # collection), in the units of the loss; None: no clip.
            value_clip=Key(None, (float,), above=0, optional=True),
            value_loss=Key("mse", choices=("mse", "smooth_l1")),  # smooth_l1 is linear for errors above 1
            # In place of the clip: this times KL(pi_old || pi) over the whole distribution; pi_old is the
            # policy at the start of the iteration.
            kl_penalty=Key(None, (float,), above=0, optional=True),
            # Weight of KL(pi || pi_ref) to the frozen policy of pretrained_model_path, added to the loss.
            kl_beta=Key(0.0, low=0),
            # That KL: "exact" is over the whole distribution; k1, k2, k3 are estimates by the actions taken
            # (rl.losses.reference_kl).
            kl_type=Key("exact", choices=("exact", "k1", "k2", "k3")),
            # The run or checkpoint of the frozen policy that kl_beta refers to.
            pretrained_model_path=Key(None, (str,), optional=True),
            # Epochs of the policy end when the KL of an epoch exceeds 1.5 times this; None: they do not.
            target_kl=Key(None, (float,), above=0, optional=True),
            # torch.compile for gradient steps on the CPU: True for all; "no_closed_form" for steps without
            # a closed form; "auto" is "no_closed_form" in runs that plan 100,000 steps, else False.
            compile=Key("auto", choices=("auto", WITHOUT_CLOSED_FORM, True, False)),
            # How the learning rate changes over schedule_env_step; "adaptive": after each pass of the policy,
            # lr / 1.5 where its KL exceeds 2 desired_kl, 1.5 lr where it is below desired_kl / 2.
            lr_schedule=Key("constant", choices=(*SCHEDULES, ADAPTIVE)),
            desired_kl=Key(0.01, above=0),  # KL(pi_old || pi) of a pass that lr_schedule="adaptive" aims at
            lr_final=Key(0.0, low=0),  # share of the learning rate at the end of its schedule
            clip_schedule=Key("constant", choices=SCHEDULES),  # how clip_ratio and value_clip change
            clip_final=Key(0.0, low=0),  # share of the clip range at the end of its schedule
            entropy_schedule=Key("constant", choices=SCHEDULES),  # how entropy_weight changes
            entropy_final=Key(0.0, low=0),  # share of the entropy weight at the end of its schedule
            # Env steps after which schedules have reached their end; None: the config's max_env_step.
            schedule_env_step=Key(None, (int,), low=1, optional=True),
            # DI-engine's keys that other keys replace.
            lr_scheduler=Key(None, fixed_because="write lr_schedule='linear' and lr_final"),
            ppo_param_init=Key(True, fixed_because="write policy.model.init='torch' for torch's own"),
        ),
        other=dict(
            replay_buffer=dict(
                replay_buffer_size=Key(10_000, low=1),  # transitions; the oldest rollouts leave first
                max_use=Key(3, low=1, high=MOST_USES),  # most times that a transition is drawn
                # Largest age, in iterations, of a transition that is drawn.
                max_staleness=Key(4, low=0, high=MOST_USES),
                alpha=Key(0.6, low=0, high=1),  # exponent of priorities: 0 draws uniformly
                beta=Key(0.4, low=0, high=1),  # exponent of priority_IS_weight: 1 corrects the draws in full
            ),
        ),
    )

    @classmethod
    def config_faults(cls, values: Mapping[str, Any]) -> list[str]:
        policy = values["policy"]
        faults = [*super().config_faults(values), *cls._replay_faults(values)]
        learn = policy["learn"]
        if bool(learn["kl_beta"]) != (learn["pretrained_model_path"] is not None):
            faults.append(
                f"policy.learn.kl_beta: {learn['kl_beta']:g} and policy.learn.pretrained_model_path="
                f"{learn['pretrained_model_path']!r}; the penalty needs both. To begin with weights "
                "of another run: --init-from"
            )
        if learn["dual_clip"] is not None and learn["kl_penalty"] is not None:
            faults.append(
                f"policy.learn.dual_clip: {learn['dual_clip']:g} would change nothing, since kl_penalty "
                "replaces the clip"
            )
        if policy["nstep_return"] and learn["value_clip"] is not None:
            faults.append(
                "policy.nstep_return: the newest network computes its targets, and value_clip would hold the "
                "value near an old estimate; use one of them"
            )
        if policy["model"].get("rnn"):
            faults += memory_faults(policy)
        return faults

    @classmethod
    def _replay_faults(cls, values: Mapping[str, Any]) -> list[str]:
        """Returns the faults of keys that depend on ``on_policy``, a line each."""
        policy = values["policy"]
        value_of = dict(leaves(policy))
        default_of = dict(leaves(default_values(merged_config(cls))))
        if policy["on_policy"]:
            without_effect = [p for p in default_of if p in OFF_POLICY_ONLY or p.startswith("other.")]
            reason = "it belongs to on_policy=False"
        else:
            without_effect = [path for path in ON_POLICY_ONLY if path in default_of]
            reason = "it is for fresh rollouts; off-policy write learn.reuse"
        faults = [
            f"policy.{path}: {value_of[path]!r} would change nothing, since {reason}"
            for path in without_effect
            if value_of.get(path, default_of[path]) != default_of[path]
        ]
        if not policy["on_policy"]:
            sizes = {p: value_of[p] for p in default_of if p.endswith("replay_buffer_size")}
            faults += cls._size_faults(sizes, policy["collect"], values["env"]["collector_env_num"])
            faults += cls._reuse_faults(policy)
        if policy.get("priority_IS_weight") and not policy["priority"]:
            faults.append(
                "policy.priority_IS_weight: True would change nothing, since it weighs the draws of "
                "policy.priority=True"
            )
        return faults

    @staticmethod
    def _size_faults(sizes: Mapping[str, int | None], collect: Mapping[str, Any], num_envs: int) -> list[str]:
        """Returns a fault for each buffer size, by its path, that is smaller than a rollout."""
        if collect["n_episode"] is not None:
            return []
        rows = -(-collect["n_sample"] // num_envs) * num_envs
        sizes = {path: buffer_capacity(size, collect["n_sample"]) for path, size in sizes.items()}
        return [
            f"policy.{path}: {size} transitions, and a rollout alone has {rows}; a buffer holds at least one"
            for path, size in sizes.items()
            if size < rows
        ]

    @classmethod
    def _reuse_faults(cls, policy: Mapping[str, Any]) -> list[str]:
        """Returns a fault if more uses of a transition are asked for than ``max_use`` allows."""
        learn, max_use = policy["learn"], policy["other"]["replay_buffer"]["max_use"]
        if learn["update_per_collect"] is None and learn["reuse"] > max_use:
            return [
                f"policy.learn.reuse: {learn['reuse']:g} uses of a transition are more than "
                f"policy.other.replay_buffer.max_use={max_use} allows; raise max_use"
            ]
        return []

    @classmethod
    def planned_compile(cls, values: Mapping[str, Any]) -> str | bool:
        """Returns what ``learn.compile="auto"`` stands for, by the number of gradient steps planned."""
        policy = values["policy"]
        updates = cls._planned_updates(policy) * values["max_env_step"] / policy["collect"]["n_sample"]
        if values["max_train_iter"] is not None:
            updates = min(updates, values["max_train_iter"])
        return WITHOUT_CLOSED_FORM if updates >= COMPILE_FROM else False

    @classmethod
    def _planned_updates(cls, policy: Mapping[str, Any]) -> float:
        """Returns approximately how many full minibatches an iteration learns from."""
        learn = policy["learn"]
        passes = learn["epoch_per_collect"] if policy["on_policy"] else learn["reuse"]
        steps = learn["update_per_collect"] or passes * policy["collect"]["n_sample"] / learn["batch_size"]
        return float(steps)

    def _init_shared(self) -> None:
        super()._init_shared()
        self._default_entropy_weight = 0.0 if box_size(self.action_space) else 0.01
        # Tensors, since torch.compile treats every other number as a constant.
        dtype = torch.float32 if self.device.type == "mps" else torch.float64
        self._factors = {k: torch.ones((), dtype=dtype, device=self.device) for k in ("clip", "entropy")}

        self.reference: Reference | None = None

    def _init_learn(self) -> None:
        self.minibatch_generator = self.own_generator("minibatch", device=self.device, saved_by_part=True)
        self.sources = self._make_sources()
        self._init_optimizers()
        self._check_losses()
        self._trained = [p for p in self.model.parameters() if p.requires_grad]

    def _make_sources(self) -> dict[str, ReplaySource]:
        """Returns the sources of minibatches by name; the policy's losses use "policy"."""
        learn, kept = self.cfg.learn, self.cfg.other.replay_buffer
        limits = self._limits_of(learn.epoch_per_collect, learn.reuse, kept)
        return {"policy": ReplaySource(self, limits, self.minibatch_generator, "buffer")}

    def _limits_of(self, epochs: int, reuse: float, kept: Any) -> Limits:
        """Returns the limits of a buffer: on-policy from ``epochs``, else from ``reuse`` and ``kept``."""
        learn, collect = self.cfg.learn, self.cfg.collect
        whole_episodes = collect.n_episode is not None
        segment = collect.unroll_len if collect.unroll_len > 1 else 0
        grid = None if self.memory is None else self.memory.grid
        layout: dict[str, Any] = dict(whole_episodes=whole_episodes, segment=segment, grid=grid)
        if self.cfg.on_policy:
            return Limits(max_use=epochs, **layout)
        steps = learn.update_per_collect
        if steps is None and not whole_episodes:
            steps = math.ceil(reuse * collect.n_sample / learn.batch_size)
        return Limits(
            max_use=kept.max_use,
            max_staleness=kept.max_staleness,
            capacity=buffer_capacity(kept.replay_buffer_size, collect.n_sample),
            steps=steps,
            reuse=reuse,
            batch_size=learn.batch_size,
            **layout,
        )

    @property
    def buffers(self) -> dict[str, ReplayBuffer]:
        """The replay buffers of the sources, by name."""
        return {name: source.buffer for name, source in self.sources.items()}

    def _init_optimizers(self) -> None:
        self.optimizer = self._make_optimizer(self.model.parameters())

    def _check_losses(self) -> None:
        """Refuses a subclass with a loss of its own that no loop minimises.

        Raises:
            ContractError: naming it, and the losses that are minimised.
        """
        loops = self.training_loops()
        minimised = [loop.loss for loop in loops]
        if self.cfg.learn.target_kl is not None:
            minimised += [loop.after_target_kl for loop in loops if loop.after_target_kl is not None]
        own = [name for name in LOSSES if hasattr(self, name) and not are_library_methods(self, [name])]
        if own and not any(getattr(self, name) in minimised for name in own):
            names = " and ".join(loss.__name__ for loss in minimised)
            raise ContractError(
                f"{type(self).__name__}.{own[0]} would not be called: this config minimises {names}. "
                "Override policy_loss or value_loss: each of these losses is made of them"
            )

    def _check_parameters(self) -> None:
        """Refuses parameters that were unfrozen or replaced after the optimisers were made.

        Raises:
            ContractError: naming them.
        """
        known = set(map(id, self._trained))
        new = [name for name, p in self.model.named_parameters() if p.requires_grad and id(p) not in known]
        if new:
            raise ContractError(
                f"the optimisers do not have the model's {', '.join(new[:5])}: layers were unfrozen or "
                "replaced after the policy was made. Make the policy first and freeze layers then, or "
                "begin a new run from the weights (init_from)"
            )

    def _make_optimizer(self, parameters: Iterable[nn.Parameter], batch_size: int | None = None) -> Optimizer:
        """Returns an optimiser by the config; ``batch_size`` is that of full minibatches."""
        learn, trained = self.cfg.learn, [p for p in parameters if p.requires_grad]
        compiled = self.memory is None and may_compile(learn.compile, self.device)
        full_size = batch_size or learn.batch_size
        return Optimizer(
            trained,
            gradients=PolicyGradients(
                self.fast,
                trained,
                compiled_size=full_size if compiled else None,
                captured_size=full_size if self.uses_cuda_graphs else None,
                closed_form=learn.compile is not True,
            ),
            learning_rate=learn.learning_rate,
            eps=learn.adam_eps,
            grad_clip_type=learn.grad_clip_type,
            grad_clip_value=learn.grad_clip_value,
            bad_steps=self.bad_steps,
            ranges=parameter_ranges(self.model),
            ranks=self.ranks,
        )

    def training_loops(self) -> list[Loop]:
        """Returns the loops of the policy phase, in their order."""
        metrics = ("total_loss", *self._policy_metric_names(), "value_loss")
        return [Loop(self.sources["policy"], self.optimizer, self.loss, self.critic_loss, metrics)]

    def _policy_metric_names(self) -> list[str]:
        """Returns the names of the metrics of the policy loss, and of its penalty for leaving a reference."""
        learn = self.cfg.learn
        return [
            *("policy_loss", "entropy_loss", "approx_kl", "clipfrac"),
            *(["reference_kl"] if learn.kl_beta else []),
            *(["kl"] if learn.kl_penalty is not None else []),
        ]

    def optimized_losses(self) -> list[tuple[Optimizer, Loss]]:
        """Returns the optimisers, each with a loss that it minimises.

        Raises:
            ContractError: if there are none, because a subclass has replaced ``_init_learn``.
        """
        if not hasattr(self, "sources"):
            raise ContractError(f"{type(self).__name__}._init_learn must call super()._init_learn()")
        return [(loop.optimizer, loop.loss) for loop in self.training_loops()]

    @property
    def compiles(self) -> bool:
        """Whether some gradient steps are compiled."""
        return any(
            optimizer.gradients.name_of(loss) == "compiled" for optimizer, loss in self.optimized_losses()
        )

    def _implementations(self) -> list[str]:
        phrases = super()._implementations()
        if "learn" in self.fields:
            of_policy_phase = PPOPolicy.optimized_losses(self)
            names = [optimizer.gradients.name_of(loss) for optimizer, loss in of_policy_phase]
            phrases.append(f"gradients: {', '.join(dict.fromkeys(names))}")
        return phrases

    def _parts(self) -> list[str]:
        lines, learn = super()._parts(), self.cfg.learn
        if self.reference is not None:
            lines.append(
                f"stays near {learn.pretrained_model_path}: {learn.kl_beta:g} times the KL ({learn.kl_type})"
            )
        return lines

    def use_reference(self, reference: Policy) -> None:
        """Sets the frozen policy that the penalty ``learn.kl_beta`` refers to.

        Args:
            reference: such as :func:`~ding_lite.load_policy` returns it.

        Raises:
            ConfigError: if its observations have other shapes, or its actions another kind of distribution.
        """
        if not isinstance(reference, ActorCriticPolicy):
            raise ConfigError(
                f"policy.learn.pretrained_model_path: the reference is a {type(reference).__name__}; it must "
                "be an ActorCriticPolicy"
            )
        check_fits(reference, self)
        self.reference = Reference(reference)

    def _prepare_rollout(self, rollout: Rollout) -> None:
        super()._prepare_rollout(rollout)
        if self.reference is not None:
            self.reference.add_logits(rollout)

    def forget_open_episodes(self) -> None:
        super().forget_open_episodes()
        if self.reference is not None:
            self.reference.state = None

    def _facts(self) -> dict[str, Any]:
        return {**super()._facts(), ENTROPY_WEIGHT: self._default_entropy_weight}

    def describe(self) -> list[str]:
        lines = super().describe()
        if "learn" not in self.fields:
            return lines
        for source in self.sources.values():
            lines += source.describe()
        if self.cfg.learn.compile is True and self.device.type != "cpu":
            lines.append("policy.learn.compile=True: no effect, since steps are compiled on the CPU only")
        if self.sources["policy"].renews_credit and (
            type(self)._get_train_sample is not ActorCriticPolicy._get_train_sample
        ):
            lines.append(
                f"{type(self).__name__}._get_train_sample sets value, advantage and value_target for the "
                "first pass over a rollout; credit() computes them again for the others "
                "(policy.recompute_adv, policy.nstep_return). To change them in all passes, override credit()"
            )
        if self.compiles:
            lines.append("gradient steps are compiled: the first ones take some seconds, or tens of them")
        return lines

    @property
    def clip_ratio(self) -> Tensor:
        """The policy's clip range (), by its schedule."""
        return self.cfg.learn.clip_ratio * self._factors["clip"]

    @property
    def value_clip(self) -> Tensor | None:
        """How far the value may move from its old estimate, by the schedule of ``clip_ratio``."""
        clip = self.cfg.learn.value_clip
        return None if clip is None else (clip * self._factors["clip"]).clamp_min(1e-8)

    @property
    def entropy_weight(self) -> Tensor:
        """The weight () of the entropy bonus, by its schedule."""
        weight = self.cfg.learn.entropy_weight
        return (self._default_entropy_weight if weight is None else weight) * self._factors["entropy"]

    def closed_form_options(self) -> Options | None:
        """Returns the coefficients of the losses below, for their gradient in ``fast.closed_form``.

        None if a loss has a term that is not written there, or a coefficient that is not a plain number;
        torch then computes the gradient. A new term of one of these losses must return None here; otherwise
        small networks train without it.
        """
        learn = self.cfg.learn
        clip_ratio, entropy_weight, value_clip = self.clip_ratio, self.entropy_weight, self.value_clip
        if learn.kl_penalty is not None or learn.kl_beta:
            return None
        if not are_numbers((clip_ratio, entropy_weight, value_clip)):
            return None
        return Options(
            clip_ratio=float(clip_ratio),
            entropy_weight=float(entropy_weight),
            value_clip=None if value_clip is None else float(value_clip),
            dual_clip=learn.dual_clip,
            value_weight=learn.value_weight,
            value_loss=learn.value_loss,
        )

    def policy_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the clipped surrogate, or the penalised one, less the entropy bonus.

        Shapes:
            every field of ``batch`` is (N, ...); ``batch.dist.log_prob`` gives (N,)
        """
        log_ratio = batch.dist.log_prob(batch.action) - batch.log_prob
        metrics = {}
        if self.cfg.learn.kl_penalty is None:
            objective = losses.clipped_surrogate(
                log_ratio, batch.advantage, self.clip_ratio, self.cfg.learn.dual_clip
            )
            policy_loss = -losses.weighted_mean(objective, batch.policy_weight)
        else:
            # The weight of a stale sample is for its gain (arXiv:2110.00641). Its KL is weighed by
            # batch.value_weight, the importance weight of its draw.
            kl = self.distribution(batch.obs, batch.old_logit).kl(batch.dist)
            gain = losses.weighted_mean(torch.exp(log_ratio) * batch.advantage, batch.policy_weight)
            policy_loss = self.cfg.learn.kl_penalty * losses.weighted_mean(kl, batch.value_weight) - gain
            metrics["kl"] = kl.mean()
        entropy = batch.dist.entropy().mean()
        return policy_loss - self.entropy_weight * entropy, metrics | {
            "policy_loss": policy_loss,
            "entropy_loss": entropy,
            "approx_kl": losses.approx_kl(log_ratio),
            "clipfrac": losses.clip_fraction(log_ratio, self.clip_ratio),
        }

    def value_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the error of the value, before its weight, in normalised units under value_norm.

        Shapes:
            ``batch.new_value``, ``batch.value`` (old), ``batch.value_target``: (N,)
        """
        error = losses.value_error(
            batch.new_value, batch.value_target, batch.value, self.value_clip, self.cfg.learn.value_loss
        )
        value_loss = losses.weighted_mean(error, batch.value_weight)
        return value_loss, {"value_loss": value_loss}

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the weighted sum of both losses, on the model's fresh outputs."""
        logit, value = self.model.compute_actor_critic(batch.obs)
        batch = batch.with_outputs(dist=self.distribution(batch.obs, logit), new_value=value)
        policy_term, policy_metrics = self._policy_term(batch, logit)
        value_term, value_metrics = self._value_term(batch, value)
        total = policy_term + value_term
        return total, {"total_loss": total, **policy_metrics, **value_metrics}

    def critic_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the weighted value loss, on the model's fresh value."""
        value = self.model.compute_critic(batch.obs)
        return self._value_term(batch.with_outputs(new_value=value), value)

    def _policy_term(self, batch: Batch, logit: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the policy loss, with kl_beta KL(pi || pi_ref), or an estimate of it, if that is set."""
        loss, metrics = checked_loss(self.policy_loss(batch), self, "policy_loss", logit)
        learn = self.cfg.learn
        if not learn.kl_beta:
            return loss, metrics
        assert self.reference is not None
        reference = self.reference.distribution(batch)
        if learn.kl_type == "exact":
            kl, weight = batch.dist.kl(reference), batch.value_weight  # the importance weight of the draw
        else:
            log_prob, of_reference = (dist.log_prob(batch.action) for dist in (batch.dist, reference))
            kl = losses.reference_kl(log_prob, of_reference, batch.log_prob, learn.kl_type)
            weight = batch.policy_weight
        mean_kl = losses.weighted_mean(kl, weight)
        return loss + learn.kl_beta * mean_kl, {**metrics, "reference_kl": mean_kl}

    def _value_term(self, batch: Batch, value: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the value loss times its weight."""
        loss, metrics = checked_loss(self.value_loss(batch), self, "value_loss", value)
        return self.cfg.learn.value_weight * loss, metrics

    def _check_fields(self, rollout: Rollout) -> None:
        """Refuses a rollout that lacks a field of the losses, or has one that a minibatch cannot have."""
        if taken := sorted(TAKEN_NAMES & set(rollout.keys())):
            raise ContractError(
                f"{type(self).__name__}._process_transition: a minibatch has its own {' and '.join(taken)}; "
                "give the field of the rollout another name"
            )
        # Off-policy the ratio to the policy that collected is needed whatever the loss.
        needs_log_prob = (
            not self.cfg.on_policy
            or type(self).policy_loss is PPOPolicy.policy_loss
            or (self.cfg.learn.kl_beta and self.cfg.learn.kl_type != "exact")
        )
        if rollout.get("log_prob") is None and needs_log_prob:
            raise ContractError(
                f"the rollout has no log_prob: {type(self).__name__}._forward_collect must return "
                '{"action": ..., "log_prob": ...}, (B,) of the drawn actions'
            )
        if self.cfg.learn.kl_beta and "reference_logit" not in rollout:
            raise ContractError(
                "policy.learn.kl_beta: the rollout has no reference_logit; call policy.use_reference before "
                "it is collected"
            )

    def _forward_learn(self, data: Rollout) -> dict[str, float]:
        """Improves the model from one rollout with advantages, and returns the means of the metrics."""
        self._check_parameters()
        data, metrics = self.begin_learning(data)
        self._apply_learning_rate()
        self._apply_schedules()
        segments = self.segments(data)
        for source in self.sources.values():  # all before the first step, which changes pi_prox
            source.push(segments)
        updates = 0
        for number, loop in enumerate(self.training_loops()):
            of_loop, steps = self._train(loop, values_moved=number > 0)
            metrics |= of_loop
            updates += steps
        metrics["updates"] = float(updates)
        metrics |= self._auxiliary_phase(segments)
        metrics |= self.end_learning(data)
        for buffer in self.buffers.values():
            buffer.end_iteration()
        return metrics | {"cur_lr": self.optimizer.learning_rate, "clip_ratio": float(self.clip_ratio)}

    def _rollout_metrics(self, data: Rollout) -> dict[str, Tensor]:
        """Returns metrics () of a rollout; every ``DEAD_UNITS_EVERY`` iterations with ``dead_units``."""
        metrics = super()._rollout_metrics(data)
        if self.iteration % DEAD_UNITS_EVERY == 0:
            some = map_tree(lambda leaf: leaf.flatten(0, 1)[:DEAD_UNITS_OF], data.obs)
            metrics["dead_units"] = dead_units(self.model, self.inputs(some))
        return metrics

    @property
    def iteration(self) -> int:
        """The number of iterations that were learned from."""
        return self.sources["policy"].buffer.iteration

    def minibatches(self, rollout: Rollout) -> Iterator[Batch]:
        """Yields one pass over a rollout (T, B) with credit, in the form that the losses get."""
        training_set = self.sources["policy"].training_set(rollout)
        return training_set.draw(training_set.count, self.minibatch_generator)[1]

    def _auxiliary_phase(self, data: Rollout) -> dict[str, float]:
        """Does what follows the policy phase, and returns its metrics; PPO does nothing."""
        return {}

    def _train(self, loop: Loop, *, values_moved: bool = False) -> tuple[dict[str, float], int]:
        """Takes the steps of a loop in one iteration.

        Args:
            loop: one of :meth:`training_loops`.
            values_moved: whether an earlier loop of the iteration may have trained the value network.

        Returns:
            the metrics of the loop, of its steps the means; and the number of its steps.
        """
        loss = loop.loss
        target_kl, epochs, stopped = self.cfg.learn.target_kl, 0, False
        adapts = self.cfg.learn.lr_schedule == ADAPTIVE and loop.optimizer is self.optimizer
        needs_kl = adapts or (target_kl is not None and loop.optimizer is self.optimizer)
        # A check of a device waits for it; a replay buffer waits for it anyway.
        checks_each_pass = loop.optimizer.on_host or not self.cfg.on_policy
        with loop.optimizer.phase(self.failure_of) as steps:
            for minibatches in loop.source.passes(self.clip_ratio, values_moved=values_moved):
                first = len(steps.history)
                with in_mode(self.model, training=self.has_modes):
                    for batch in minibatches:
                        metrics = steps.take(loss, batch, remake=batch.remake)
                        if needs_kl and not stopped and "approx_kl" not in metrics:
                            raise self._no_approx_kl()
                epochs += not stopped
                if adapts and not stopped:
                    kl = steps.mean_since(first, "approx_kl")
                    self.learning_rate = adapted_rate(self.learning_rate, kl, self.cfg.learn.desired_kl)
                    self._apply_learning_rate()
                if target_kl is not None and not stopped:
                    stopped = steps.mean_since(first, "approx_kl") > 1.5 * target_kl
                if stopped:
                    if loop.after_target_kl is None:
                        break
                    loss = loop.after_target_kl
                if checks_each_pass:
                    steps.check()
        means = steps.mean_metrics()
        if "grad_norm" in means:
            means[loop.grad_norm] = means.pop("grad_norm")
        if loop.epochs is not None:
            means[loop.epochs] = float(epochs)
        return loop.source.metrics | means, len(steps.history)

    def _no_approx_kl(self) -> ContractError:
        return ContractError(
            f"policy.learn.target_kl and lr_schedule='adaptive' need the metric 'approx_kl' of "
            f"{type(self).__name__}.policy_loss: an estimate of KL(pi_old || pi), such as "
            "rl.losses.approx_kl(log_ratio)"
        )

    def failure_of(self, loss: Loss, batch: Batch, metrics: Metrics, step: int) -> NumericsError:
        """Returns the error for a gradient step that was not finite."""
        return non_finite_step(
            self.model,
            self.state_without_rollouts(),
            f"gradient step {step} of {name_of_loss(loss)} in iteration {1 + self.iteration}",
            loss,
            batch,
            metrics,
        )

    def state_without_rollouts(self) -> dict[str, Any]:
        left_out = {*(f"{name}_buffer" for name in self.sources), "auxiliary"}
        parts = {k: part for k, part in self._state().items() if part is not None and k not in left_out}
        return {name: part.state_dict() for name, part in parts.items()}

    def _monitor_vars_learn(self) -> list[str]:
        return [
            "cur_lr",
            *(name for loop in self.training_loops() for name in loop.metric_names()),
            *super()._monitor_vars_learn(),
            *("clip_ratio", "updates", "dead_units"),
        ]

    def _schedule(self, name: str) -> float:
        learn = self.cfg.learn
        total = learn.schedule_env_step
        share = self.progress.env_step / total if total else 0.0
        return schedule(learn[f"{name}_schedule"], share, learn[f"{name}_final"])

    def forget_stored(self) -> list[str]:
        filled = [buffer for buffer in self.buffers.values() if buffer.data is not None]
        for buffer in filled:
            buffer.clear()
        return [*super().forget_stored(), *(["replay buffers"] if filled else [])]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # A run that is resumed with kl_beta begins the memory anew.
        super().load_state_dict({"reference": {"memory": None}, **state})
        self._apply_schedules()
        if "learn" in self.fields:
            has_reference = bool(self.cfg.learn.kl_beta)
            for buffer in self.buffers.values():
                # The rollouts of a run that is resumed with another kl_beta do not fit the new ones.
                if buffer.data is not None and ("reference_logit" in buffer.data) != has_reference:
                    buffer.clear()

    def _apply_schedules(self) -> None:
        for name, factor in self._factors.items():
            factor.fill_(self._schedule(name))

    def _apply_learning_rate(self) -> None:
        self.optimizer.learning_rate = self.learning_rate * self._schedule("lr")

    def _state(self) -> dict[str, Any]:
        parts = super()._state()
        has_memory = self.reference is not None and self.reference.policy.memory is not None
        parts["reference"] = self.reference if has_memory else None
        if "learn" in self.fields:
            parts["permutation"] = GeneratorState(self.minibatch_generator)
            parts |= {f"{name}_buffer": buffer for name, buffer in self.buffers.items()}
            parts["optimizer"] = self.optimizer
        return parts


@POLICY_REGISTRY.register("ppo_offpolicy")
class PPOOffPolicy(PPOPolicy):
    """PPO that draws from a replay buffer: the same code with other defaults."""

    config: dict[str, Any] = dict(on_policy=False, learn=dict(learning_rate=1e-3))
