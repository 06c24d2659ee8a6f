"""The states of all ranks in one checkpoint.

Most of a state is the same on every rank: networks, optimisers, statistics, counters. A checkpoint has the
state of rank 0, and of every other rank the parts that differ from it: open episodes, stored rollouts, random
generators. Which parts these are is found by comparing them, so no part needs to declare it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from ding_lite.errors import CheckpointError
from ding_lite.ranks import Ranks

KEY = "ranks"  # of the state tree, beside the parts of rank 0
MISSING = "missing"  # names the entries that rank 0 has and another rank has not


def gathered(state: Mapping[str, Any], ranks: Ranks) -> dict[str, Any]:
    """Returns the state of the run on rank 0, and this rank's own state on the others; all ranks call it.

    Args:
        state: of this rank: parts by name, each with entries by name.
        ranks: of the run.
    """
    if ranks.size == 1:
        return dict(state)
    digests = {place: digest(entry) for place, entry in _entries(state)}
    of_first = ranks.from_first(lambda: digests)
    different: dict[str, dict[str, Any]] = {}
    for (part, name), entry in _entries(state):
        if digests[part, name] != of_first.get((part, name)):
            different.setdefault(part, {})[name] = _on_host(entry)
    for part, name in of_first.keys() - digests.keys():  # such as infos before the first one
        different.setdefault(part, {}).setdefault(MISSING, []).append(name)
    found = ranks.to_first(different)
    if not ranks.is_first:  # its state has everything
        return {**state, KEY: {"size": ranks.size, f"rank {ranks.rank}": {}}}
    others = {f"rank {rank}": parts for rank, parts in enumerate(found) if rank}
    return {**state, KEY: {"size": ranks.size, **others}}


def of_rank(state: Mapping[str, Any], ranks: Ranks) -> tuple[dict[str, Any], int]:
    """Returns this rank's state from a checkpoint, and the number of ranks that saved it.

    With another number of ranks it is the state of rank 0.

    Raises:
        CheckpointError: if the checkpoint does not have the state of this rank.
    """
    state = dict(state)
    saved = state.pop(KEY, {"size": 1})
    try:
        size = int(saved["size"])
        if size == ranks.size and ranks.rank:
            for part, entries in saved[f"rank {ranks.rank}"].items():
                missing = (*entries.get(MISSING, ()), MISSING)
                merged = {**state[part], **entries}
                state[part] = {name: entry for name, entry in merged.items() if name not in missing}
        if size != ranks.size:
            state["collector"] = {**state["collector"], "episode_count": _episodes(state, saved, ranks)}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"the checkpoint's {KEY!r} is not complete: {error!r}") from error
    return state, size


def _episodes(state: Mapping[str, Any], saved: Mapping[str, Any], ranks: Ranks) -> int:
    """Returns the episodes that this rank counts from on: rank 0 those of all ranks, the others 0."""
    own = state["collector"]["episode_count"]
    others = [parts.get("collector", {}) for name, parts in saved.items() if name != "size"]
    total = sum(int(collector.get("episode_count", own)) for collector in others) + int(own)
    return total if ranks.is_first else 0


def digest(tree: Any) -> str:
    """Returns a checksum of a tree of arrays, tensors and plain values; equal bits, equal checksum."""
    checksum = hashlib.sha1(usedforsecurity=False)
    for path, leaf in _leaves(tree, ""):
        checksum.update(path.encode())
        if isinstance(leaf, Tensor):
            leaf = leaf.detach().cpu().contiguous().numpy()
        if isinstance(leaf, np.ndarray):
            checksum.update(f"{leaf.dtype}{leaf.shape}".encode())
            checksum.update(np.ascontiguousarray(leaf).data)
        else:
            checksum.update(repr(leaf).encode())
    return checksum.hexdigest()


def _entries(state: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], Any]]:
    for part, entries in state.items():
        if part != "clock":  # it differs, and is that of rank 0
            for name, entry in entries.items():
                yield (part, name), entry


def _leaves(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        for name, part in tree.items():
            yield from _leaves(part, f"{path}/{name}")
    elif isinstance(tree, (list, tuple)):
        for number, part in enumerate(tree):
            yield from _leaves(part, f"{path}/{number}")
    else:
        yield path, tree


def _on_host(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {name: _on_host(part) for name, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_on_host(part) for part in tree]
    return tree.detach().cpu().numpy() if isinstance(tree, Tensor) else tree
