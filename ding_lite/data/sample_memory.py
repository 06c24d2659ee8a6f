"""The memory of the auxiliary phase: the samples, or the rollouts, of the iterations since the last one.

Shapes: T steps, C columns: those of all kept rollouts side by side, N samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ding_lite.data.rollout import Rollout, as_rollout, to_device
from ding_lite.data.sequences import Grid, SequenceTable
from ding_lite.trees import in_one_order, leading_size, map_tree, to_dict

MEMINFO, CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


class AuxiliarySamples:
    """Samples of the last iterations, in arrays on the host that are allocated once.

    Leaves keep their dtype (uint8 images stay uint8). The samples of an iteration are contiguous, in the
    order of its valid rows, time first.
    """

    def __init__(self) -> None:
        self.capacity = 0  # samples
        self.size = 0
        self.starts: dict[int, int] = {}  # where the samples of each iteration begin
        self._fields: dict[str, Any] = {}

    def reserve(self, capacity: int) -> None:
        """Makes room for ``capacity`` samples; existing samples stay."""
        if capacity <= self.capacity:
            return
        kept, self.capacity = self.all(), capacity
        if kept:  # rollouts have become longer
            self._fields = map_tree(self._room_for, kept)
            self.write(0, kept)

    def _room_for(self, leaf: Tensor) -> Tensor:
        return torch.empty((self.capacity, *leaf.shape[1:]), dtype=leaf.dtype)

    def append(self, iteration: int, fields: Mapping[str, Any]) -> None:
        """Adds the samples (N, ...) of one iteration.

        Raises:
            ValueError: if they exceed the capacity.
        """
        count = leading_size(fields)
        if self.size + count > self.capacity:
            raise ValueError(f"{count} samples do not fit: {self.size} of {self.capacity} are there already")
        if not self._fields:
            self._fields = map_tree(self._room_for, dict(fields))
        self.starts[iteration] = self.size
        self.write(self.size, fields)
        self.size += count

    def write(self, start: int, fields: Mapping[str, Any]) -> None:
        """Overwrites the samples from ``start`` on with ``fields`` (N, ...), some of the fields."""
        some = {name: self._fields[name] for name in fields}
        map_tree(lambda to, leaf: to[start : start + len(leaf)].copy_(leaf), some, dict(fields))

    def all(self) -> Any:
        """Returns all samples, as views of the arrays."""
        return map_tree(lambda leaf: leaf[: self.size], self._fields)

    def read(self, index: Tensor, device: torch.device) -> Any:
        """Returns the samples ``index`` (N,), on ``device``."""
        return map_tree(lambda leaf: leaf.index_select(0, index).to(device), self._fields)

    def clear(self) -> None:
        """Drops all samples; the arrays stay."""
        self.size, self.starts = 0, {}

    def state_dict(self) -> dict[str, Any]:
        return {
            "capacity": self.capacity,
            "iterations": list(self.starts),
            "starts": list(self.starts.values()),
            "fields": in_one_order(self.all()) if self.size else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.clear()
        self._fields, self.capacity = {}, int(state["capacity"])
        if state["fields"] is not None:
            self.append(0, to_device(state["fields"], torch.device("cpu")))
        self.starts = dict(zip(map(int, state["iterations"]), map(int, state["starts"]), strict=True))


class AuxiliaryRollouts:
    """The rollouts of the last iterations, on the host, for a policy with memory.

    Args:
        grid: where rollouts are cut into sequences.

    Attributes:
        starts: the first column of each iteration in :attr:`data`.
    """

    FIELDS = ("obs", "valid", "terminated", "truncated", "value_target", "memory")

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.starts: dict[int, int] = {}
        self._rollouts: list[Rollout] = []
        self._places: dict[int, int] = {}  # of the rollouts that have an iteration's columns
        self._table: SequenceTable | None = None

    @property
    def size(self) -> int:
        """Number of valid samples."""
        return sum(int(rollout.valid.sum()) for rollout in self._rollouts)

    def append(self, iteration: int, fields: Mapping[str, Any]) -> None:
        """Adds a copy of fields (T, B, ...) of the rollout of one iteration, at least those of ``FIELDS``."""
        fields = map_tree(lambda leaf: leaf.cpu().clone(), fields)
        self.starts[iteration] = sum(each.valid.shape[1] for each in self._rollouts)
        self._places[iteration] = len(self._rollouts)
        self._rollouts.append(as_rollout(fields))
        self._table = None

    @property
    def data(self) -> Rollout:
        """All rollouts side by side (T, C); shorter ones are padded."""
        if len(self._rollouts) > 1:
            self._rollouts = [_joined(self._rollouts)]
            self._places = dict.fromkeys(self._places, 0)
        return self._rollouts[0]

    def table(self) -> SequenceTable:
        """Returns the sequences of all rollouts."""
        if self._table is None:
            self._table = SequenceTable(self.data, self.grid)
        return self._table

    def write_targets(self, iteration: int, value_target: Tensor) -> None:
        """Replaces the targets of the columns of an iteration by those (T, B) that are given."""
        steps, columns = value_target.shape
        if columns:
            place = self._places[iteration]
            start = self.starts[iteration] - sum(x.valid.shape[1] for x in self._rollouts[:place])
            target = self._rollouts[place].value_target
            rows = min(steps, len(target))  # each may be padded
            target[:rows, start : start + columns] = value_target[:rows].cpu()

    def clear(self) -> None:
        """Drops all rollouts."""
        self.starts = {}
        self._rollouts = []
        self._places = {}
        self._table = None

    def state_dict(self) -> dict[str, Any]:
        return {
            "grid": list(self.grid),
            "iterations": list(self.starts),
            "starts": list(self.starts.values()),
            "places": list(self._places.values()),
            "rollouts": [in_one_order(rollout) for rollout in self._rollouts],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.clear()
        if list(state["grid"]) != list(self.grid):
            return  # a run that was resumed with sequences of another length
        host = torch.device("cpu")
        self._rollouts = [as_rollout(to_device(rollout, host)) for rollout in state["rollouts"]]
        iterations = [int(iteration) for iteration in state["iterations"]]
        self.starts = dict(zip(iterations, map(int, state["starts"]), strict=True))
        self._places = dict(zip(iterations, map(int, state["places"]), strict=True))


def _joined(rollouts: list[Rollout]) -> Rollout:
    """Returns rollouts side by side, padded to the longest, and empties the list.

    Each rollout is freed once it is copied, and pages of ``torch.zeros`` are allocated when they are first
    written. So there are never two copies of all.
    """
    columns = sum(rollout.valid.shape[1] for rollout in rollouts)
    longest = to_dict(max(rollouts, key=lambda rollout: len(rollout.valid)))
    whole = map_tree(
        lambda leaf: torch.zeros((len(leaf), columns, *leaf.shape[2:]), dtype=leaf.dtype), longest
    )
    start = 0
    while rollouts:
        rollout = to_dict(rollouts.pop(0))
        width = rollout["valid"].shape[1]
        map_tree(lambda to, leaf, s=start, w=width: to[: len(leaf), s : s + w].copy_(leaf), whole, rollout)
        start += width
    return as_rollout(whole)


def host_memory() -> int | None:
    """Returns the bytes of memory that are free for this process, or None if the system does not tell."""
    try:
        fields = dict(line.split(":") for line in MEMINFO.read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    try:  # the limit of a container; its usage includes the file cache, which can be freed
        limit, used = (int((CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        stat = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        free = min(free, limit - used + int(stat["inactive_file"]))
    except (OSError, KeyError, ValueError):
        pass
    return free
