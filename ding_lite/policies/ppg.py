"""Phasic Policy Gradient (arXiv:2009.04416): PPO with an auxiliary phase every N_pi iterations.

    policy phase      each iteration: E_pi epochs of PPO's policy loss, E_V epochs of its value loss; in
                      one loop if both are the same number
    auxiliary phase   every N_pi iterations: E_aux epochs over all their samples (policies.auxiliary)

The paper's names, and the config's:

    N_pi   aux_freq          E_pi        actor_epoch_per_collect
    E_aux  aux_train_epoch   E_V         critic_epoch_per_collect
                             beta_clone  aux_bc_weight

The KL has no unit and the errors have the unit of squared returns, so the errors are in normalised units
(value_norm): with raw returns of 100 they would outweigh the KL that holds the policy near pi_old.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from ding_lite.config.registry import POLICY_REGISTRY
from ding_lite.config.schema import Key
from ding_lite.data.buffer import MOST_USES
from ding_lite.data.minibatches import Batch
from ding_lite.data.rollout import Rollout, bytes_of
from ding_lite.errors import ContractError
from ding_lite.fast.closed_form import AuxiliaryOptions, are_numbers
from ding_lite.fast.gradients import Loss
from ding_lite.models.actor_critic import ActorCritic, PhasicActorCritic
from ding_lite.policies.auxiliary import AuxiliaryPhase, AuxiliarySequences
from ding_lite.policies.contract import checked_loss
from ding_lite.policies.optimizer import Optimizer
from ding_lite.policies.ppo import Loop, PPOPolicy, buffer_capacity
from ding_lite.policies.replay import ReplaySource
from ding_lite.policies.without_effect import ONE_LOOP
from ding_lite.rl import losses
from ding_lite.trees import tree_leaves

ONE_BUFFER = "PPG has two buffers: write other.replay_buffer.policy.{0} and other.replay_buffer.value.{0}"
NUMBERS = ("log_prob", "reward", "value", "advantage", "intrinsic_reward")  # one float of each row
TWO_EPOCHS = "write actor_epoch_per_collect and critic_epoch_per_collect: PPG has one for each network"


def _buffer() -> dict[str, Any]:
    return dict(
        replay_buffer_size=Key(None, (int,), low=1, optional=True),  # transitions; None: 4 n_sample
        max_use=Key(3, low=1, high=MOST_USES),  # most times that a transition is drawn
        # Iterations after its own that a transition is drawn in.
        max_staleness=Key(4, low=0, high=MOST_USES),
    )


@POLICY_REGISTRY.register("ppg")
class PPGPolicy(PPOPolicy):
    """PPG on fresh rollouts, or off-policy, for every action space.

    A custom policy may also override :meth:`auxiliary_loss`, such as for a further head of its model.

    Attributes:
        auxiliary_fields: names of further fields of the rollout that ``auxiliary_loss`` reads, such as
            ``("reward",)``. The auxiliary memory keeps them.
    """

    auxiliary_fields: tuple[str, ...] = ()

    config: dict[str, Any] = dict(
        priority=Key(False, fixed_because="PPG draws all samples with equal probability"),
        priority_IS_weight=Key(False, fixed_because="PPG draws without priorities"),
        model=dict(type="ppg"),
        learn=dict(
            learning_rate=5e-4,
            adv_norm="batch",
            epoch_per_collect=Key(10, fixed_because=TWO_EPOCHS),
            reuse=Key(3.0, fixed_because=TWO_EPOCHS + "; off-policy it is the mean number of uses"),
            # E_pi: passes of the policy over each rollout; off-policy the mean number of uses of a
            # transition. If both buffers have the same limits, one loop and one Adam serve both losses. Else
            # the value's epochs come first, and each loss has its own Adam.
            actor_epoch_per_collect=Key(1, low=1, high=MOST_USES),
            # E_V: as actor_epoch_per_collect, of the value.
            critic_epoch_per_collect=Key(1, low=1, high=MOST_USES),
            aux_freq=Key(8, low=1),  # N_pi: iterations between auxiliary phases
            aux_train_epoch=Key(6, low=0),  # E_aux: passes of an auxiliary phase; 0: no such phase
            aux_bc_weight=Key(1.0, low=0),  # beta_clone, the weight of KL(pi_old || pi)
            aux_value_weight=Key(1.0, low=0),  # weight of the value network's own error in that phase
            # Learning rate of the auxiliary phase; None: learning_rate.
            aux_learning_rate=Key(None, (float,), above=0, optional=True),
            # Samples in a minibatch of the auxiliary phase; None: batch_size.
            aux_batch_size=Key(None, (int,), low=1, optional=True),
            # Parts that such a minibatch goes through the network in, to save memory.
            aux_grad_accum=Key(1, low=1),
            allow_raw_values=False,  # train without any scale of the values: the KL will not hold
        ),
        other=dict(
            replay_buffer=dict(
                multi_buffer=Key(
                    True, fixed_because="PPG has two buffers, or one for both if their limits are equal"
                ),
                policy=_buffer(),
                value=_buffer(),
                **{
                    name: Key(None, (int,), optional=True, fixed_because=ONE_BUFFER.format(name))
                    for name in ("replay_buffer_size", "max_use", "max_staleness")
                },
                alpha=Key(0.6, fixed_because="it belongs to priority"),
                beta=Key(0.4, fixed_because="it belongs to priority"),
            ),
        ),
    )

    @classmethod
    def config_faults(cls, values: Mapping[str, Any]) -> list[str]:
        faults = super().config_faults(values)
        policy = values["policy"]
        learn = policy["learn"]
        epochs = (learn["actor_epoch_per_collect"], learn["critic_epoch_per_collect"])
        if learn["update_per_collect"] is not None and epochs != (1, 1):
            faults.append(
                f"policy.learn.update_per_collect: with it each network takes {learn['update_per_collect']} "
                f"steps, and actor_epoch_per_collect, critic_epoch_per_collect = {epochs} would change "
                "nothing; write one or the other"
            )
        if learn["aux_train_epoch"] == 0:
            return faults
        if not (learn["value_norm"] or policy["normalize"]["reward"] or learn["allow_raw_values"]):
            faults.append(
                "policy.learn.value_norm: PPG needs a scale of the values, or their error outweighs the KL "
                "that holds the policy; set it, or policy.normalize.reward=True (the paper's), or say that "
                "returns are near 1 with policy.learn.allow_raw_values=True"
            )
        batch_size = learn["aux_batch_size"] or learn["batch_size"]
        samples = learn["aux_freq"] * policy["collect"]["n_sample"]
        if batch_size > samples and policy["collect"]["n_episode"] is None:
            faults.append(
                f"policy.learn.aux_batch_size: {batch_size} samples in a minibatch, and the auxiliary memory "
                f"has only aux_freq n_sample = {samples}"
            )
        if learn["aux_grad_accum"] > batch_size:
            faults.append(
                f"policy.learn.aux_grad_accum: {learn['aux_grad_accum']} parts are more than the "
                f"{batch_size} samples of a minibatch; lower it"
            )
        return faults

    @classmethod
    def _reuse_faults(cls, policy: Mapping[str, Any]) -> list[str]:
        learn, kept = policy["learn"], policy["other"]["replay_buffer"]
        return [
            f"policy.learn.{who}_epoch_per_collect: {learn[f'{who}_epoch_per_collect']} uses of a transition "
            f"are more than policy.other.replay_buffer.{name}.max_use={kept[name]['max_use']} allows; raise "
            "max_use"
            for who, name in (("actor", "policy"), ("critic", "value"))
            if learn[f"{who}_epoch_per_collect"] > kept[name]["max_use"]
        ]

    @classmethod
    def _planned_updates(cls, policy: Mapping[str, Any]) -> float:
        learn, n_sample = policy["learn"], policy["collect"]["n_sample"]
        size = learn["aux_batch_size"] or learn["batch_size"]
        epochs = learn["actor_epoch_per_collect"]
        if not cls._has_one_loop(policy):
            epochs += learn["critic_epoch_per_collect"]
        steps = learn["update_per_collect"] or epochs * n_sample / learn["batch_size"]
        return float(steps + learn["aux_train_epoch"] * n_sample / size)

    @staticmethod
    def _has_one_loop(policy: Mapping[str, Any]) -> bool:
        """Returns whether both losses have the same samples: one loop then takes steps down their sum."""
        learn, kept = policy["learn"], policy["other"]["replay_buffer"]
        same_epochs = learn["actor_epoch_per_collect"] == learn["critic_epoch_per_collect"]
        n_sample = policy["collect"]["n_sample"]
        limits = [
            {**buffer, "replay_buffer_size": buffer_capacity(buffer["replay_buffer_size"], n_sample)}
            for buffer in (kept["policy"], kept["value"])
        ]
        return bool(same_epochs and (policy["on_policy"] or limits[0] == limits[1]))

    def _get_batch_size(self) -> dict[str, int]:
        return dict.fromkeys(("policy", "value"), self.cfg.learn.batch_size)

    def _make_sources(self) -> dict[str, ReplaySource]:
        learn, kept = self.cfg.learn, self.cfg.other.replay_buffer
        actor, critic = learn.actor_epoch_per_collect, learn.critic_epoch_per_collect
        policy_limits = self._limits_of(actor, actor, kept.policy)
        if self._has_one_loop(self.cfg):
            sections = ("replay_buffer.policy", "replay_buffer.value")
            return {"policy": ReplaySource(self, policy_limits, self.minibatch_generator, "buffer", sections)}
        limits = {"policy": policy_limits, "value": self._limits_of(critic, critic, kept.value)}
        return {
            name: ReplaySource(
                self,
                limit,
                self.minibatch_generator,
                f"{name}_buffer",
                (f"replay_buffer.{name}",),
                for_policy=name == "policy",
            )
            for name, limit in limits.items()
        }

    def _init_optimizers(self) -> None:
        model: ActorCritic = self.model
        if not isinstance(model, PhasicActorCritic):
            raise ContractError(
                f"policy.model: {type(model).__name__} has no auxiliary value head; PPG needs a subclass of "
                "ding_lite.models.PhasicActorCritic, which defines compute_auxiliary(obs), such as 'ppg'"
            )
        if self.cfg.learn.aux_train_epoch:
            self._check_auxiliary(model)
        if isinstance(self.auxiliary_fields, str):
            raise ContractError(
                f"{type(self).__name__}.auxiliary_fields is the text {self.auxiliary_fields!r}, expected a "
                f"tuple of names: ({self.auxiliary_fields!r},)"
            )
        policy, value, auxiliary = map(
            self.reached_by, (model.compute_actor, model.compute_critic, model.compute_auxiliary)
        )
        # Parameters of a custom model that only a custom loss reaches are in every optimiser: a step does not
        # change a parameter that its loss does not reach.
        reached = {*policy, *value, *auxiliary}
        others = [p for p in model.parameters() if p.requires_grad and p not in reached]
        self.value_optimizer: Optimizer | None = None
        if self._has_one_loop(self.cfg):
            self.optimizer = self._make_optimizer([*self.reached_by(model.compute_actor_critic), *others])
        else:
            self.optimizer = self._make_optimizer([*policy, *others])
            self.value_optimizer = self._make_optimizer([*value, *others])
        self.auxiliary: AuxiliaryPhase | None = None
        if self.cfg.learn.aux_train_epoch:
            size = self.cfg.learn.aux_batch_size
            optimizer = self._make_optimizer([*auxiliary, *others], size)
            kind = AuxiliaryPhase if self.memory is None else AuxiliarySequences
            fields = ("obs", "value_target", *self.auxiliary_fields)
            self.auxiliary = kind(
                self, model, self.checked_auxiliary_loss, optimizer, self.failure_of, fields
            )
            self.auxiliary.check_fits(self._store_bytes())

    def _check_auxiliary(self, model: PhasicActorCritic) -> None:
        """Refuses a model whose auxiliary value would teach the policy's encoder nothing."""
        name = type(model).__name__
        with torch.no_grad():
            _, *values = model.compute_auxiliary(self.inputs(self.sample_obs()))
        shapes = [tuple(value.shape) for value in values]
        if shapes != [(1,), (1,)]:
            raise ContractError(
                f"{name}.compute_auxiliary must return (logit, auxiliary value, value), both values of shape "
                f"(N,); for one observation the values have the shapes {shapes}. Use .squeeze(-1), and give "
                "further heads a method of their own, which auxiliary_loss calls"
            )
        policy = set(self.reached_by(model.compute_actor))
        if not policy & set(self.reached_by(lambda obs: model.compute_auxiliary(obs)[1])):
            empty = self.cfg.model.get("encoder_hidden_size_list") == []
            why = "; policy.model.encoder_hidden_size_list=[] leaves no encoder" if empty else ""
            raise ContractError(
                f"{name}.compute_auxiliary: no gradient of the auxiliary value reaches what the policy is "
                "computed from, so the auxiliary phase would teach it nothing; let both read the same "
                f"encoder{why}"
            )

    def reached_by(self, function: Callable[[Any], Any]) -> list[nn.Parameter]:
        """Returns the parameters that a gradient of ``function(obs)`` reaches, in the model's order."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        # cuDNN has no gradient of a recurrent layer in eval mode.
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            result = function(self.inputs(self.sample_obs()))
            parts = result if isinstance(result, tuple) else (result,)
            outputs = [leaf for part in parts for leaf in tree_leaves(part)]
            total = torch.stack([output.sum() for output in outputs]).sum()
        gradients = torch.autograd.grad(total, parameters, allow_unused=True)
        return [p for p, gradient in zip(parameters, gradients, strict=True) if gradient is not None]

    def _store_bytes(self) -> int:
        """Returns the bytes of a full auxiliary memory, including pi_old's distribution parameters.

        Fields that a subclass adds to a row are not in it: their size is known after the first rollout.
        """
        obs = self.sample_obs()
        with torch.no_grad():
            inputs = self.inputs(obs)
            logit = self.model.compute_actor(inputs)
            action = self.distribution(inputs, logit).mode()
        row = {
            "action": action,
            **{name: torch.empty(1) for name in NUMBERS},
            **{name: torch.empty(1, dtype=torch.bool) for name in ("terminated", "truncated", "valid")},
        }
        sample = {"obs": obs, "logit": logit, "value_target": torch.empty(1)}
        sample_bytes = bytes_of(sample | {name: row[name] for name in self.auxiliary_fields if name in row})
        if self.memory is not None:
            sample_bytes += bytes_of(self.memory.initial_state(1)) // self.memory.grid.length
        return sample_bytes * self.cfg.learn.aux_freq * self.cfg.collect.n_sample

    def _facts(self) -> dict[str, Any]:
        return {**super()._facts(), ONE_LOOP: self._has_one_loop(self.cfg)}

    def _implementations(self) -> list[str]:
        phrases = super()._implementations()
        if "learn" in self.fields and self.auxiliary is not None:
            name = self.auxiliary.optimizer.gradients.name_of(self.checked_auxiliary_loss)
            if phrases[-1] != f"gradients: {name}":
                phrases.append(f"in the auxiliary phase: {name}")
        return phrases

    def describe(self) -> list[str]:
        lines = super().describe()
        if "learn" in self.fields and self.auxiliary is not None:
            iterations = self.cfg.learn.aux_freq
            samples = iterations * self.cfg.collect.n_sample
            about = "" if self.cfg.collect.n_episode is None else "about "
            size = self._store_bytes()
            taken = f"{size / 2**20:,.1f} MiB" if size >= 2**20 else f"{size / 2**10:,.1f} KiB"
            lines.append(
                f"auxiliary phase: every {iterations} iterations; its memory of {about}{samples:,} samples "
                f"takes {taken} when full"
            )
        return lines

    def training_loops(self) -> list[Loop]:
        if self.value_optimizer is None:
            return super().training_loops()
        value, policy = self.sources["value"], self.sources["policy"]
        return [
            Loop(
                value,
                self.value_optimizer,
                self.critic_loss,
                metrics=("value_loss",),
                grad_norm="value_grad_norm",
                epochs=None,
            ),
            Loop(policy, self.optimizer, self.actor_loss, metrics=tuple(self._policy_metric_names())),
        ]

    def optimized_losses(self) -> list[tuple[Optimizer, Loss]]:
        steps = super().optimized_losses()
        if self.auxiliary is not None:
            steps.append((self.auxiliary.optimizer, self.checked_auxiliary_loss))
        return steps

    def actor_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the policy loss, on the model's fresh distribution."""
        logit = self.model.compute_actor(batch.obs)
        return self._policy_term(batch.with_outputs(dist=self.distribution(batch.obs, logit)), logit)

    def auxiliary_closed_form_options(self) -> AuxiliaryOptions | None:
        """Returns those of :meth:`auxiliary_loss`; see ``PPOPolicy.closed_form_options``.

        None also if minibatches come in parts, which the closed form does not add up.
        """
        learn = self.cfg.learn
        weights = (learn.aux_bc_weight, learn.aux_value_weight)
        if learn.aux_grad_accum > 1 or not are_numbers(weights):
            return None
        return AuxiliaryOptions(*map(float, weights))

    def auxiliary_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss of the auxiliary phase and its terms (eqs. 3 and 4 of the paper).

            L = L_aux + beta_clone KL(pi_old || pi) + aux_value_weight L_V
            L_aux = 0.5 mean((V_aux - R)^2),   L_V = 0.5 mean((V - R)^2)

        No term is clipped. A subclass may add terms; its batches also have the ``auxiliary_fields`` of the
        rollout.

        Shapes:
            obs: (N, ...), normalised; old_logit: of pi_old; value_target: (N,), normalised under
            value_norm
        """
        learn, model = self.cfg.learn, cast(PhasicActorCritic, self.model)
        logit, auxiliary, value = model.compute_auxiliary(batch.obs)
        old, new = (self.distribution(batch.obs, each) for each in (batch.old_logit, logit))
        terms = {
            "auxiliary_loss": losses.value_error(auxiliary, batch.value_target).mean(),
            "behavioral_cloning_loss": old.kl(new).mean(),
            "aux_value_loss": losses.value_error(value, batch.value_target).mean(),
        }
        weights = (1.0, learn.aux_bc_weight, learn.aux_value_weight)
        total = sum(weight * term for weight, term in zip(weights, terms.values(), strict=True))
        return total, terms

    def checked_auxiliary_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the auxiliary loss; refuses one that breaks the contract of losses."""
        return checked_loss(self.auxiliary_loss(batch), self, "auxiliary_loss")

    def _auxiliary_phase(self, data: Rollout) -> dict[str, float]:
        metrics = {
            "policy_cur_lr": self.optimizer.learning_rate,
            "value_cur_lr": (self.value_optimizer or self.optimizer).learning_rate,
            "policy_adv_abs_max": float(data.advantage[data.valid].abs().max()),
        }
        if self.auxiliary is None:
            return metrics
        self.auxiliary.remember(data, self.iteration)
        if not self.cfg.on_policy:
            self.auxiliary.renew_targets(self.buffers.get("value", self.buffers["policy"]))
        metrics["aux_memory"] = float(self.auxiliary.stored.size)
        return metrics | (self.auxiliary.run() if self.auxiliary.is_due else {})

    def forget_stored(self) -> list[str]:
        names = super().forget_stored()
        if self.auxiliary is None or not self.auxiliary.stored.starts:
            return names
        self.auxiliary.forget()
        return [*names, "auxiliary memory"]

    def _apply_learning_rate(self) -> None:
        super()._apply_learning_rate()
        if self.value_optimizer is not None:
            self.value_optimizer.learning_rate = self.optimizer.learning_rate
        if self.auxiliary is not None:
            base = self.cfg.learn.aux_learning_rate or self.learning_rate
            self.auxiliary.optimizer.learning_rate = base * self._schedule("lr")

    def _monitor_vars_learn(self) -> list[str]:
        return [
            *super()._monitor_vars_learn(),
            *("policy_cur_lr", "value_cur_lr", "policy_adv_abs_max"),
            *([] if self.auxiliary is None else ["aux_memory", *self.auxiliary.metric_names()]),
        ]

    def _state(self) -> dict[str, Any]:
        parts = super()._state()
        if "learn" in self.fields:
            parts |= {"value_optimizer": self.value_optimizer, "auxiliary": self.auxiliary}
        return parts


@POLICY_REGISTRY.register("ppg_offpolicy")
class PPGOffPolicy(PPGPolicy):
    """PPG whose policy phase draws from replay buffers: the same code with other defaults."""

    config: dict[str, Any] = dict(on_policy=False, learn=dict(aux_freq=16))
