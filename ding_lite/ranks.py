"""The processes that train one policy together: the ranks of torch.distributed, or this process alone.

Every rank has its own environments and samples, and the same networks and statistics. Whatever ranks
exchange goes through :class:`Ranks`. All ranks must call its methods in the same order. With one rank, a
method returns its argument at once.

``torchrun`` starts the ranks and tells them about each other in environment variables. Ranks trust each
other: torch.distributed encrypts nothing and has no passwords, so its ports belong in a private network.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ding_lite.errors import DingLiteError, RankError

Result = TypeVar("Result")
Number = TypeVar("Number", int, float)
PREFIX = "ding_lite"  # of the keys of ding_lite in the store that all ranks share
KEPT = f"{PREFIX}/kept"


class Ranks:
    """A group of processes that train one policy.

    Args:
        rank: number of this process, from 0; rank 0 writes the run's folder and shows the progress.
        size: number of processes.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size
        self.is_first = rank == 0
        # Tensors on the CPU need gloo. A default group with NCCL alone gets a second group for them.
        self._host_group: Any = None
        if size > 1 and "gloo" not in dist.get_backend_config(None):
            self._host_group = dist.new_group(backend="gloo")

    def __reduce__(self) -> Any:
        return current, ()  # a copied or unpickled policy uses the ranks of its process

    @property
    def stream(self) -> tuple[str | int, ...]:
        """A suffix that makes the name of a random stream different on every rank; empty for rank 0."""
        return ("rank", self.rank) if self.rank else ()

    def slice_of(self, n: int) -> slice:
        """Returns this rank's slice of ``n`` items; the sizes of the slices differ by at most one."""
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    @torch.no_grad()
    def sum(self, tensor: Tensor) -> Tensor:
        """Returns the sum of the ranks' tensors, the same bits on every rank; may overwrite ``tensor``."""
        if self.size > 1:
            with self._failures_named():
                dist.all_reduce(tensor, group=self._host_group if tensor.device.type == "cpu" else None)
        return tensor

    def gather(self, *numbers: float) -> np.ndarray:
        """Returns the numbers of all ranks, (size, len(numbers)) in float64."""
        local = torch.tensor(numbers, dtype=torch.float64)
        if self.size == 1:
            return local[None].numpy()
        gathered = [torch.empty_like(local) for _ in range(self.size)]
        with self._failures_named():
            dist.all_gather(gathered, local, group=self._host_group)
        return torch.stack(gathered).numpy()

    def total(self, number: float) -> float:
        """Returns the sum of the ranks' numbers."""
        return number if self.size == 1 else float(self.gather(number).sum())

    def smallest(self, number: Number) -> Number:
        """Returns the smallest of the ranks' numbers."""
        return number if self.size == 1 else type(number)(self.gather(number).min())

    def from_all(self, value: Any) -> list[Any]:
        """Returns the values of all ranks on every rank; they are pickled, so they should be small."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with self._failures_named():
            dist.all_gather_object(values, value, group=self._host_group)
        return values

    def to_first(self, value: Any) -> list[Any]:
        """Returns the values of all ranks on rank 0, and an empty list on the others."""
        if self.size == 1:
            return [value]
        values: list[Any] | None = [None] * self.size if self.is_first else None
        with self._failures_named():
            dist.gather_object(value, values, dst=0, group=self._host_group)
        return values or []

    def from_first(self, function: Callable[[], Result]) -> Result:
        """Calls a function on rank 0 only; returns its result, or raises its DingLiteError, on every rank."""
        if self.size == 1:
            return function()
        outcome: list[Any] = [None, None]
        if self.is_first:
            try:
                outcome[0] = function()
            except DingLiteError as error:
                outcome[1] = error
        with self._failures_named():
            dist.broadcast_object_list(outcome, src=0, group=self._host_group)
        result, fault = outcome
        if fault is not None:
            raise fault
        return result

    @torch.no_grad()
    def copy_first(self, tensors: Sequence[Tensor]) -> None:
        """Overwrites tensors with the values that they have on rank 0."""
        if self.size > 1:
            with self._failures_named():
                for tensor in tensors:
                    whole = tensor.contiguous()
                    dist.broadcast(whole, 0, group=self._host_group if whole.device.type == "cpu" else None)
                    tensor.copy_(whole)

    @contextlib.contextmanager
    def _failures_named(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, pickle.UnpicklingError) as error:
            if isinstance(error, DingLiteError):
                raise
            raise RankError(
                f"another of the {self.size} ranks has ended ({str(error).splitlines()[0]:.200}); its own "
                "output says why. Checkpoints are unchanged: start again, with --resume if the run has one, "
                "or let torchrun do it (--max-restarts)"
            ) from error


ALONE = Ranks()
_current = ALONE
_has_joined = False  # whether :func:`joined` has created the process group
_groups = 0  # number of process groups that this process has joined


def current() -> Ranks:
    """Returns the ranks of torch's default process group, or ``ALONE`` if there is none."""
    global _current
    size = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if size == 1:
        return ALONE
    if _current.size != size or _current.rank != dist.get_rank():
        _current = Ranks(dist.get_rank(), size)
    return _current


def number_of_processes() -> int:
    """Returns the number of processes that ``torchrun`` started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def restarts() -> int:
    """Returns how often ``torchrun`` has restarted the ranks after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) if number_of_processes() > 1 else 0


def keep_for_restart(text: str) -> None:
    """Stores a text for :func:`kept_before_restart`, in case ``torchrun`` restarts the ranks."""
    if number_of_processes() > 1:
        with contextlib.suppress(Exception):  # a store that has ended with a rank raises errors of any type
            next(dist.rendezvous("env://"))[0].set(KEPT, text)


def kept_before_restart() -> str | None:
    """Returns the text that :func:`keep_for_restart` has stored, or None."""
    store = next(dist.rendezvous("env://"))[0]
    return store.get(KEPT).decode() if store.check([KEPT]) else None


@contextlib.contextmanager
def joined() -> Iterator[Ranks]:
    """Joins the processes that ``torchrun`` started into one process group, within the block.

    An existing process group is used as it is, and is not destroyed. NCCL exchanges gradients between GPUs,
    gloo everything else.
    """
    global _has_joined, _groups
    if dist.is_initialized() or number_of_processes() == 1:
        yield current()
        return
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        has_own_gpus = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= torch.cuda.device_count()
        if has_own_gpus and dist.is_nccl_available():  # NCCL refuses two ranks on one GPU, gloo does not
            backend = "cpu:gloo,cuda:nccl"
    store, rank, size = next(dist.rendezvous("env://"))
    # The store of torchrun still has the addresses of groups from before a restart or of an earlier run.
    _groups += 1
    store = dist.PrefixStore(f"{PREFIX}/group/{restarts()}/{_groups}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    _has_joined = True
    try:
        yield current()
    finally:
        if _has_joined:  # False at interpreter exit: atexit has called _leave
            _leave()


@atexit.register
def _leave() -> None:
    global _current, _has_joined
    if _has_joined:
        _current, _has_joined = ALONE, False
        dist.destroy_process_group()
