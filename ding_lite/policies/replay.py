"""Minibatches from one fresh rollout, or from the rollouts of several iterations in a replay buffer.

Both use the same code: a fresh rollout is a buffer that holds it alone, from which each transition is drawn
``epoch_per_collect`` times. A stale rollout was collected by an older policy mu, so off-policy has two
ratios:

    r = pi / pi_prox    the ratio that is clipped; pi_prox is the policy at the start of the iteration
    w = pi_prox / mu    the weight of a sample (decoupled PPO, arXiv:2110.00641, eq. 9); 1 if it is fresh

With ``proximal="behaviour"``, r = pi / mu and w = 1: stale samples start outside the clip. Advantages are
those of collection, or are computed again by V-trace with the weights w (arXiv:1802.01561); see
``rl.returns``.

Shapes: T steps, C columns of the buffer, N = live transitions of T * C.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ding_lite.data.buffer import Limits, ReplayBuffer
from ding_lite.data.minibatches import Batch, TrainingSet, minibatch_sizes, scales_over_ranks
from ding_lite.data.rollout import Rollout, flat, flat_at, places, time_major_fields
from ding_lite.data.sequences import SequenceSet
from ding_lite.policies.actor_critic import ActorCriticPolicy
from ding_lite.policies.diagnostics import OLDEST_SHOWN, describe_buffer
from ding_lite.policies.optimizer import in_mode
from ding_lite.rl import losses

TRACE_BOUND = 1.0  # c-bar and rho-bar of V-trace
CREDIT = ("value", "advantage", "value_target")


class ReplaySource:
    """Keeps the rollouts of a policy within limits, and draws minibatches from them.

    Args:
        policy: computes credit, log-probs and scales.
        limits: of the buffer.
        generator: draws the order of samples.
        prefix: of the names of its metrics.
        sections: keys below ``policy.other`` that set the limits, for messages.
        for_policy: whether a loss of the policy draws from it, which may need the logits of pi_prox.

    Attributes:
        buffer: the rollouts.
        metrics: of the buffer in the last passes.
    """

    def __init__(
        self,
        policy: ActorCriticPolicy,
        limits: Limits,
        generator: torch.Generator,
        prefix: str,
        sections: Sequence[str] = ("replay_buffer",),
        *,
        for_policy: bool = True,
    ) -> None:
        self.policy = policy
        self.cfg = policy.cfg
        self.generator = generator
        self.prefix, self.sections = prefix, sections
        self.for_policy = for_policy
        self.buffer = ReplayBuffer(limits, policy.device)
        self.metrics: dict[str, float] = {}
        self._prioritizes = bool(self.cfg.get("priority"))
        self._ratio: Tensor | None = None  # pi_prox / mu (T, C); None if all rollouts are fresh
        self._proximal: dict[str, Any] = {}  # fields (T, C, ...) that replace those of collection

    @torch.no_grad()
    def push(self, rollout: Rollout) -> None:
        """Adds a fresh rollout with credit. The policy as it is now becomes pi_prox of the iteration."""
        policy, buffer, learn = self.policy, self.buffer, self.cfg.learn
        buffer.push(rollout, self._priority(rollout.advantage) if self._prioritizes else None)
        data, self._ratio, self._proximal = buffer.data, None, {}
        if buffer.has_stale:
            log_prob = data.log_prob.clone()  # that of fresh rows is by the policy as it is now
            stale = places(data.valid & (buffer.age > 0))
            log_prob.view(-1)[stale] = policy.rollout_log_probs(data, stale)
            self._ratio = torch.exp(log_prob - data.log_prob).masked_fill(~data.valid, 1.0)
            if learn.proximal == "decoupled":
                weight = self._ratio.clamp(max=learn.weight_bound)
                self._proximal = {"log_prob": log_prob, "policy_weight": weight}
        if learn.kl_penalty and self.for_policy:
            self._proximal["old_logit"] = policy.rollout_logits(data)

    def _priority(self, advantage: Tensor) -> Tensor:
        # Never 0: the advantage of a sample may change.
        return (advantage.detach().abs() + 1e-6) ** self.cfg.other.replay_buffer.alpha

    def passes(self, clip_ratio: Tensor, *, values_moved: bool = False) -> Iterator[Iterator[Batch]]:
        """Yields passes over the live samples, until the iteration's steps are done or no sample is left.

        A pass takes each live sample once, in random order. With priority it has as many minibatches, each
        drawn without replacement in proportion to the priorities.

        Args:
            clip_ratio: (), for the metrics.
            values_moved: whether the value network has learned since the rollout was pushed.
        """
        buffer, data, ratio = self.buffer, self.buffer.data, self._ratio
        self.metrics = {}
        if not self.cfg.on_policy:
            described = describe_buffer(buffer, ratio, clip_ratio)
            self.metrics = {f"{self.prefix}_{name}": value for name, value in described.items()}
        weight = None if ratio is None else ratio.clamp(max=TRACE_BOUND)
        ranks = self.policy.ranks
        steps = ranks.smallest(buffer.planned_steps())
        place: Tensor | None = None
        samples: dict[str, Any] = {}
        training_set: Any = None
        while steps > 0:
            live = buffer.live_places()
            if ranks.any(not len(live)):
                break
            is_first = training_set is None
            # In the first pass over fresh rollouts, credit is by the newest network already.
            is_newest = is_first and ratio is None and not values_moved
            renews = self.renews_credit and not is_newest
            credit = self.renew_credit(data, weight) if renews else data
            moved = place is None or not (live is place or torch.equal(live, place))
            if moved:
                place, samples = live, self._samples(data, live, self._proximal)
            if ranks.any(moved or renews):
                training_set = self._training_set(data, samples, credit, live)
            if is_first:
                steps = self._fewer_steps(steps, len(live), training_set.count)
            planned = int(min(steps, training_set.count))
            if self._prioritizes:
                advantage = credit["advantage"].flatten()[live]
                yield self._prioritized(training_set, advantage, live, planned)
            else:
                drawn, minibatches = training_set.draw(planned, self.generator)
                buffer.use(live[drawn])
                yield minibatches
            steps -= planned
        if math.isfinite(steps):
            self.metrics[f"{self.prefix}_missing_updates"] = float(steps)

    def _fewer_steps(self, steps: float, samples: int, count: int) -> float:
        """Returns fewer steps if minibatches of whole sequences have 1.5 times ``batch_size`` or more.

        Args:
            steps: planned for minibatches of ``batch_size``.
            samples: of a pass.
            count: number of its minibatches.
        """
        learn = self.cfg.learn
        if self.cfg.on_policy or learn.update_per_collect is not None:
            return steps
        share = learn.batch_size * count / samples
        return self.policy.ranks.smallest(float(steps if share > 2 / 3 else math.ceil(steps * share)))

    @property
    def renews_credit(self) -> bool:
        """Whether later passes over a rollout have values or targets of the newest network."""
        return bool(self.cfg.recompute_adv or self.cfg.nstep_return)

    def renew_credit(self, data: Rollout, weight: Tensor | None) -> Any:
        """Returns value, advantage and target; with ``weight`` they also replace those in ``data``.

        The newest network computes all of them with ``recompute_adv``, else the target alone.

        Args:
            data: (T, C).
            weight: (T, C), min(1, pi/mu) of each step, for V-trace; None: of fresh rollouts.
        """
        credit = self.policy.credit(data, weight)
        if not self.cfg.recompute_adv:
            credit |= {"value": data.value, "advantage": data.advantage}
        if weight is not None:
            for name, field in credit.items():  # the auxiliary phase reads the latest targets there
                setattr(data, name, field)
        return credit

    def training_set(self, data: Rollout) -> TrainingSet | SequenceSet:
        """Returns the valid rows of a rollout (T, C) with credit in the units of the losses."""
        place = places(data.valid)
        return self._training_set(data, self._samples(data, place, {}), data, place)

    @torch.no_grad()
    def _samples(self, data: Rollout, place: Tensor, extra: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields (N, ...) of a training set without credit.

        Args:
            data: (T, C).
            place: (N,), of the flattened (T, C).
            extra: more fields (T, C, ...); they replace fields of the same name.
        """
        policy = self.policy
        fields = time_major_fields(data) | dict(extra)
        left_out = CREDIT if policy.memory is None else (*CREDIT, "obs")
        samples = flat_at({name: x for name, x in fields.items() if name not in left_out}, place)
        if policy.memory is None:
            samples["obs"] = policy.inputs(samples["obs"])
        else:  # sequences choose their observations from all rows
            samples["obs"] = policy.scaled(flat(fields["obs"]))
        return samples

    @torch.no_grad()
    def _training_set(
        self, data: Rollout, samples: Mapping[str, Any], credit: Any, place: Tensor
    ) -> TrainingSet | SequenceSet:
        """Returns ``samples`` of ``data`` with the three fields of ``credit`` (T, C) at ``place``."""
        fields = {name: credit[name] for name in CREDIT}
        for name in ("value", "value_target"):
            fields[name] = self.policy.normalized_values(fields[name])
        fields = flat_at(fields, place)
        adv_norm = self.cfg.learn.adv_norm
        if adv_norm == "batch":
            (scale,) = scales_over_ranks([fields["advantage"]], self.policy.ranks)
            fields["advantage"] = losses.normalize_advantage(fields["advantage"], scale)
        fields = {**samples, **fields}
        normalizes = adv_norm in ("minibatch", True)
        if self.policy.memory is not None:
            return self.policy.memory.training_set(data, fields, place, normalizes=normalizes)
        size = self.cfg.learn.batch_size
        return TrainingSet(fields, size, normalizes=normalizes, ranks=self.policy.ranks)

    def _prioritized(
        self, training_set: TrainingSet, advantage: Tensor, place: Tensor, steps: int
    ) -> Iterator[Batch]:
        """Yields minibatches by priority, and renews the priorities of each after its step.

        Args:
            training_set: of the pass.
            advantage: (N,), of its samples, not normalised.
            place: (N,), of its samples in the flattened (T, C).
            steps: number of minibatches.
        """
        buffer, policy = self.buffer, self.policy
        scale = 1.0 if policy.value_norm is None else float(policy.value_norm.std)
        if policy.intrinsic is not None:
            scale *= policy.intrinsic.cfg.extrinsic_weight
        for _ in range(steps):
            unspent = buffer.uses.flatten()[place] < buffer.limits.max_use
            share = buffer.priority.flatten()[place] * unspent
            left = int(unspent.sum())
            size = minibatch_sizes(left, self.cfg.learn.batch_size)[0]
            index = torch.multinomial(share, size, generator=self.generator)
            buffer.use(place[index])
            batch = training_set.batch(index)
            if self.cfg.priority_IS_weight:
                batch = self._weighted(batch, left * share / share.sum(), unspent, index)
            # Minibatches are drawn between gradient steps, for which the model is in training mode.
            with torch.no_grad(), in_mode(policy.model, training=False):
                value = policy.fast.critic()(batch.obs)
            yield batch
            # An advantage falls by as much as the value of its state rises.
            newest = advantage[index] - scale * (value - batch.value)
            buffer.priority.view(-1)[place[index]] = self._priority(newest)

    def _weighted(self, batch: Batch, n_p: Tensor, unspent: Tensor, index: Tensor) -> Batch:
        """Returns a batch with the weights (N P)^-beta of its draws (arXiv:1511.05952, section 3.4)."""
        weight = n_p.clamp_min(1e-12) ** -self.cfg.other.replay_buffer.beta
        largest = weight[unspent].max()
        if self.policy.ranks.size > 1:
            largest = torch.as_tensor(-self.policy.ranks.smallest(-float(largest)))
        value_weight = weight[index] / largest.to(weight)
        stale_weight = batch.policy_weight
        policy_weight = value_weight * (1.0 if stale_weight is None else stale_weight)
        fields = {**batch.fields(), "value_weight": value_weight, "policy_weight": policy_weight}
        weighted = Batch(**fields)
        weighted.remake = partial(Batch, **fields)
        return weighted

    def metric_names(self) -> list[str]:
        """Returns the names of :attr:`metrics`; on fresh rollouts there are none."""
        if self.cfg.on_policy:
            return []
        names = ["samples", "age", "uses", "weight_mean", "weight_max", "missing_updates"]
        ages = range(min(self.buffer.limits.max_staleness, OLDEST_SHOWN) + 1)
        return [f"{self.prefix}_{name}" for name in (*names, *(f"outside_clip_age_{k}" for k in ages))]

    def describe(self) -> list[str]:
        """Returns a note if no sample is left for the next iteration; with priority some always are."""
        limits = self.buffer.limits
        drawn = (limits.steps or 0) * self.cfg.learn.batch_size
        if self.cfg.on_policy or self._prioritizes or drawn < limits.max_use * self.cfg.collect.n_sample:
            return []
        keys = " and ".join(f"policy.other.{section}.max_use" for section in self.sections)
        return [
            f"{self.prefix}: each transition is drawn {limits.max_use} times in its own iteration, and none "
            f"is left for the next; with a larger {keys} some are"
        ]
