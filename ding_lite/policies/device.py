"""The device that a policy computes on."""

from __future__ import annotations

import torch

from ding_lite.errors import ConfigError
from ding_lite.rl.ranks import current


def chosen_device(name: str, cuda: bool | None) -> torch.device:
    """Returns the device that a config's ``policy.device`` and ``policy.cuda`` ask for.

    Raises:
        ConfigError: if there is none such.
    """
    if cuda and name == "auto":
        name = "cuda"
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() and cuda is not False else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise ConfigError(f"policy.device: {name!r} is not one of auto, cpu, cuda, cuda:N, mps")
    count = torch.cuda.device_count()
    if device.type == "cuda" and device.index is None and current().size > 1:
        device = torch.device("cuda", torch.cuda.current_device())  # that of this rank
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ConfigError(
            f"policy.device: {name!r} was asked for, and torch sees {count} CUDA devices; "
            "use device='auto' or 'cpu'"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("policy.device: 'mps' was asked for, and torch has none here; use 'cpu'")
    return device
