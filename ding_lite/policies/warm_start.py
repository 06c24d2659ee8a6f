"""A new policy that begins from somebody's weights: a run's, a checkpoint's, or a foreign file's.

Only tensors and numbers are taken; what a checkpoint's config names is not even looked at.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ding_lite.checkpoint import find_checkpoint, load_checkpoint, save_checkpoint
from ding_lite.errors import CheckpointError
from ding_lite.policies.base import Policy
from ding_lite.policies.load import as_tensors, refuse_misfit

# Parts whose scale the weights were trained in, with the key that turns each on.
SCALES = {
    "obs_norm": "policy.normalize.obs",
    "reward_scale": "policy.normalize.reward",
    "value_norm": "policy.learn.value_norm",
}
NESTED = ("model", "state_dict", "model_state_dict", "policy")  # where others keep a state dict


def warm_start(policy: Policy, path: str | Path) -> list[str]:
    """Gives ``policy`` the weights and the scales of a run (its best) or of a checkpoint.

    The optimiser, the counters and the generators stay as they are: it is a new run.

    Returns:
        what the user is to be told.

    Raises:
        CheckpointError: if there is none, or the weights are of another model.
    """
    folder = find_checkpoint(Path(path), "best")
    state, _ = load_checkpoint(folder)
    try:
        given = as_tensors(state["policy"])
        weights = dict(given["model"])
        iteration = state.get("progress", {}).get("iteration")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder} has no weights of a policy: {error!r}") from error
    refuse_misfit(folder, policy.model.state_dict(), weights)
    parts = policy._state()
    for name, key in SCALES.items():
        if given.get(name) is not None and parts.get(name) is None:
            raise CheckpointError(
                f"the weights in {folder} were trained with {key}, and mean nothing without its scale: "
                f"set {key} as it was there"
            )
    begins_anew = [key for name, key in SCALES.items() if parts.get(name) is not None and name not in given]
    taken = {name: given[name] for name in ("model", *SCALES) if name in given}
    if taken.get("reward_scale"):  # the returns of episodes that were open there
        taken["reward_scale"] = {**taken["reward_scale"], "running_return": None}
    try:
        policy.load_state_dict({**policy.state_dict(), **taken})
    except CheckpointError:
        raise
    except Exception as error:  # a forged one can make any part fail in any way
        raise CheckpointError(f"{folder}: {type(error).__name__}: {error}") from error
    at = "" if iteration is None else f" at iteration {iteration}"
    lines = [f"begins from the weights of {folder}{at}"]
    if begins_anew:
        lines.append(f"which has no scale for {' and '.join(begins_anew)}: it is learned anew")
    return lines


def import_weights(file: str | Path, folder: str | Path) -> int:
    """Turns a state dict of tensors, from a ``.pt`` or a ``.safetensors`` file, into a checkpoint.

    A ``.pt`` is read by torch with ``weights_only=True``: whatever else is in it is refused. The checkpoint
    has weights alone, for :func:`warm_start`.

    Returns:
        how many tensors there were.

    Raises:
        CheckpointError: if ``file`` is no such file, or ``folder`` exists or cannot be written.
    """
    file, folder = Path(file), Path(folder)
    if folder.exists():
        raise CheckpointError(f"{folder} exists; name a folder that does not")
    if not file.is_file():
        raise CheckpointError(f"{file} does not exist")
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            found: Any = load_file(file)
        else:
            found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a forged file can make either fail in any way
        first = str(error).strip().splitlines() or [""]
        why = f"{type(error).__name__}: {first[0][:200]}"
        if isinstance(error, pickle.UnpicklingError):  # torch's words advise to do without weights_only
            why = "it holds other objects of Python, or is damaged"
        raise CheckpointError(
            f"{file} is not a file of tensors alone: {why}. Only such are read, since anything else could "
            "run code"
        ) from error
    weights = _state_dict_in(found)
    if not weights:
        raise CheckpointError(
            f"{file} has no state dict of tensors, neither as a whole nor under {', '.join(NESTED)}"
        )
    save_checkpoint(folder, {"policy": {"model": weights}}, {"imported": file.name})
    return len(weights)


def _state_dict_in(found: Any) -> dict[str, Tensor]:
    inside = [found.get(name) for name in NESTED] if isinstance(found, Mapping) else []
    for candidate in (found, *inside):
        if isinstance(candidate, Mapping) and all(
            isinstance(name, str) and isinstance(value, Tensor) for name, value in candidate.items()
        ):
            return dict(candidate)
    return {}
