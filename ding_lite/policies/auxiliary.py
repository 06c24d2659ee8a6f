"""The auxiliary phase of PPG (arXiv:2009.04416, section 2.2): distil the value into the policy's encoder.

E_aux epochs of ``PPGPolicy.auxiliary_loss`` over all samples since the last phase. pi_old is the policy at
the start of the phase, the targets R are those of collection (off-policy with V-trace: the latest).

Shapes: M samples in the auxiliary memory, N in a minibatch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ding_lite.data.buffer import ReplayBuffer
from ding_lite.data.minibatches import Batch, agreed_sizes, permutation
from ding_lite.data.rollout import Rollout, as_field, bytes_of, flat, flat_at, places
from ding_lite.data.sample_memory import AuxiliaryRollouts, AuxiliarySamples, host_memory
from ding_lite.data.sequences import SequenceTable, part_count, split_evenly
from ding_lite.errors import ConfigError, ContractError
from ding_lite.fast.gradients import Loss
from ding_lite.models.actor_critic import PhasicActorCritic
from ding_lite.policies.actor_critic import ActorCriticPolicy
from ding_lite.policies.optimizer import Failure, Optimizer, in_mode
from ding_lite.rl.returns import explained_variance
from ding_lite.rl.seeding import GeneratorState
from ding_lite.trees import map_tree

MEASURED = 1024  # samples of the auxiliary memory, at most, that the KL and the heads are measured on


class AuxiliaryPhase:
    """The stored samples, the optimiser and the epochs of the auxiliary phase.

    Args:
        policy: whose scales, distributions and config are used.
        model: of the policy.
        loss: of a minibatch that :meth:`batch` makes.
        optimizer: of all parameters that the loss reaches; its moments outlive the phase.
        failure: makes the error for a step that is not finite.
        fields: of the rollout that are stored: obs, value_target, and those that only the loss reads.
    """

    def __init__(
        self,
        policy: ActorCriticPolicy,
        model: PhasicActorCritic,
        loss: Loss,
        optimizer: Optimizer,
        failure: Failure,
        fields: Sequence[str],
    ) -> None:
        self.policy = policy
        self.model = model
        self.loss = loss
        self.optimizer = optimizer
        self.failure = failure
        self.fields = fields
        self.generator = policy.own_generator("auxiliary", saved_by_part=True)
        self.stored: Any = self._new_store()

    @property
    def learn(self) -> Any:
        """``policy.learn`` of the config."""
        return self.policy.cfg.learn

    def _new_store(self) -> Any:
        return AuxiliarySamples()

    def remember(self, rollout: Rollout, iteration: int) -> None:
        """Stores the valid samples of this iteration's rollout (T, B) on the host, with raw observations."""
        place = places(rollout.valid)
        samples = flat_at(self._stored_fields(rollout), place)
        whole = self.policy.cfg.collect.n_episode is not None  # later rollouts may be longer
        planned = self.learn.aux_freq * (len(place) if whole else rollout.valid.numel())
        capacity = max(planned, self.stored.size + len(place))
        if capacity > self.stored.capacity and len(place):
            self.check_fits(capacity * bytes_of(map_tree(lambda leaf: leaf[:1], samples)))
        self.stored.reserve(capacity)
        self.stored.append(iteration, map_tree(Tensor.cpu, samples))

    def forget(self) -> None:
        """Drops the stored samples; later ones may have other fields."""
        self.stored = self._new_store()

    def check_fits(self, needed: int) -> None:
        """Raises ConfigError if a full memory of ``needed`` bytes exceeds the free memory of the host."""
        free = host_memory()
        if free is not None and needed > free:
            raise ConfigError(
                f"policy.learn.aux_freq: the auxiliary memory of {self.learn.aux_freq} iterations of "
                f"{self.policy.cfg.collect.n_sample} samples takes {needed / 2**30:.1f} GiB, and "
                f"{free / 2**30:.1f} GiB are free; lower aux_freq or collect.n_sample"
            )

    def _stored_fields(self, rollout: Rollout) -> dict[str, Any]:
        missing = [name for name in self.fields if name not in rollout]
        if missing:
            raise ContractError(
                f"{type(self.policy).__name__}.auxiliary_fields: a rollout has no {missing[0]!r}; it has "
                f"{', '.join(sorted(rollout.keys()))}"
            )
        return {name: rollout[name] for name in self.fields}

    def renew_targets(self, buffer: ReplayBuffer) -> None:
        """Replaces the targets of stored rollouts by those of the rollouts that a buffer still has."""
        if buffer.data is None:
            return
        for version, start in self.stored.starts.items():
            columns = buffer.version == version
            targets = buffer.data.value_target[:, columns][buffer.data.valid[:, columns]]
            self.stored.write(start, {"value_target": targets.cpu()})

    @property
    def is_due(self) -> bool:
        """Whether ``aux_freq`` iterations are stored."""
        return len(self.stored.starts) >= self.learn.aux_freq

    def run(self) -> dict[str, float]:
        """Trains on the stored samples, drops them, and returns the metrics.

        Among them are the KL and the explained variances before and after the phase.
        """
        stored, learn = self.stored, self.learn
        old_logit = self.old_logits()
        measured = self._measured()
        measures = [self._measure(measured, old_logit)]
        with self.optimizer.phase(self.failure) as steps:
            for _ in range(learn.aux_train_epoch):
                with in_mode(self.model, training=self.policy.has_modes):
                    for index in self.minibatches(learn.aux_batch_size or learn.batch_size):
                        parts = [self.batch(part, old_logit) for part in self._parts(index)]
                        steps.take(self.loss, *parts, remake=partial(self.batch, index, old_logit))
                measures.append(self._measure(measured, old_logit))
                if self.optimizer.on_host:
                    steps.check()
        stored.clear()
        kls, auxiliary, value = torch.stack(measures, 1).tolist()
        means = steps.mean_metrics()
        means["aux_grad_norm"] = means.pop("grad_norm")
        return {
            **{f"aux_kl_epoch_{epoch}": kl for epoch, kl in enumerate(kls)},
            "aux_explained_variance_before": auxiliary[0],
            "aux_explained_variance": auxiliary[-1],
            "value_explained_variance": value[-1],
            **means,
            "aux_updates": float(len(steps.history)),
            "aux_cur_lr": self.optimizer.learning_rate,
        }

    def old_logits(self) -> Any:
        """Returns the parameters of the policy as it is now on all samples (M, ...)."""
        return self.policy.logits(self.stored.all()["obs"])

    def _measured(self) -> Tensor:
        """Returns samples, evenly spaced, that the phase is measured on."""
        return torch.arange(0, self.stored.size, -(-self.stored.size // MEASURED))

    def minibatches(self, batch_size: int) -> Sequence[Tensor]:
        """Returns all samples in random order, a tensor (N,) for each minibatch."""
        sizes = agreed_sizes(self.stored.size, batch_size, self.policy.ranks)
        return permutation(self.stored.size, self.generator).split(sizes)

    def _parts(self, index: Tensor) -> Sequence[Tensor]:
        """Returns a minibatch in the parts that go through the network one by one."""
        return index.chunk(self.learn.aux_grad_accum)

    def batch(self, index: Tensor, old_logit: Any) -> Batch:
        """Returns stored samples for the loss: on the device, in normalised units.

        Args:
            index: (N,), of the samples.
            old_logit: the parameters of pi_old on all stored samples.
        """
        samples = self.stored.read(index, self.policy.device)
        samples["obs"] = self.policy.inputs(samples["obs"])
        return self._batch(samples, index, old_logit)

    def _batch(self, samples: dict[str, Any], index: Tensor, old_logit: Any) -> Batch:
        """Returns samples (N, ...) with the model's inputs; ``index`` are their rows in ``old_logit``."""
        device = self.policy.device
        rows = index.to(device)
        fields = {
            **{name: x if name == "obs" else as_field(x) for name, x in samples.items()},
            "old_logit": map_tree(lambda leaf: leaf[rows], old_logit),
            "value_target": self.policy.normalized_values(samples["value_target"]),
        }
        return Batch(**fields)

    @torch.no_grad()
    def _measure(self, index: Tensor, old_logit: Any) -> Tensor:
        """Returns the KL from the old policy, and the explained variance of both value heads.

        Shapes:
            index: (N,), of the samples -> (3,): KL, auxiliary value, value
        """
        policy = self.policy
        sample = self.stored.read(index, policy.device)
        place = index.to(policy.device)
        old = map_tree(lambda leaf: leaf[place], old_logit)
        found = policy.in_chunks(self._outputs, sample["obs"], old)
        return self._measures(found, policy.normalized_values(sample["value_target"]))

    def _outputs(self, obs: Any, old: Any) -> dict[str, Tensor]:
        """Returns the KL (N,) from the distributions ``old``, the auxiliary values and the values."""
        logit, auxiliary, value = self.model.compute_auxiliary(obs)
        kl = self.policy.distribution(obs, old).kl(self.policy.distribution(obs, logit))
        return {"kl": kl, "auxiliary": auxiliary, "value": value}

    def _measures(self, found: Mapping[str, Tensor], target: Tensor) -> Tensor:
        variances = [explained_variance(found[name], target) for name in ("auxiliary", "value")]
        return torch.stack([found["kl"].mean(), *variances])

    def metric_names(self) -> list[str]:
        """Returns the names of the metrics of :meth:`run`."""
        return [
            *("auxiliary_loss", "behavioral_cloning_loss", "aux_value_loss"),
            *(f"aux_kl_epoch_{epoch}" for epoch in range(self.learn.aux_train_epoch + 1)),
            *("aux_explained_variance_before", "aux_explained_variance", "value_explained_variance"),
            *("aux_grad_norm", "aux_updates", "aux_cur_lr"),
        ]

    def state_dict(self) -> dict[str, Any]:
        return {
            "memory": self.stored.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "order": GeneratorState(self.generator).state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.stored.load_state_dict(state["memory"])
        self.optimizer.load_state_dict(state["optimizer"])
        GeneratorState(self.generator).load_state_dict(state["order"])


class AuxiliarySequences(AuxiliaryPhase):
    """The auxiliary phase of a policy with memory, on whole sequences (``data.sequences``).

    An index is that of a sequence of all stored rollouts.
    """

    stored: AuxiliaryRollouts

    def _new_store(self) -> AuxiliaryRollouts:
        assert self.policy.memory is not None
        return AuxiliaryRollouts(self.policy.memory.grid)

    def remember(self, rollout: Rollout, iteration: int) -> None:
        fields = self._stored_fields(rollout)
        fields |= {name: rollout[name] for name in AuxiliaryRollouts.FIELDS}
        if not self.stored.starts:
            self.check_fits(self.learn.aux_freq * bytes_of(fields))
        self.stored.append(iteration, fields)

    def renew_targets(self, buffer: ReplayBuffer) -> None:
        if buffer.data is not None:
            for version in self.stored.starts:
                columns = buffer.version == version
                self.stored.write_targets(version, buffer.data.value_target[:, columns])

    def old_logits(self) -> Any:
        """Returns the parameters (T C, ...) of the policy as it is now; zeros where rows are not valid."""
        return flat(self.policy.rollout_logits(self.stored.data))

    @property
    def _table(self) -> SequenceTable:
        return self.stored.table()

    def _measured(self) -> Tensor:
        table = self._table
        return torch.arange(0, len(table), -(-self.stored.size // MEASURED))

    def minibatches(self, batch_size: int) -> Sequence[Tensor]:
        counts = self._table.counts
        order = permutation(len(counts), self.generator)
        parts = self.policy.ranks.smallest(part_count(counts, batch_size))
        return split_evenly(order, counts[order], parts)

    def _parts(self, index: Tensor) -> Sequence[Tensor]:
        return split_evenly(index, self._table.counts[index], min(len(index), self.learn.aux_grad_accum))

    def batch(self, index: Tensor, old_logit: Any) -> Batch:
        """Returns stored sequences for the loss.

        Args:
            index: (S,), of the sequences.
            old_logit: the parameters (T C, ...) of pi_old.
        """
        policy, data, packed = self.policy, self.stored.data, self._table.packed(index)
        assert policy.memory is not None
        others = {name: data[name] for name in self.fields if name != "obs"}
        samples = map_tree(lambda leaf: leaf.flatten(0, 1)[packed.rows].to(policy.device), others)
        samples["obs"] = policy.memory.packed_inputs(packed, data)
        return self._batch(samples, packed.rows, old_logit)

    @torch.no_grad()
    def _measure(self, index: Tensor, old_logit: Any) -> Tensor:
        assert self.policy.memory is not None
        batches = [
            self.batch(part, old_logit)
            for part in self.policy.memory.chunks(index, self._table.counts[index], self.stored.data.obs)
        ]
        found = [self._outputs(batch.obs, batch.old_logit) for batch in batches]
        joined = {name: torch.cat([outputs[name] for outputs in found]) for name in found[0]}
        return self._measures(joined, torch.cat([batch.value_target for batch in batches]))
