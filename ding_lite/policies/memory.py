"""Acting and learning of policies with memory: they carry its state, and learn from sequences.

Losses, credit and the passes over a rollout are those of policies without memory.

Shapes: B environments, T steps, C columns of rollouts, N samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from ding_lite.data.rollout import Rollout, flat
from ding_lite.data.sequences import Grid, Packed, SequenceSet, SequenceTable, split_evenly
from ding_lite.errors import ConfigError
from ding_lite.fast.acting import ACTING_VALUE
from ding_lite.models.actor_critic import ActorCritic
from ding_lite.models.memory import Sequences, single_steps
from ding_lite.ranks import Ranks
from ding_lite.rl.distributions import Distribution
from ding_lite.trees import Tree, leading_size, map_tree, tree_leaves

# What a network is given in one call: samples, and bytes of float32 input.
CHUNK_SAMPLES, CHUNK_BYTES = 2**13, 2**24


class Remembering(Protocol):
    """What a memory uses of its policy; ``policies.actor_critic`` documents it."""

    cfg: Any
    ranks: Ranks
    model: ActorCritic
    generator: torch.Generator

    def scaled(self, obs: Tree) -> Any: ...
    def distribution(self, obs: Any, logit: Any) -> Distribution: ...
    def denormalized_values(self, value: Tensor) -> Tensor: ...


def memory_faults(policy: Mapping[str, Any]) -> list[str]:
    """Returns the keys of a complete section ``policy`` that do not go with a memory, a line each."""
    learn = policy["learn"]
    faults = []
    if learn["burn_in"] >= learn["sequence_length"]:
        faults.append(
            f"policy.learn.burn_in: {learn['burn_in']} rows; it must be less than "
            f"policy.learn.sequence_length={learn['sequence_length']}"
        )
    if policy["collect"]["unroll_len"] > 1:
        faults.append(
            "policy.collect.unroll_len: a policy with memory cuts its rollouts by "
            "policy.learn.sequence_length; leave it at 1"
        )
    if policy.get("priority"):
        faults.append(
            "policy.priority: True draws single transitions, and a policy with memory learns from whole "
            "sequences"
        )
    if learn.get("compile") is True:
        faults.append("policy.learn.compile: True compiles no model with memory; leave it at 'auto'")
    return faults


class PolicyMemory:
    """The memory of a policy.

    Args:
        policy: whose model has a memory.

    Attributes:
        grid: where rollouts are cut into sequences.

    Raises:
        ConfigError: if a key of the config does not go with a memory.
    """

    def __init__(self, policy: Remembering) -> None:
        self.policy = policy
        learn = policy.cfg.learn
        self.grid = Grid(learn.sequence_length, learn.burn_in)
        if faults := memory_faults(policy.cfg):  # a model may have a memory without the key model.rnn
            raise ConfigError("\n  ".join(faults))

    def initial_state(self, n: int) -> Tree:
        """Returns the memory (n, ...) before the first step of ``n`` episodes."""
        return self.policy.model.initial_state(n)

    def sample(self, obs: Tree, state: Tree | None) -> dict[str, Any]:
        """Returns actions (B, ...), their log-probs, the values, and the memory after this step."""
        policy = self.policy
        with torch.inference_mode():
            inputs, (logit, value, after) = self._step(obs, state)
            dist = policy.distribution(inputs, logit)
            action = dist.sample(policy.generator)
            return {
                "action": action,
                "log_prob": dist.log_prob(action),
                ACTING_VALUE: policy.denormalized_values(value),
                "state": after,
            }

    def greedy(self, obs: Tree, state: Tree | None) -> dict[str, Any]:
        """Returns the greedy actions (B, ...), and the memory after this step."""
        with torch.inference_mode():
            inputs, (logit, _, after) = self._step(obs, state)
            return {"action": self.policy.distribution(inputs, logit).mode(), "state": after}

    def _step(self, obs: Tree, state: Tree | None) -> tuple[Sequences, tuple[Any, Tensor, Tree]]:
        inputs = self.inputs(self.policy.scaled(obs), state)
        return inputs, self.policy.model.step(inputs)

    def inputs(self, obs: Any, state: Tree | None = None) -> Sequences:
        """Returns scaled observations (N, ...) as the model takes them, one step from each ``state``.

        Args:
            obs: (N, ...).
            state: (N, ...); None: that of an episode's start.
        """
        return single_steps(obs, self.initial_state(leading_size(obs)) if state is None else state)

    @torch.no_grad()
    def over_rollout(self, function: Callable[..., Any], rollout: Rollout, *others: Any) -> Any:
        """Returns ``function(inputs, *others)`` of all valid rows of a rollout, and zeros for the others.

        Shapes:
            each of ``others``: (T, C, ...) -> (T, C, ...), a tensor or a dict
        """
        flat_others = [flat(other) for other in others]
        shape = rollout.valid.shape
        result: Any = None
        for packed, inputs in self._parts(rollout, self.grid, flat(rollout.memory)):
            rows = packed.rows
            found = function(
                inputs, *(map_tree(lambda leaf, r=rows: leaf[r], other) for other in flat_others)
            )
            result = _scattered(found, rows, shape.numel(), result)
        return map_tree(lambda leaf: leaf.view(*shape, *leaf.shape[1:]), result)

    @torch.no_grad()
    def follow(self, rollout: Rollout, state: Tree | None) -> tuple[Any, Tree]:
        """Returns what the policy network puts out along a rollout, which another policy may have played.

        Args:
            rollout: (T, C).
            state: (C, ...), the memory before the first row; None: that of an episode's start.

        Returns:
            the parameters of distributions (T, C, ...), 0 in rows that are not valid, and the memory (C, ...)
            after the last row, which is that of an episode's start where no episode is open.
        """
        steps, columns = rollout.valid.shape
        after = self.initial_state(columns)
        stored = after if state is None or leading_size(state) != columns else state
        after = map_tree(torch.clone, after)
        is_open = rollout.valid[-1] & ~(rollout.terminated | rollout.truncated)[-1]
        logits = None
        for packed, inputs in self._parts(rollout, Grid(steps), stored):
            logit, _, ends = self.policy.model.step(inputs)
            logits = _scattered(logit, packed.rows, rollout.valid.numel(), logits)
            t, column = packed.last_rows // columns, packed.last_rows % columns
            goes_on = (t == steps - 1) & is_open[column]
            chosen = column[goes_on]
            map_tree(lambda to, leaf, c=chosen, g=goes_on: to.index_copy_(0, c, leaf[g]), after, ends)
        return map_tree(lambda leaf: leaf.view(steps, columns, *leaf.shape[1:]), logits), after

    def _parts(self, rollout: Rollout, grid: Grid, stored: Tree) -> Iterator[tuple[Packed, Sequences]]:
        """Yields the sequences of a rollout (T, C) in parts, and the model's input for each.

        Args:
            rollout: cut into sequences by ``grid``.
            stored: (K C, ...), the memories before the rows in which the grid begins a sequence.
        """
        table, obs = SequenceTable(rollout, grid), flat(rollout.obs)
        all_sequences = torch.arange(len(table), device=table.counts.device)
        for part in self.chunks(all_sequences, table.counts, rollout.obs):
            packed = table.packed(part)
            yield packed, self._scaled(packed.inputs(obs, stored, self.initial_state))

    @staticmethod
    def chunks(index: Tensor, counts: Tensor, obs: Any) -> list[Tensor]:
        """Splits sequences into parts that a network is given in one call.

        Shapes:
            index, counts: (S,); obs: (T, C, ...), for the size of an observation
        """
        samples = int(counts.sum())
        sample_bytes = 4 * sum(leaf[0, 0].numel() for leaf in tree_leaves(obs))
        parts = max(samples / CHUNK_SAMPLES, samples * sample_bytes / CHUNK_BYTES)
        return split_evenly(index, counts, max(1, min(len(index), math.ceil(parts))))

    def packed_inputs(self, packed: Packed, rollout: Rollout) -> Sequences:
        """Returns some sequences of a rollout as the model takes them."""
        return self._scaled(packed.inputs(flat(rollout.obs), flat(rollout.memory), self.initial_state))

    def _scaled(self, inputs: Sequences) -> Sequences:
        return inputs._replace(obs=self.policy.scaled(inputs.obs))

    def training_set(
        self, data: Rollout, samples: Mapping[str, Any], rows: Tensor, *, normalizes: bool
    ) -> SequenceSet:
        """Returns the training set of some rows of a rollout (T, C).

        Args:
            data: the rollout.
            samples: fields (N, ...) of the rows; but ``obs`` (T C, ...) of the whole rollout, scaled.
            rows: (N,), of the flattened (T, C).
            normalizes: whether each minibatch normalises its advantages.
        """
        samples = dict(samples)
        return SequenceSet(
            samples,
            self.policy.cfg.learn.batch_size,
            rows,
            samples.pop("obs"),
            flat(data.memory),
            SequenceTable(data, self.grid),
            self.initial_state,
            normalizes=normalizes,
            ranks=self.policy.ranks,
        )


def _scattered(found: Any, rows: Tensor, size: int, into: Any) -> Any:
    """Writes trees of leaves (N, ...) to the rows ``rows`` of ``into``; None: of new zeros (size, ...)."""
    if into is None:
        into = map_tree(lambda leaf: leaf.new_zeros((size, *leaf.shape[1:])), found)
    map_tree(lambda to, leaf: to.index_copy_(0, rows.to(leaf.device), leaf), into, found)
    return into
