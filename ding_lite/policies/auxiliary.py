"""The auxiliary phase of PPG (arXiv:2009.04416, section 2.2): distil the value into the policy's encoder.

    L = L_aux + beta_clone KL(pi_old || pi) + aux_value_weight L_V                   (eqs. 3 and 4)
    L_aux = 0.5 mean((V_aux - R)^2),   L_V = 0.5 mean((V - R)^2)

over all samples since the last phase, for E_aux epochs. pi_old is the policy at the start of the phase,
the targets R are those of collection (off-policy with V-trace: the latest). Nothing is clipped.

Shapes: M samples in the memory, N in a minibatch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ding_lite.buffer import ReplayBuffer, SampleMemory
from ding_lite.models.phasic import PhasicActorCritic
from ding_lite.policies.actor_critic import ActorCriticPolicy
from ding_lite.policies.postmortem import non_finite_step
from ding_lite.policies.updater import Updater, mean_metrics
from ding_lite.rl import losses
from ding_lite.rl.returns import explained_variance
from ding_lite.rollout import Batch, Rollout, flatten_rows, map_tree, minibatches
from ding_lite.seeding import GeneratorState, torch_generator

MEASURED = 4096  # samples of the memory, at most, that the KL and the heads are measured on


class AuxiliaryPhase:
    """The memory, the optimiser and the epochs of the auxiliary phase.

    Args:
        policy: whose scales, distributions and config it works with.
        model: of the policy.
        updater: over all the model's parameters; its moments outlive the phase.
    """

    def __init__(self, policy: ActorCriticPolicy, model: PhasicActorCritic, updater: Updater) -> None:
        self.policy, self.model, self.updater, self.learn = policy, model, updater, policy.cfg.learn
        self.order = torch_generator(policy.seed, "policy", "auxiliary")
        self.memory = SampleMemory()

    def remember(self, rollout: Rollout, iteration: int) -> None:
        """Keeps the valid samples of this iteration's rollout (T, B), on the host, observations raw."""
        rows = rollout.valid.flatten().nonzero().squeeze(-1)
        flat = flatten_rows({"obs": rollout.obs, "value_target": rollout.value_target}, rows)
        self.memory.reserve(self.learn.aux_freq * rollout.valid.numel())
        self.memory.append(iteration, map_tree(Tensor.cpu, flat))

    def renew_targets(self, buffer: ReplayBuffer) -> None:
        """Takes over the targets of those remembered rollouts that a buffer still has."""
        if buffer.data is None:
            return
        for version, start in self.memory.starts.items():
            columns = buffer.version == version
            targets = buffer.data.value_target[:, columns][buffer.data.valid[:, columns]]
            self.memory.write(start, {"value_target": targets.cpu()})

    @property
    def is_due(self) -> bool:
        """Whether ``aux_freq`` iterations are in the memory."""
        return len(self.memory.starts) >= self.learn.aux_freq

    def run(self) -> dict[str, float]:
        """Trains on the memory, forgets it, and returns the means of the metrics, and what changed."""
        memory, learn, history = self.memory, self.learn, []
        old_logit = self.policy._logits(memory.all()["obs"], lead=1)
        measured = torch.arange(0, memory.size, -(-memory.size // MEASURED))
        before = self._measure(measured, old_logit)
        told = {"aux_kl_epoch_0": before["kl"]}
        for epoch in range(1, learn.aux_train_epoch + 1):
            taken: list[Tensor] = []
            for index in minibatches(memory.size, learn.aux_batch_size or learn.batch_size, self.order):
                metrics: dict[str, Tensor] = {}
                norm = self.updater.step(self._losses(index, old_logit, metrics))
                history.append(metrics | {"aux_grad_norm": norm})
                taken.append(index)
            self._raise_if_bad(taken, history, old_logit)
            after = self._measure(measured, old_logit)
            told[f"aux_kl_epoch_{epoch}"] = after["kl"]
        memory.clear()
        return {
            **told,
            "aux_explained_variance_before": before["auxiliary"],
            "aux_explained_variance": after["auxiliary"],
            "value_explained_variance": after["value"],
            **mean_metrics(history),
            "aux_updates": float(len(history)),
            "aux_cur_lr": self.updater.learning_rate,
        }

    def _raise_if_bad(self, taken: list[Tensor], history: list[dict[str, Tensor]], old_logit: Any) -> None:
        """Ends an epoch, whose minibatches were the samples ``taken``."""
        bad = self.updater.first_bad_step()
        if bad is not None:
            sample = self.memory.read(taken[bad], self.policy.device)
            old = map_tree(lambda leaf: leaf[taken[bad].to(self.policy.device)], old_logit)
            metrics = history[len(history) - len(taken) + bad]
            raise non_finite_step(self.policy, "auxiliary", Batch(**sample, old_logit=old), metrics, bad)

    def _losses(self, index: Tensor, old_logit: Any, metrics: dict[str, Tensor]) -> Iterator[Tensor]:
        """Yields the loss of each part of a minibatch, weighted by its share; sums its metrics."""
        for part in index.chunk(self.learn.aux_grad_accum):
            share = len(part) / len(index)
            kl, auxiliary, value = self._terms(part, old_logit)
            named = {"auxiliary_loss": auxiliary, "behavioral_cloning_loss": kl, "aux_value_loss": value}
            for name, term in named.items():
                metrics[name] = metrics.get(name, 0.0) + share * term.detach()
            yield share * (auxiliary + self.learn.aux_bc_weight * kl + self.learn.aux_value_weight * value)

    def _terms(self, index: Tensor, old_logit: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Returns :func:`auxiliary_terms` of the samples ``index`` (N,) of the memory."""
        place = index.to(self.policy.device)
        old = map_tree(lambda leaf: leaf[place], old_logit)
        return auxiliary_terms(
            self.policy, self.model, old_logit=old, **self.memory.read(index, self.policy.device)
        )

    @torch.no_grad()
    def _measure(self, index: Tensor, old_logit: Any) -> dict[str, float]:
        """Returns the KL from the old policy, and the explained variance of both value heads."""
        policy = self.policy
        sample = self.memory.read(index, policy.device)
        place = index.to(policy.device)

        def outputs(obs: Any, old: Any) -> dict[str, Tensor]:
            logit, auxiliary, value = self.model.compute_auxiliary(obs)
            kl = policy._distribution(obs, old).kl(policy._distribution(obs, logit))
            return {"kl": kl, "auxiliary": auxiliary, "value": value}

        old = map_tree(lambda leaf: leaf[place], old_logit)
        found = policy._chunked(outputs, sample["obs"], 1, old)
        target = _normalized(policy, sample["value_target"])
        told = torch.stack(
            [
                found["kl"].mean(),
                explained_variance(found["auxiliary"], target),
                explained_variance(found["value"], target),
            ]
        )
        return dict(zip(("kl", "auxiliary", "value"), told.tolist(), strict=True))

    def metric_names(self) -> list[str]:
        """Returns the names of what :meth:`run` gives."""
        return [
            *("auxiliary_loss", "behavioral_cloning_loss", "aux_value_loss"),
            *(f"aux_kl_epoch_{epoch}" for epoch in range(self.learn.aux_train_epoch + 1)),
            *("aux_explained_variance_before", "aux_explained_variance", "value_explained_variance"),
            *("aux_grad_norm", "aux_updates", "aux_cur_lr"),
        ]

    def state_dict(self) -> dict[str, Any]:
        return {
            "memory": self.memory.state_dict(),
            "optimizer": self.updater.state_dict(),
            "order": GeneratorState(self.order).state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.memory.load_state_dict(state["memory"])
        self.updater.load_state_dict(state["optimizer"])
        GeneratorState(self.order).load_state_dict(state["order"])


def auxiliary_terms(
    policy: ActorCriticPolicy, model: PhasicActorCritic, obs: Any, old_logit: Any, value_target: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns KL(pi_old || pi), L_aux and L_V of a minibatch, each a mean.

    Args:
        policy: whose scales and distributions are used.
        model: its model.
        obs: raw.
        old_logit: the parameters of pi_old on them.
        value_target: raw.

    Shapes:
        obs: (N, ...), value_target: (N,) -> ()
    """
    inputs = policy._inputs(obs)
    logit, auxiliary, value = model.compute_auxiliary(inputs)
    old, target = policy._distribution(inputs, old_logit), _normalized(policy, value_target)
    return (
        old.kl(policy._distribution(inputs, logit)).mean(),
        losses.value_error(auxiliary, target).mean(),
        losses.value_error(value, target).mean(),
    )


def _normalized(policy: ActorCriticPolicy, target: Tensor) -> Tensor:
    return target if policy.value_norm is None else policy.value_norm.normalize(target)
