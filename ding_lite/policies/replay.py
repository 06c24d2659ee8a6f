"""Where minibatches come from: one fresh rollout, or those of several iterations in a replay buffer.

Both are the same code: a fresh rollout is a buffer that holds it alone, each transition ``epoch_per_collect``
times. What is not fresh was collected by an older policy mu, so off-policy two ratios appear:

    r = pi / pi_prox    what is clipped; pi_prox is the policy at the start of the iteration
    w = pi_prox / mu    what weighs a sample (decoupled PPO, arXiv:2110.00641, eq. 9); 1 where it is fresh

``proximal="behaviour"`` is r = pi / mu and w = 1, so that stale samples start outside the clip. Advantages
are those of collection, or anew by V-trace with the weights w (arXiv:1802.01561), see ``rl.returns``.

Shapes: T steps, C columns of the buffer, N = live transitions of T * C.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ding_lite.buffer import Limits, ReplayBuffer
from ding_lite.models.towers import owns
from ding_lite.policies.actor_critic import ActorCriticPolicy
from ding_lite.policies.diagnosis import OLDEST_SHOWN, describe_buffer
from ding_lite.policies.minibatches import batch_at, batches_at
from ding_lite.rl import losses
from ding_lite.rollout import (
    Batch,
    Rollout,
    as_rollout,
    flatten_rows,
    minibatch_sizes,
    permutation,
    time_major_fields,
)
from ding_lite.schema import Key, default_values, leaves, merged_config
from ding_lite.seeding import GeneratorState, torch_generator

OFF_POLICY_LEARN = ("update_per_collect", "reuse", "proximal", "weight_bound")
# What does nothing in the other column, and is refused there.
OFF_POLICY_ONLY = ("priority", "priority_IS_weight", *(f"learn.{k}" for k in OFF_POLICY_LEARN))
ON_POLICY_ONLY = (["learn.epoch_per_collect"], "is for fresh rollouts; off-policy write learn.reuse")
ROLLOUTS_KEPT = 4  # by a buffer of no given size
TRACE_BOUND = 1.0  # c-bar and rho-bar of V-trace
CREDIT = ("value", "advantage", "value_target")


class ReplayPolicy(ActorCriticPolicy):
    """Keeps rollouts as long as the config lets it, and draws minibatches from them."""

    config: dict[str, Any] = dict(
        on_policy=True,  # learn from each rollout once it is collected, or draw from a replay buffer
        priority=False,  # off-policy: draw in proportion to |advantage|^alpha
        priority_IS_weight=False,  # and weigh each sample by (N P)^-beta
        recompute_adv=True,  # values and advantages anew at each pass, from the newest network
        learn=dict(
            epoch_per_collect=Key(10, low=1),  # on-policy: passes over each rollout
            batch_size=Key(64, low=1),  # samples in a minibatch
            # Off-policy: optimiser steps after each collect; None: ceil(reuse n_sample / batch_size).
            update_per_collect=Key(None, (int,), low=1, optional=True),
            reuse=Key(3.0, above=0),  # off-policy: how often a transition is used, in the mean
            # Off-policy: clip around the policy of this iteration's start, or around the one that collected.
            proximal=Key("decoupled", choices=("decoupled", "behaviour")),
            weight_bound=Key(2.0, low=1),  # of pi_prox / mu in the decoupled objective
            weight_decay=Key(0.0, fixed_because="Adam has none here"),
            # Advantages to mean 0 and std 1: in each minibatch (True), over the whole pass, or not.
            adv_norm=Key("minibatch", choices=("minibatch", "batch", True, False)),
        ),
        other=dict(
            replay_buffer=dict(
                replay_buffer_size=Key(10_000, low=1),  # transitions; the oldest rollouts leave first
                max_use=Key(3, low=1),  # draws of one transition
                max_staleness=Key(4, low=0),  # iterations after its own that a transition is drawn in
                alpha=Key(0.6, low=0, high=1),
                beta=Key(0.4, low=0, high=1),
            ),
        ),
    )

    @classmethod
    def config_faults(cls, values: Mapping[str, Any]) -> list[str]:
        faults = super().config_faults(values)
        policy = values["policy"]
        given, own = dict(leaves(policy)), default_values(merged_config(cls))
        default = dict(leaves(own))
        off_only = [path for path in default if path in OFF_POLICY_ONLY or path.startswith("other.")]
        dead, why = (off_only, "belongs to on_policy=False") if policy["on_policy"] else ON_POLICY_ONLY
        faults += [
            f"policy.{path}: {given[path]!r} would change nothing, since it {why}"
            for path in dead
            if path in default and given.get(path, default[path]) != default[path]
        ]
        if not policy["on_policy"] and policy["collect"]["n_episode"] is None:
            rows = -(-policy["collect"]["n_sample"] // values["env"]["collector_env_num"])
            rows *= values["env"]["collector_env_num"]
            for path in (path for path in default if path.endswith("replay_buffer_size")):
                size = given[path] or ROLLOUTS_KEPT * policy["collect"]["n_sample"]
                if size < rows:
                    faults.append(
                        f"policy.{path}: {size} transitions, and a rollout alone has {rows}; "
                        "a buffer holds at least one"
                    )
        if not policy["on_policy"]:
            faults += cls._reuse_faults(policy)
        if policy.get("priority_IS_weight") and not policy["priority"]:
            faults.append(
                "policy.priority_IS_weight: True would change nothing, since it weighs the draws of "
                "policy.priority=True"
            )
        return faults

    @classmethod
    def _reuse_faults(cls, policy: Mapping[str, Any]) -> list[str]:
        """Returns what asks for more draws than ``max_use`` lets a transition have."""
        learn, max_use = policy["learn"], policy["other"]["replay_buffer"]["max_use"]
        if learn["update_per_collect"] is None and learn["reuse"] > max_use:
            return [
                f"policy.learn.reuse: {learn['reuse']:g} uses of each transition, and "
                f"policy.other.replay_buffer.max_use={max_use} allows no more; raise it"
            ]
        return []

    def describe(self) -> list[str]:
        lines = super().describe()
        for name, buffer in self.buffers.items() if "learn" in self.fields else ():
            limits = buffer.limits
            drawn = (limits.steps or 0) * self.cfg.learn.batch_size
            if not self.cfg.on_policy and drawn >= limits.max_use * self.cfg.collect.n_sample:
                lines.append(
                    f"{self._prefix(name)}: each transition is drawn {limits.max_use} times in its own "
                    "iteration, and none is left for the next; a larger max_use lets them last"
                )
        return lines

    def _init_learn(self) -> None:
        self.permutation = torch_generator(self.seed, "policy", "minibatch", device=self.device)
        self.prioritized = bool(self.cfg.get("priority"))
        self.buffers = {name: ReplayBuffer(limits, self.device) for name, limits in self._limits().items()}
        self.proximal: dict[str, dict[str, Any]] = {}

    @property
    def clip_ratio(self) -> Tensor:
        """How far the policy may move in one iteration."""
        raise NotImplementedError

    def _limits(self) -> dict[str, Limits]:
        """Returns what each buffer of this policy keeps, by its name."""
        learn, kept = self.cfg.learn, self.cfg.other.replay_buffer
        return {"policy": self._limits_of(learn.epoch_per_collect, learn.reuse, kept)}

    def _limits_of(self, epochs: int, reuse: float, kept: Any) -> Limits:
        """Returns the limits of a buffer: on-policy from ``epochs``, else from ``reuse`` and ``kept``."""
        learn, collect = self.cfg.learn, self.cfg.collect
        whole, segment = collect.n_episode is not None, collect.unroll_len if collect.unroll_len > 1 else 0
        if self.cfg.on_policy:
            return Limits(max_use=epochs, whole_episodes=whole, segment=segment)
        steps = learn.update_per_collect
        if steps is None and not whole:
            steps = math.ceil(reuse * collect.n_sample / learn.batch_size)
        size = kept.replay_buffer_size or ROLLOUTS_KEPT * collect.n_sample
        return Limits(kept.max_use, kept.max_staleness, size, steps, reuse, learn.batch_size, whole, segment)

    def _push(self, rollout: Rollout) -> None:
        """Takes in a fresh rollout; pi_prox is the policy as it is now, whatever is trained first."""
        priority = self._priority(rollout.advantage) if self.prioritized else None
        for name, buffer in self.buffers.items():
            other = buffer.data is not None and len(buffer.data.valid) != len(rollout.valid)
            if other and not buffer.limits.ragged:
                buffer.clear()  # a resumed run that was given another n_sample
            buffer.push(rollout, priority)
            self.proximal[name] = self._proximal(buffer)

    def _priority(self, advantage: Tensor) -> Tensor:
        # Nobody has a priority of 0: what seems known may change.
        return (advantage.detach().abs() + 1e-6) ** self.cfg.other.replay_buffer.alpha

    def _passes(
        self, name: str, told: dict[str, float], *, values_moved: bool = False
    ) -> Iterator[Iterator[Batch]]:
        """Yields passes over what is live, until the iteration's steps are done or nothing is left.

        A pass takes each live transition once, in random order. With priority it is as many minibatches,
        each drawn without replacement in proportion to the priorities.

        Args:
            name: of the buffer.
            told: is given what is watched of the buffer before the first step.
            values_moved: whether the value network has learned since the rollout was pushed.
        """
        learn, buffer, data = self.cfg.learn, self.buffers[name], self.buffers[name].data
        stale = not buffer.is_fresh and bool((buffer.age > 0).any())
        extra = dict(self.proximal[name])
        proximal = extra.pop("log_prob")
        ratio = torch.exp(proximal - data.log_prob).masked_fill(~data.valid, 1.0) if stale else None
        if not self.cfg.on_policy:
            watched = describe_buffer(buffer, ratio, self.clip_ratio)
            told |= {f"{self._prefix(name)}_{what}": number for what, number in watched.items()}
        if ratio is not None and learn.proximal == "decoupled":
            extra |= {"log_prob": proximal, "policy_weight": ratio.clamp(max=learn.weight_bound)}
        steps = buffer.planned_steps()
        credit, flat, of_rows = data, None, None
        while steps > 0:
            rows = buffer.live_rows()
            if not len(rows):
                break
            if stale or values_moved or flat is not None:  # else it has the newest values already
                credit = self._renewed_credit(data, ratio)
            others = of_rows is None or (rows is not of_rows and not torch.equal(rows, of_rows))
            if others:
                samples, of_rows = self._samples(data, rows, extra), rows
            if others or credit is not data:  # which is made anew in each pass
                flat = self._with_credit(samples, credit, rows)
            planned = int(min(steps, len(minibatch_sizes(len(rows), learn.batch_size))))
            draw = self._prioritized_minibatches if self.prioritized else self._permuted_minibatches
            yield draw(flat, buffer, rows, planned)
            steps -= planned
        if math.isfinite(steps):
            told[f"{self._prefix(name)}_missing_updates"] = float(steps)

    @torch.no_grad()
    def _proximal(self, buffer: ReplayBuffer) -> dict[str, Any]:
        """Returns fields (T, C, ...) by the policy as it is now: log_prob, and old_logit where it is used."""
        data = buffer.data
        log_prob: Tensor = data.log_prob.clone()  # of fresh rows, and for those it is the policy's already
        is_stale = data.valid & (buffer.age > 0)
        if not buffer.is_fresh and bool(is_stale.any()):
            rows = is_stale.flatten().nonzero().squeeze(-1)
            stale = flatten_rows({"obs": data.obs, "action": data.action}, rows)
            log_prob.view(-1)[rows] = self._log_probs(stale["obs"], stale["action"], lead=1)
        old_logit = {"old_logit": self._logits(data.obs, lead=2)} if self.cfg.learn.kl_penalty else {}
        return {"log_prob": log_prob, **old_logit}

    def _renewed_credit(self, data: Rollout, ratio: Tensor | None) -> Any:
        """Returns the three fields of credit from the newest network, as far as the config asks for it."""
        if not (self.cfg.recompute_adv or self.cfg.nstep_return):
            return data
        credit = self._credit(data, None if ratio is None else ratio.clamp(max=TRACE_BOUND))
        if not self.cfg.recompute_adv:
            credit |= {"value": data.value, "advantage": data.advantage}
        if ratio is not None:
            for name, field in credit.items():  # kept: the auxiliary phase uses the latest targets
                setattr(data, name, field)
        return credit

    def _training_set(self, data: Rollout, credit: Any) -> Rollout:
        """Returns the valid rows of (T, C) as the losses take them (N, ...), with the ``credit`` given."""
        rows = data.valid.flatten().nonzero().squeeze(-1)
        return self._with_credit(self._samples(data, rows, {}), credit, rows)

    @torch.no_grad()
    def _samples(self, data: Rollout, rows: Tensor, extra: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of a training set that are not credit.

        Args:
            rows: (N,), of the flattened (T, C).
            extra: more fields (T, C, ...), or others of the same name.
        """
        fields = time_major_fields(data) | dict(extra)
        if self.obs_norm is not None:
            fields["obs"] = self.obs_norm(fields["obs"])
        return flatten_rows({name: x for name, x in fields.items() if name not in CREDIT}, rows)

    @torch.no_grad()
    def _with_credit(self, samples: Mapping[str, Any], credit: Any, rows: Tensor) -> Rollout:
        """Returns the training set of the samples at ``rows``, with the three fields of ``credit`` there."""
        fields = {name: credit[name] for name in CREDIT}
        if self.value_norm is not None:
            for name in ("value", "value_target"):
                fields[name] = self.value_norm.normalize(fields[name])
        fields = flatten_rows(fields, rows)
        if self.cfg.learn.adv_norm == "batch":
            fields["advantage"] = losses.normalize_advantage(fields["advantage"])
        return as_rollout({**samples, **fields})

    @property
    def _normalizes_minibatches(self) -> bool:
        return self.cfg.learn.adv_norm in ("minibatch", True)

    def _batch(self, flat: Rollout, index: Tensor | slice) -> Batch:
        return batch_at(flat, index, normalize=self._normalizes_minibatches)

    def _batches(self, flat: Rollout, order: Tensor, sizes: list[int]) -> Iterator[Batch]:
        if owns(self, ReplayPolicy, "_batch"):
            return batches_at(flat, order, sizes, normalize=self._normalizes_minibatches)
        return (self._batch(flat, index) for index in order.split(sizes))

    def _minibatches(self, flat: Rollout) -> Iterator[Batch]:
        """Yields one pass over the training set, each sample once."""
        n = len(flat.advantage)
        sizes = minibatch_sizes(n, self.cfg.learn.batch_size)
        return self._batches(flat, permutation(n, self.permutation), sizes)

    def _permuted_minibatches(
        self, flat: Rollout, buffer: ReplayBuffer, rows: Tensor, steps: int
    ) -> Iterator[Batch]:
        sizes = minibatch_sizes(len(rows), self.cfg.learn.batch_size)[:steps]
        order = permutation(len(rows), self.permutation)[: sum(sizes)]
        buffer.use(rows[order])
        return self._batches(flat, order, sizes)

    def _prioritized_minibatches(
        self, flat: Rollout, buffer: ReplayBuffer, rows: Tensor, steps: int
    ) -> Iterator[Batch]:
        beta, std = self.cfg.other.replay_buffer.beta, 1.0 if self.value_norm is None else self.value_norm.std
        for _ in range(steps):
            unspent = buffer.uses.flatten()[rows] < buffer.limits.max_use
            share = buffer.priority.flatten()[rows] * unspent
            left = int(unspent.sum())
            size = minibatch_sizes(left, self.cfg.learn.batch_size)[0]
            index = torch.multinomial(share, size, generator=self.permutation)
            buffer.use(rows[index])
            batch = self._batch(flat, index)
            if self.cfg.priority_IS_weight:
                weight = (left * share / share.sum()).clamp_min(1e-12) ** -beta
                batch.value_weight = weight[index] / weight[unspent].max()
                stale_weight = batch.policy_weight
                batch.policy_weight = batch.value_weight * (1.0 if stale_weight is None else stale_weight)
                batch.again = partial(Batch, **batch.fields())
            yield batch
            # What the advantage is by now, after the value has moved.
            error = (batch.value_target - batch.new_value) * float(std)
            buffer.priority.view(-1)[rows[index]] = self._priority(error)

    def _prefix(self, name: str) -> str:
        return "buffer" if len(self.buffers) == 1 else f"{name}_buffer"

    def _monitor_vars_learn(self) -> list[str]:
        if self.cfg.on_policy:
            return []
        watched = ["samples", "age", "uses", "weight_mean", "weight_max", "missing_updates"]
        return [
            f"{self._prefix(name)}_{what}"
            for name, buffer in self.buffers.items()
            for what in (
                *watched,
                *(f"outside_clip_age_{k}" for k in range(min(buffer.limits.max_staleness, OLDEST_SHOWN) + 1)),
            )
        ]

    def _state(self) -> dict[str, Any]:
        learning = "learn" in self.fields
        return {
            **super()._state(),
            "permutation": GeneratorState(self.permutation) if learning else None,
            **{f"{name}_buffer": buffer for name, buffer in (self.buffers if learning else {}).items()},
        }
