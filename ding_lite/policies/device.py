"""The device that a policy computes on."""

from __future__ import annotations

import torch
from torch import nn

from ding_lite.errors import ConfigError
from ding_lite.ranks import current

GPU_LAYER = 2**16  # weights; with 64 x 64 a gradient step takes four times as long on a GPU


def chosen_device(name: str, cuda: bool | None, model: nn.Module) -> torch.device:
    """Returns the device that a config's ``policy.device`` and ``policy.cuda`` ask for.

    "auto" is a GPU, if there is one, for a model that is large enough (:func:`gains_by_gpu`). A model that is
    on a GPU stays there.

    Raises:
        ConfigError: if there is none such.
    """
    default = torch.get_default_device()
    if default.type != "cpu":
        raise ConfigError(
            f"torch.set_default_device({str(default)!r}) puts the library's tensors on that device, too; "
            "remove it: policy.device chooses the device of a policy"
        )
    device = _automatic(cuda, model) if name == "auto" else _named(name)
    if current().size > 1:
        device = _of_rank(device)
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ConfigError(
            f"policy.device: {str(device)!r} was asked for, and torch sees {count} CUDA devices; "
            "use device='auto' or 'cpu'"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("policy.device: 'mps' was asked for, and torch has none here; use 'cpu'")
    return device


def gains_by_gpu(model: nn.Module) -> bool:
    """Returns whether a model has a convolution, or a layer of more than 256 x 256 weights."""
    return any(weight.dim() > 2 or weight.numel() > GPU_LAYER for weight in model.parameters())


def _automatic(cuda: bool | None, model: nn.Module) -> torch.device:
    if cuda is not None:
        return torch.device("cuda" if cuda else "cpu")
    present = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    if present.type in ("cuda", "mps"):
        return present
    return torch.device("cuda" if torch.cuda.is_available() and gains_by_gpu(model) else "cpu")


def _named(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise ConfigError(f"policy.device: {name!r} is not one of auto, cpu, cuda, cuda:N, mps")
    return device


def _of_rank(device: torch.device) -> torch.device:
    """Returns the device of this rank, if there are several: each has a GPU of its own."""
    if device.type == "cpu" or not torch.cuda.is_available():
        return device
    own = torch.device("cuda", torch.cuda.current_device())
    if device.type != "cuda" or device.index not in (None, own.index):
        raise ConfigError(
            f"policy.device: {str(device)!r} was asked for, and this rank has {str(own)!r}; write 'cuda'"
        )
    return own
