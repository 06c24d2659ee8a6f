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
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ding_lite.envs.spaces import has_box
from ding_lite.errors import NumericsError
from ding_lite.models.heads import parameter_ranges
from ding_lite.policies.closed_form import ClosedForm, closed_form
from ding_lite.policies.compiling import COMPILE_FROM, WITHOUT_CLOSED_FORM, may_compile
from ding_lite.policies.diagnosis import describe_rollout
from ding_lite.policies.postmortem import Taken, raise_non_finite
from ding_lite.policies.replay import ReplayPolicy
from ding_lite.policies.updater import BadSteps, Loss, Metrics, Number, Updater, mean_metrics, stacked
from ding_lite.registry import POLICY_REGISTRY
from ding_lite.rl import losses
from ding_lite.rl.schedules import KINDS, schedule
from ding_lite.rollout import Batch, Rollout
from ding_lite.schema import Key

UNTIL_BUILT = "it is not built yet"


@POLICY_REGISTRY.register("ppo")
class PPOPolicy(ReplayPolicy):
    """PPO with the options of "The 37 Implementation Details of PPO", but no LSTM and no several GPUs.

    A policy of your own overrides :meth:`policy_loss` or :meth:`value_loss`; both see a
    :class:`~ding_lite.rollout.Batch` whose ``dist`` and ``new_value`` are fresh, are pure, and return
    ``(0-d loss, dict of 0-d metrics)``.
    Coefficients, hooks and ``requires_grad`` are those of the beginning of an iteration's passes.
    """

    config: dict[str, Any] = dict(
        transition_with_policy_data=Key(True, fixed_because="log_prob is always stored"),
        learn=dict(
            adam_eps=Key(1e-5, above=0),
            value_weight=Key(0.5, low=0),
            # Entropy bonus; None: 0.01 for discrete actions, 0 where a Box is among them.
            entropy_weight=Key(None, (float,), low=0, optional=True),
            clip_ratio=Key(0.2, above=0),
            dual_clip=Key(None, (float,), above=1, optional=True),  # bound for A < 0, such as 3.0
            # Clips the value this far from its old estimate, in the units of the loss; None: no clip.
            value_clip=Key(None, (float,), above=0, optional=True),
            value_loss=Key("mse", choices=("mse", "smooth_l1")),
            # In place of the clip: this times KL(pi_old || pi) over the whole distribution.
            kl_penalty=Key(None, (float,), above=0, optional=True),
            target_kl=Key(None, (float,), above=0, optional=True),  # policy stops above 1.5 times it
            grad_clip_type=Key("clip_norm", choices=("clip_norm", "clip_value"), optional=True),
            grad_clip_value=Key(0.5, above=0),
            skip_bad_steps=Key(0, low=0),  # gradient steps that are not finite and that a run survives
            # torch.compile for gradient steps: True for all; "no_closed_form" for those, on the CPU; "auto":
            # that in runs that plan 100,000 steps.
            compile=Key("auto", choices=("auto", WITHOUT_CLOSED_FORM, True, False)),
            # How each coefficient changes over schedule_env_step, down to its final share.
            lr_schedule=Key("constant", choices=KINDS),
            lr_final=Key(0.0, low=0),
            clip_schedule=Key("constant", choices=KINDS),  # of clip_ratio and value_clip alike
            clip_final=Key(0.0, low=0),
            entropy_schedule=Key("constant", choices=KINDS),
            entropy_final=Key(0.0, low=0),
            schedule_env_step=Key(None, (int,), low=1, optional=True),  # None: the config's max_env_step
            # DI-engine's, which are said elsewhere here or not built.
            lr_scheduler=Key(None, fixed_because="write lr_schedule='linear' and lr_final"),
            ppo_param_init=Key(True, fixed_because="write policy.model.init='torch' for torch's own"),
            kl_type=Key("k1", fixed_because=f"it belongs to kl_beta, and {UNTIL_BUILT}"),
            kl_beta=Key(0.0, fixed_because=UNTIL_BUILT),
            pretrained_model_path=Key(None, fixed_because="kl_beta's; to begin with weights: --init-from"),
        ),
    )

    @classmethod
    def config_faults(cls, values: Mapping[str, Any]) -> list[str]:
        faults = super().config_faults(values)
        policy = values["policy"]
        if policy["nstep_return"] and policy["learn"]["value_clip"] is not None:
            faults.append(
                "policy.nstep_return: its targets are made anew by the newest network, and value_clip would "
                "hold the value to an old one; use one of them"
            )
        return faults

    @classmethod
    def planned_compile(cls, values: Mapping[str, Any]) -> str | bool:
        """Returns what ``learn.compile="auto"`` comes to, by how many steps a complete config plans."""
        policy = values["policy"]
        updates = cls._planned_updates(policy) * values["max_env_step"] / policy["collect"]["n_sample"]
        return WITHOUT_CLOSED_FORM if updates >= COMPILE_FROM else False

    @classmethod
    def _planned_updates(cls, policy: Mapping[str, Any]) -> float:
        """Returns how many full minibatches an iteration learns from, more or less."""
        learn = policy["learn"]
        passes = learn["epoch_per_collect"] if policy["on_policy"] else learn["reuse"]
        steps = learn["update_per_collect"] or passes * policy["collect"]["n_sample"] / learn["batch_size"]
        return float(steps)

    def _init_learn(self) -> None:
        super()._init_learn()
        self.bad_steps = BadSteps(self.cfg.learn.skip_bad_steps)
        self._init_optimizers()

    def _init_shared(self) -> None:
        super()._init_shared()
        learn = self.cfg.learn
        weight = 0.0 if has_box(self.action_space) else 0.01
        self._entropy_weight = weight if learn.entropy_weight is None else learn.entropy_weight
        # Tensors, since a compiled loss takes every other number for one that never changes.
        dtype = torch.float32 if self.device.type == "mps" else torch.float64
        self._shares = {k: torch.ones((), dtype=dtype, device=self.device) for k in ("clip", "entropy")}

    def _init_optimizers(self) -> None:
        self.optimizer = self._make_updater(self.model.parameters())

    def _make_updater(self, parameters: Any, batch_size: int | None = None) -> Updater:
        learn, parameters = self.cfg.learn, [p for p in parameters if p.requires_grad]
        return Updater(
            parameters,
            closed_form=None if learn.compile is True else ClosedForm(self, parameters),
            learning_rate=learn.learning_rate,
            eps=learn.adam_eps,
            grad_clip_type=learn.grad_clip_type,
            grad_clip_value=learn.grad_clip_value,
            bad_steps=self.bad_steps,
            compiled_size=(batch_size or learn.batch_size) if self._may_compile else None,
            ranges=parameter_ranges(self.model),
        )

    @property
    def _may_compile(self) -> bool:
        return may_compile(self.cfg.learn.compile, self.device)

    @property
    def _compiles(self) -> bool:
        """Whether steps are compiled: all if that was asked for, else those without a closed form."""
        if not self._may_compile or self.cfg.learn.compile is True:
            return self._may_compile
        return any(u.closed_form is None or u.closed_form.of(loss) is None for u, loss in self._steps())

    def _steps(self) -> list[tuple[Updater, Loss]]:
        """Returns the optimisers, and the losses that each goes down."""
        return [(self.optimizer, self.loss)]

    def describe(self) -> list[str]:
        lines = super().describe()
        if "learn" in self.fields and self._compiles:
            lines.append("gradient steps are compiled: the first ones take some seconds, or tens of them")
        return lines

    @property
    def clip_ratio(self) -> Tensor:
        """The policy's clip range (), by its schedule."""
        return self.cfg.learn.clip_ratio * self._shares["clip"]

    @property
    def value_clip(self) -> Tensor | None:
        """How far the value may move from its old estimate, by the schedule of ``clip_ratio``."""
        clip = self.cfg.learn.value_clip
        return None if clip is None else (clip * self._shares["clip"]).clamp_min(1e-8)

    @property
    def entropy_weight(self) -> Tensor:
        """The weight () of the entropy bonus, by its schedule."""
        return self._entropy_weight * self._shares["entropy"]

    @closed_form("policy")
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
            # The weight of a stale sample is for its gain (arXiv:2110.00641); its KL has that of its draw.
            kl = self._distribution(batch.obs, batch.old_logit).kl(batch.dist)
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

    @closed_form("value")
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

    @closed_form("policy", "value")
    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the weighted sum of both losses, on the model's fresh outputs."""
        logit, batch.new_value = self.model.compute_actor_critic(batch.obs)
        batch.dist = self._distribution(batch.obs, logit)
        policy_loss, policy_metrics = self.policy_loss(batch)
        value_loss, value_metrics = self.value_loss(batch)
        total = policy_loss + self.cfg.learn.value_weight * value_loss
        return total, {"total_loss": total, **policy_metrics, **value_metrics}

    @closed_form("value")
    def _critic_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the value part alone."""
        batch.new_value = self.model.compute_critic(batch.obs)
        value_loss, metrics = self.value_loss(batch)
        return self.cfg.learn.value_weight * value_loss, metrics

    def _forward_learn(self, data: Rollout) -> dict[str, float]:
        """Improves the model from one rollout with advantages, and returns the means of the metrics."""
        data = data.to(self.device)
        metrics = describe_rollout(self, data)
        if not all(map(math.isfinite, (metrics["adv_mean"], metrics["value_mean"]))):
            raise NumericsError(
                f"the rollout's advantages (mean {metrics['adv_mean']}) or values (mean "
                f"{metrics['value_mean']}) are not finite; nothing was learned from it. Rewards and "
                "observations were checked when they were collected: look at the value network's output"
            )
        if not self._rewards_are_seen:  # another policy has collected, and updated a scale of its own
            self._before_credit(data)
        self._rewards_are_seen = False
        if self.value_norm is not None:
            targets = data.value_target[data.valid].cpu().numpy()
            self.value_norm.update_heads(targets, self.model.value_heads)
        self._apply_learning_rate()
        self._apply_shares()
        self._push(segments := self._segments(data))
        metrics |= self._policy_phase()
        metrics |= self._auxiliary_phase(segments)
        for buffer in self.buffers.values():
            buffer.end_iteration()
        metrics["skipped_steps"] = float(self.bad_steps.count)
        metrics |= {"cur_lr": self.optimizer.learning_rate, "clip_ratio": float(self.clip_ratio)}
        self._update_obs_norm(data)
        self.progress.env_step += int(data.valid.sum())
        return metrics

    def _policy_phase(self) -> dict[str, float]:
        """Takes the optimiser steps of one iteration and returns the means of their metrics."""
        return self._train("policy", self.optimizer, self.loss, self._critic_loss)

    def _auxiliary_phase(self, data: Rollout) -> dict[str, float]:
        """Does what follows the policy phase; PPG's is more than nothing."""
        return {}

    def _train(
        self,
        buffer: str,
        updater: Updater,
        loss: Loss,
        after_target_kl: Loss | None = None,
        *,
        values_moved: bool = False,
    ) -> dict[str, float]:
        """Trains on the passes over a buffer, and returns the means of the metrics.

        Args:
            buffer: its name.
            updater: takes the steps.
            loss: of a minibatch.
            after_target_kl: in its place once target_kl has stopped the policy; None ends the passes.
            values_moved: whether the value network has learned in this iteration already.
        """
        target_kl, epochs = self.cfg.learn.target_kl, 0
        history: list[Metrics] = []
        taken: list[Taken] = []  # and not looked at yet
        told: dict[str, float] = {}
        stopped = False
        with updater.phase():
            for minibatches in self._passes(buffer, told, values_moved=values_moved):
                kls: list[Number] = []
                for batch in minibatches:
                    history.append(updater.step(loss, batch))
                    taken.append((loss, batch.again))
                    if "approx_kl" in history[-1]:
                        kls.append(history[-1]["approx_kl"])
                epochs += not stopped
                if target_kl is not None and kls:
                    stopped = float(stacked(kls).mean()) > 1.5 * target_kl
                if stopped and after_target_kl is None:
                    break
                if stopped and after_target_kl is not None:
                    loss = after_target_kl
                if updater.on_host or not self.cfg.on_policy:  # no device, or replay, which waits for it
                    raise_non_finite(self, updater, taken, history)
        raise_non_finite(self, updater, taken, history)
        return told | mean_metrics(history) | {"epochs": float(epochs), "updates": float(len(history))}

    def _monitor_vars_learn(self) -> list[str]:
        return [
            *("cur_lr", "total_loss", "policy_loss", "value_loss", "entropy_loss", "approx_kl", "clipfrac"),
            *("explained_variance", "grad_norm", "adv_max", "adv_mean", "value_max", "value_mean"),
            *("clip_ratio", "epochs", "updates", "skipped_steps", "dead_units"),
            *(["obs_clipped"] if self.obs_norm is not None else []),
            *(["kl"] if self.cfg.learn.kl_penalty is not None else []),
            *super()._monitor_vars_learn(),
        ]

    def _schedule(self, name: str) -> float:
        learn = self.cfg.learn
        total = learn.schedule_env_step
        share = self.progress.env_step / total if total else 0.0
        return schedule(learn[f"{name}_schedule"], share, learn[f"{name}_final"])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._apply_shares()

    def _apply_shares(self) -> None:
        for name, share in self._shares.items():
            share.fill_(self._schedule(name))

    def _apply_learning_rate(self) -> None:
        self.optimizer.learning_rate = self.learning_rate * self._schedule("lr")

    def _state(self) -> dict[str, Any]:
        learning = "learn" in self.fields
        own = {"optimizer": self.optimizer, "bad_steps": self.bad_steps} if learning else {}
        return {**super()._state(), **own}


@POLICY_REGISTRY.register("ppo_offpolicy")
class PPOOffPolicy(PPOPolicy):
    """PPO that draws from a replay buffer: the same code, other defaults."""

    config: dict[str, Any] = dict(on_policy=False, learn=dict(learning_rate=1e-3))
