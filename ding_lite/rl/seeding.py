"""Named random streams, all derived from the one seed of a run.

Each use of randomness has a name, and each name has its own stream, so a new use never changes the numbers
of another use. ``numpy.random.SeedSequence`` makes the streams of neighbouring seeds unrelated.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

ONE_THREAD = threading.RLock()  # while torch's global generator has another state


def seed_sequence(seed: int, *name: str | int) -> np.random.SeedSequence:
    """Returns the seed sequence of the stream ``name``, such as ``("env", 3, 17)``."""
    key = tuple(zlib.crc32(part.encode()) if isinstance(part, str) else part for part in name)
    return np.random.SeedSequence(entropy=seed, spawn_key=key)


def integer_seed(seed: int, *name: str | int) -> int:
    """Returns a seed in 0 .. 2^31 - 1 for ``env.reset(seed=...)``, from the stream ``name``."""
    return int(seed_sequence(seed, *name).generate_state(1)[0]) & 0x7FFFFFFF


def torch_generator(seed: int, *name: str | int, device: Any = "cpu") -> torch.Generator:
    """Returns a new torch generator on ``device`` for the stream ``name``."""
    import torch

    generator = torch.Generator(device=device)
    generator.manual_seed(integer_seed(seed, *name))
    return generator


@contextmanager
def seeded_layers(seed: int, *name: str | int) -> Iterator[None]:
    """Seeds torch's global CPU generator within the block, from which layers draw their first weights."""
    import torch

    with ONE_THREAD, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(integer_seed(seed, *name))
        yield


class GeneratorState:
    """Saves and restores the state of a torch generator, with the methods that checkpoints call."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def state_dict(self) -> dict[str, Any]:
        return {"state": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state; a state of another device type, of another size, seeds a new stream instead."""
        if len(state["state"]) == len(self.generator.get_state()):
            self.generator.set_state(state["state"])
        else:
            self.generator.manual_seed(zlib.crc32(bytes(state["state"].tolist())))
