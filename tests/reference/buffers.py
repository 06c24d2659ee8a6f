"""Replay buffers: the rollouts of the last iterations, and which of their steps may be drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from reference.credit import Credit
from reference.losses import Watch
from reference.recording import Step

Key = tuple[int, int, int]  # (iteration, environment, row)


@dataclass(eq=False)
class Entry:
    """A valid step in a buffer.

    Attributes:
        credit: of the collection, or of the last renewal by V-trace.
        uses: number of draws.
        proximal: log-prob under the policy at the start of this iteration's updates.
        old: the parameters of that policy's distribution, for the KL penalty.
    """

    step: Step
    credit: Credit
    uses: int = 0
    proximal: float = 0.0
    old: Any = None

    @property
    def weight(self) -> float:
        """pi_prox / mu."""
        return math.exp(self.proximal - self.step.log_prob)


class Buffer:
    """Rollouts, the oldest first. A rollout is removed as a whole once none of its steps may be drawn.

    Args:
        max_use: draws of one step.
        max_staleness: iterations after the collection in which a step may be drawn.
        capacity: in rows; the oldest rollouts are removed first.
        updates: optimiser steps per iteration; inf: until no step may be drawn.
    """

    def __init__(
        self, max_use: int, max_staleness: int, capacity: float, updates: float, watch: Watch
    ) -> None:
        self.max_use, self.max_staleness = max_use, max_staleness
        self.capacity, self.updates, self.watch = capacity, updates, watch
        self.iteration = 0
        self.rollouts: dict[int, list[list[Step]]] = {}  # by iteration, cut into segments
        self.entries: dict[Key, Entry] = {}

    def push(self, segments: list[list[Step]], entries: list[Entry]) -> None:
        """Adds the rollout of this iteration."""
        rows = sum(map(len, segments))
        while self.rollouts and rows + sum(len(s) for r in self.rollouts.values() for s in r) > self.capacity:
            self._drop(min(self.rollouts))
            self.watch.saw("a rollout makes room")
        self.rollouts[self.iteration] = segments
        self.entries |= {entry.step.key: entry for entry in entries}

    def _drop(self, iteration: int) -> None:
        del self.rollouts[iteration]
        self.entries = {key: entry for key, entry in self.entries.items() if key[0] != iteration}

    def age(self, entry: Entry) -> int:
        return self.iteration - entry.step.key[0]

    @property
    def is_fresh(self) -> bool:
        """Whether the buffer has only the rollout of this iteration."""
        return set(self.rollouts) == {self.iteration}

    def live(self) -> dict[Key, Entry]:
        """Returns the steps that may be drawn."""
        return {
            key: entry
            for key, entry in self.entries.items()
            if entry.uses < self.max_use and self.age(entry) <= self.max_staleness
        }

    def end_iteration(self) -> None:
        self.iteration += 1
        alive = {key[0] for key in self.live()}
        for iteration in [i for i in self.rollouts if i not in alive]:
            self._drop(iteration)


def minibatch_sizes(n: int, batch_size: int) -> list[int]:
    """Splits a pass over ``n`` samples. A short last minibatch is kept unless it has one sample only."""
    sizes = [batch_size] * (n // batch_size)
    if n % batch_size == 1 and sizes:
        sizes[-1] += 1
    elif n % batch_size:
        sizes.append(n % batch_size)
    return sizes
