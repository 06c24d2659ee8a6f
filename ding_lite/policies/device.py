"""The device that a policy computes on."""

from __future__ import annotations

import torch
from torch import nn

from ding_lite.errors import ConfigError
from ding_lite.rl.ranks import current

LARGE_LAYER = 2**16  # weights; with 64 x 64 a gradient step takes four times as long on a GPU


def chosen_device(name: str, cuda: bool | None, model: nn.Module) -> torch.device:
    """Returns the device that a config's ``policy.device`` and ``policy.cuda`` ask for.

    "auto" is a GPU, if there is one, for a model that is large enough (:func:`gains_by_gpu`).

    Raises:
        ConfigError: if there is none such.
    """
    if name == "auto" and cuda is not None:
        name = "cuda" if cuda else "cpu"
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() and gains_by_gpu(model) else "cpu"
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


def gains_by_gpu(model: nn.Module) -> bool:
    """Returns whether a model has a convolution or a layer of more than 256 x 256 weights, or is there."""
    return any(p.is_cuda or p.dim() > 2 or p.numel() > LARGE_LAYER for p in model.parameters())
