"""The replay buffer: the rollouts of the last iterations.

Shapes: T steps, C columns: those of all kept rollouts side by side, N samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ding_lite.data.rollout import Rollout, as_rollout, places, to_device
from ding_lite.data.segments import first_rows, padded, select_columns, side_by_side, with_rows
from ding_lite.data.sequences import Grid
from ding_lite.trees import in_one_order

MOST_USES = 2**31 - 1  # uses are counted in int32


@dataclass(frozen=True)
class Limits:
    """How much a buffer holds, and how long and how often its transitions are used.

    The defaults are for fresh rollouts: one rollout, until each transition was used ``max_use`` times.
    """

    max_use: int  # draws of one transition
    max_staleness: int = 0  # iterations after its own in which a transition may be drawn
    capacity: float = math.inf  # in transitions; the oldest rollouts leave first
    steps: int | None = None  # optimiser steps in an iteration
    reuse: float | None = None  # uses of each fresh transition, where ``steps`` is None; both None: no limit
    batch_size: int = 1
    whole_episodes: bool = False  # rollouts have whole episodes in each column, and different lengths
    segment: int = 0  # steps of the segments that rollouts are cut into; 0: they are not cut
    grid: Grid | None = None  # where the rollouts of a policy with memory are cut into sequences

    @property
    def ragged(self) -> bool:
        """Whether rollouts have different lengths, and shorter ones are padded."""
        return self.whole_episodes and not self.segment


class ReplayBuffer:
    """The rollouts of the last iterations as one wide rollout (T, C), with the uses of each transition.

    Credit is assigned over whole columns. Transitions are drawn one by one, by their place in (T, C). A
    rollout leaves when all its transitions are spent or stale.

    Attributes:
        data: the wide rollout, None when empty; a policy may add fields to it.
        uses: (T, C), how often each transition was drawn.
        version: (C,), the iteration that each column was collected in.
        priority: (T, C), for prioritised draws.
        is_fresh: whether the buffer holds only the rollout of this iteration.
    """

    def __init__(self, limits: Limits, device: torch.device | None = None) -> None:
        self.limits, self.device = limits, device or torch.device("cpu")
        self.iteration = 0
        self.data: Rollout = None
        self.uses = self.priority = self.version = torch.zeros(0)
        self.is_fresh = False
        self._places: Tensor | None = None  # the result of live_places(), while it is valid
        self._draws_left: int | None = None  # that each of those places has left; None if unequal

    def push(self, rollout: Rollout, priority: Tensor | None = None) -> None:
        """Adds the rollout (T, B) of this iteration; a buffer that holds no other one does not copy it.

        Rollouts lie side by side. Unless they have whole episodes, one of another length than those before
        (a resumed run with another n_sample) replaces them.

        Raises:
            ValueError: if the rollout exceeds the capacity, unless rollouts have whole episodes.
        """
        rows, columns = rollout.valid.shape
        if rows * columns > self.limits.capacity and not self.limits.whole_episodes:
            raise ValueError(f"a rollout of {rows * columns} does not fit into {self.limits.capacity:g}")
        device = rollout.valid.device
        uses = torch.zeros(rows, columns, dtype=torch.int32, device=device)
        version = torch.full((columns,), self.iteration, device=device)
        priority = torch.ones(rows, columns, device=device) if priority is None else priority
        if self.data is not None and len(self.uses) != rows and not self.limits.ragged:
            self.clear()
        while (
            self.data is not None and self._size_of(self.data) + self._size_of(rollout) > self.limits.capacity
        ):
            # Rollouts leave whole: dropping a part would favour some environments.
            self._keep(self.version > self.version[0])
        if self.data is not None and len(self.uses) != rows:
            longest = max(len(self.uses), rows)
            self.data, rollout = padded(self.data, longest), padded(rollout, longest)
            self.uses, self.priority = (with_rows(x, longest) for x in (self.uses, self.priority))
            uses, priority = (with_rows(x, longest) for x in (uses, priority))
        self._forget_fresh()
        if self.data is None:
            self.is_fresh, self._draws_left = True, self.limits.max_use
        else:
            rollout = side_by_side(self.data, rollout)
            uses = torch.cat([self.uses, uses], 1)
            version = torch.cat([self.version, version])
            priority = torch.cat([self.priority, priority], 1)
        self.data = rollout
        self.uses = uses
        self.version = version
        self.priority = priority

    def _size_of(self, rollout: Rollout) -> int:
        """Returns the number of transitions; with whole episodes, without the padding."""
        return int(rollout.valid.sum()) if self.limits.whole_episodes else rollout.valid.numel()

    def planned_steps(self) -> float:
        """Returns the number of optimiser steps of this iteration; inf: until nothing is left to draw."""
        limits = self.limits
        if limits.steps is not None or limits.reuse is None:
            return math.inf if limits.steps is None else limits.steps
        fresh = int(self.data.valid[:, self.age == 0].sum())
        return math.ceil(limits.reuse * fresh / limits.batch_size)

    @property
    def age(self) -> Tensor:
        """Iterations since each column (C,) was collected."""
        return self.iteration - self.version

    @property
    def has_stale(self) -> bool:
        """Whether rollouts of earlier iterations are held; waits for a device unless ``is_fresh``."""
        return not self.is_fresh and bool((self.age > 0).any())

    def live(self) -> Tensor:
        """Returns which transitions (T, C) may be drawn: valid, neither spent nor stale."""
        fresh_enough = self.age <= self.limits.max_staleness
        live: Tensor = self.data.valid & (self.uses < self.limits.max_use) & fresh_enough
        return live

    def live_places(self) -> Tensor:
        """Returns the places (N,) of live transitions in the flattened (T, C), ascending.

        For a fresh rollout that is drawn whole they are computed once, so that the host does not wait for the
        device.
        """
        if self._places is None:
            self._places = places(self.live())
        return self._places[:0] if self._draws_left == 0 else self._places

    def use(self, place: Tensor) -> None:
        """Counts one draw of each of some live transitions.

        Args:
            place: (N,), their places in the flattened (T, C), all different.
        """
        if len(place) == self.uses.numel():
            self.uses += 1
        else:
            self.uses.view(-1)[place] += 1
        if self._draws_left is not None and self._places is not None and len(place) == len(self._places):
            self._draws_left -= 1
        else:
            self._places = self._draws_left = None

    def end_iteration(self) -> None:
        """Makes all rollouts one iteration older, and drops those without live transitions."""
        self.iteration += 1
        if self._draws_left == 0:
            self.clear()
        elif self.data is not None:
            live_versions = self.version[self.live().any(0)]
            self._keep(torch.isin(self.version, live_versions))

    def _keep(self, columns: Tensor) -> None:
        if not bool(columns.any()):
            self.clear()
            return
        self._forget_fresh()
        index = columns.nonzero().squeeze(-1)
        # A copy even of all columns: the collector writes its next rollout into the same memory.
        self.data = select_columns(self.data, index)
        self.uses, self.priority = self.uses[:, index], self.priority[:, index]
        self.version = self.version[index]
        if self.limits.ragged:  # the longest rollout may have left
            rows = int(self.data.valid.any(1).nonzero().max()) + 1
            self.data = first_rows(self.data, rows)
            self.uses, self.priority = self.uses[:rows], self.priority[:rows]

    @property
    def _layout(self) -> list[Any]:
        """What a column holds; a saved buffer with another layout cannot be continued."""
        return [self.limits.whole_episodes, self.limits.segment, *(self.limits.grid or ())]

    def clear(self) -> None:
        """Drops all rollouts."""
        self.data = None
        self.uses = self.priority = self.version = torch.zeros(0)
        self._forget_fresh()

    def _forget_fresh(self) -> None:
        self.is_fresh = False
        self._places = None
        self._draws_left = None

    def state_dict(self) -> dict[str, Any]:
        """Returns the counter and the rollouts; ``data`` is None if there are none."""
        return {
            **{name: getattr(self, name) for name in ("iteration", "uses", "version", "priority")},
            "layout": self._layout,
            "data": None if self.data is None else in_one_order(self.data),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.clear()
        self.iteration, data = int(state["iteration"]), state["data"]
        if list(state.get("layout", [False, 0])) != self._layout:
            return  # a run that was resumed with another layout
        self.data = None if data is None else as_rollout(to_device(data, self.device))
        for name in ("uses", "version", "priority"):
            setattr(self, name, torch.as_tensor(state[name], device=self.device))
