"""All randomness of a run, derived from its one seed.

Every use has a name, and a name has a stream of its own: adding one use never shifts another. The
streams come from ``numpy.random.SeedSequence``, so neighbouring seeds are unrelated.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch


def seed_sequence(seed: int, *name: str | int) -> np.random.SeedSequence:
    """Returns the stream called ``name``, such as ``("env", 3, 17)``, of the run ``seed``."""
    key = tuple(zlib.crc32(part.encode()) if isinstance(part, str) else part for part in name)
    return np.random.SeedSequence(entropy=seed, spawn_key=key)


def integer_seed(seed: int, *name: str | int) -> int:
    """Returns a seed of 31 bits, as ``env.reset(seed=...)`` takes it."""
    return int(seed_sequence(seed, *name).generate_state(1)[0]) & 0x7FFFFFFF


def numpy_generator(seed: int, *name: str | int) -> np.random.Generator:
    """Returns a NumPy generator of its own for ``name``."""
    return np.random.Generator(np.random.PCG64(seed_sequence(seed, *name)))


def torch_generator(seed: int, *name: str | int, device: Any = "cpu") -> torch.Generator:
    """Returns a torch generator of its own for ``name``, on ``device``."""
    import torch

    generator = torch.Generator(device=device)
    generator.manual_seed(integer_seed(seed, *name))
    return generator


class GeneratorState:
    """Gives a torch generator the two methods that every part of a state has."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def state_dict(self) -> dict[str, Any]:
        return {"state": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.generator.set_state(state["state"])
