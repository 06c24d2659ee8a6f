"""The auxiliary phase of PPG (arXiv:2009.04416, section 2.2): distil the value into the policy's encoder.

E_aux epochs of ``PPGPolicy.auxiliary_loss`` over all samples since the last phase. pi_old is the policy at
the start of the phase, the targets R are those of collection (off-policy with V-trace: the latest).

Shapes: M samples in the memory, N in a minibatch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ding_lite.buffer import ReplayBuffer, SampleMemory
from ding_lite.models.phasic import PhasicActorCritic
from ding_lite.policies.actor_critic import ActorCriticPolicy
from ding_lite.policies.postmortem import Taken, raise_non_finite
from ding_lite.policies.updater import Loss, Metrics, Updater, mean_metrics
from ding_lite.rl.returns import explained_variance
from ding_lite.rollout import Batch, Rollout, flatten_rows, map_tree, minibatches
from ding_lite.seeding import GeneratorState, torch_generator

MEASURED = 4096  # samples of the memory, at most, that the KL and the heads are measured on


class AuxiliaryPhase:
    """The memory, the optimiser and the epochs of the auxiliary phase.

    Args:
        policy: whose scales, distributions and config it works with.
        model: of the policy.
        loss: of a minibatch as :meth:`batch` makes it; ``PPGPolicy.auxiliary_loss``.
        updater: over all the model's parameters; its moments outlive the phase.
    """

    def __init__(
        self, policy: ActorCriticPolicy, model: PhasicActorCritic, loss: Loss, updater: Updater
    ) -> None:
        self.policy, self.model, self.loss, self.updater = policy, model, loss, updater
        self.learn = policy.cfg.learn
        self.order = torch_generator(policy.seed, "policy", "auxiliary")
        self.memory = SampleMemory()

    def remember(self, rollout: Rollout, iteration: int) -> None:
        """Keeps the valid samples of this iteration's rollout (T, B), on the host, observations raw."""
        rows = rollout.valid.flatten().nonzero().squeeze(-1)
        flat = flatten_rows({"obs": rollout.obs, "value_target": rollout.value_target}, rows)
        whole = self.policy.cfg.collect.n_episode is not None  # and longer ones may come
        planned = self.learn.aux_freq * (len(rows) if whole else rollout.valid.numel())
        self.memory.reserve(max(planned, self.memory.size + len(rows)))
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
        memory, learn = self.memory, self.learn
        history: list[Metrics] = []
        taken: list[Taken] = []
        old_logit = self.policy._logits(memory.all()["obs"], lead=1)
        measured = torch.arange(0, memory.size, -(-memory.size // MEASURED))
        found = [self._measure(measured, old_logit)]
        for _ in range(learn.aux_train_epoch):
            for index in minibatches(memory.size, learn.aux_batch_size or learn.batch_size, self.order):
                parts = [
                    self.batch(part, old_logit, share=len(part) / len(index))
                    for part in index.chunk(learn.aux_grad_accum)
                ]
                told_of = self.updater.step(self.loss, *parts)
                history.append({"aux_grad_norm" if k == "grad_norm" else k: v for k, v in told_of.items()})
                taken.append((self.loss, partial(self.batch, index, old_logit)))
            found.append(self._measure(measured, old_logit))
            if self.updater.on_host:
                raise_non_finite(self.policy, self.updater, taken, history)
        raise_non_finite(self.policy, self.updater, taken, history)
        memory.clear()
        kls, auxiliary, value = torch.stack(found, 1).tolist()
        return {
            **{f"aux_kl_epoch_{epoch}": kl for epoch, kl in enumerate(kls)},
            "aux_explained_variance_before": auxiliary[0],
            "aux_explained_variance": auxiliary[-1],
            "value_explained_variance": value[-1],
            **mean_metrics(history),
            "aux_updates": float(len(history)),
            "aux_cur_lr": self.updater.learning_rate,
        }

    def batch(self, index: Tensor, old_logit: Any, share: float = 1.0) -> Batch:
        """Returns samples of the memory as the loss takes them: on the device, in normalised units.

        Args:
            index: (N,), of the samples.
            old_logit: the parameters of pi_old on all samples of the memory.
            share: of the minibatch that these samples are.
        """
        policy = self.policy
        sample, place = self.memory.read(index, policy.device), index.to(policy.device)
        return Batch(
            obs=policy._inputs(sample["obs"]),
            old_logit=map_tree(lambda leaf: leaf[place], old_logit),
            value_target=_normalized(policy, sample["value_target"]),
            share=torch.full((), share, device=policy.device),
        )

    @torch.no_grad()
    def _measure(self, index: Tensor, old_logit: Any) -> Tensor:
        """Returns the KL from the old policy, and the explained variance of both value heads.

        Shapes:
            index: (N,), of the samples -> (3,): KL, auxiliary value, value
        """
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
        variances = [explained_variance(found[name], target) for name in ("auxiliary", "value")]
        return torch.stack([found["kl"].mean(), *variances])

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


def _normalized(policy: ActorCriticPolicy, target: Tensor) -> Tensor:
    return target if policy.value_norm is None else policy.value_norm.normalize(target)
