"""Starts a new policy from existing weights: those of a run, a checkpoint, or a file of another program.

Only tensors and numbers are read; the classes that a checkpoint's config names are ignored.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ding_lite.config.values import encode
from ding_lite.errors import CheckpointError
from ding_lite.models.actor_critic import PhasicActorCritic, default_activation
from ding_lite.policies.base import Policy
from ding_lite.run.checkpoint import load_of_run, save_checkpoint
from ding_lite.run.given import GIVEN
from ding_lite.run.load import as_tensors, refuse_misfit

# Normalisers that the weights were trained with, and the config key that turns each on.
SCALES = {
    "obs_norm": "policy.normalize.obs",
    "reward_scale": "policy.normalize.reward",
    "value_norm": "policy.learn.value_norm",
}
# Keys of policy.model that change what weights compute, and not their shapes.
MEANINGS = ("activation", "box_distribution", "bound_type")
HEAD = "auxiliary_head."  # begins the names of its parameters
NESTED = ("model", "state_dict", "model_state_dict", "policy")  # keys under which other programs save weights
# Parts of the library's policies that a new run begins anew without a word.
NOT_CARRIED = (
    *("progress", "reference", "optimizer", "value_optimizer", "aux_optimizer"),
    *("replay", "value_replay", "store"),
)


def warm_start(policy: Policy, path: str | Path, *, model_is_given: bool = False) -> list[str]:
    """Loads the weights and the normalisers of a run (its best checkpoint) or of a checkpoint.

    The optimiser, the counters and the generators stay as they are, since the run is a new one.

    Args:
        policy: policy that receives the weights.
        path: folder of a run or of a checkpoint.
        model_is_given: whether the model is an object of the caller, which the config does not describe.

    Returns:
        Lines for the user about what was loaded.

    Raises:
        CheckpointError: if there is no checkpoint, or its weights do not fit the policy.
    """
    folder, state, config = load_of_run(Path(path), "best")
    try:
        saved = as_tensors(state["policy"])
        weights = dict(saved["model"])
        iteration = state.get("progress", {}).get("iteration")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder} has no weights of a policy: {error!r}") from error
    own = policy.state_dict()
    new_heads = _new_heads(policy.model, weights)
    weights |= new_heads
    saved["model"] = weights
    refuse_misfit(folder, policy.model.state_dict(), weights)
    if not model_is_given and GIVEN not in config:
        _refuse_other_meaning(folder, config, policy)
    _refuse_missing_scale(folder, saved, own)
    loaded = {name: saved[name] for name in ("model", *SCALES) if name in saved}
    if loaded.get("reward_scale"):
        # The discounted returns of the saved run's open episodes, which this run does not continue.
        loaded["reward_scale"] = {**loaded["reward_scale"], "running_return": None}
    try:
        policy.load_state_dict({**own, **loaded})
    except CheckpointError:
        raise
    except Exception as error:  # a forged checkpoint can make any part fail in any way
        raise CheckpointError(f"{folder}: {type(error).__name__}: {error}") from error
    position = "" if iteration is None else f" at iteration {iteration}"
    messages = [f"begins from the weights of {folder}{position}"]
    left = sorted((saved.keys() & own.keys()) - {"model", *SCALES, *NOT_CARRIED})
    if left := [name for name in left if not name.startswith("generator of")]:
        messages.append(f"not taken from there: {', '.join(left)}")
    if new_heads:
        messages.append("the weights have no auxiliary head, which is PPG's own: it starts anew")
    new_scales = [key for name, key in SCALES.items() if name in own and name not in saved]
    if new_scales:
        messages.append(f"the weights bring no statistics for {' and '.join(new_scales)}: they start anew")
    return messages


def _refuse_other_meaning(folder: Path, saved: Mapping[str, Any], policy: Policy) -> None:
    """Raises a CheckpointError if the weights of a checkpoint compute something else in this policy.

    Args:
        folder: the checkpoint.
        saved: contents of its config.json.
        policy: that receives the weights.
    """
    try:
        theirs = dict(saved["config"]["policy"]["model"])
    except (KeyError, TypeError, ValueError):  # imported weights have no config
        return
    mine = encode(policy.cfg.model, "policy.model")
    for key in MEANINGS:
        if key not in mine or key not in theirs:
            continue
        own, other = mine[key], theirs[key]
        if key == "activation":
            own, other = (value or default_activation(policy.obs_space) for value in (own, other))
        if own != other:
            raise CheckpointError(
                f"the weights in {folder} were trained with policy.model.{key}={other!r}, and compute "
                f"something else with {own!r}: set it to the value that they were trained with"
            )


def _refuse_missing_scale(folder: Path, saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raises a CheckpointError if the weights were trained with a normaliser that the policy does not have.

    Args:
        folder: the checkpoint.
        saved, own: states of the saved policy and of the one that receives the weights.
    """
    for name, key in SCALES.items():
        if saved.get(name) is not None and name not in own:
            raise CheckpointError(
                f"the weights in {folder} were trained with {key}, and are wrong without it: set {key} to "
                "the value that they were trained with"
            )


def _new_heads(model: nn.Module, weights: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the parameters of PPG's auxiliary head if ``weights`` are those of a model without one."""
    if not isinstance(model, PhasicActorCritic) or any(name.startswith(HEAD) for name in weights):
        return {}
    return {name: value for name, value in model.state_dict().items() if name.startswith(HEAD)}


def import_weights(file: str | Path, folder: str | Path) -> int:
    """Turns a state dict of tensors, from a ``.pt`` or a ``.safetensors`` file, into a checkpoint.

    torch reads a ``.pt`` file with ``weights_only=True``, which refuses any other object in it. The
    checkpoint contains only weights, for :func:`warm_start`.

    Args:
        file: ``.safetensors`` is read as such, any other name as a file of ``torch.save``.
        folder: checkpoint to write, which must not exist.

    Returns:
        The number of tensors.

    Raises:
        CheckpointError: if ``file`` is not such a file, or ``folder`` exists or cannot be written.
    """
    file, folder = Path(file), Path(folder)
    if folder.exists():
        raise CheckpointError(f"{folder} exists; name a new folder")
    if not file.is_file():
        raise CheckpointError(f"{file} does not exist")
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            contents: Any = load_file(file)
        else:
            contents = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a forged file can make either fail in any way
        first_line = (str(error).strip().splitlines() or [""])[0]
        reason = f"{type(error).__name__}: {first_line[:200]}"
        if isinstance(error, pickle.UnpicklingError):  # torch's message advises against weights_only
            reason = "it contains other Python objects, or is damaged"
        raise CheckpointError(
            f"{file} is not a file of tensors alone: {reason}. Other files are refused, since loading them "
            "could run code"
        ) from error
    weights = _state_dict_in(contents)
    if not weights:
        raise CheckpointError(
            f"{file} has no state dict of tensors, neither as a whole nor under {', '.join(NESTED)}"
        )
    save_checkpoint(folder, {"policy": {"model": weights}}, {"imported": file.name})
    return len(weights)


def _state_dict_in(contents: Any) -> dict[str, Tensor]:
    """Returns the first state dict of tensors in a file's contents; {} if there is none."""
    nested = [contents.get(name) for name in NESTED] if isinstance(contents, Mapping) else []
    for candidate in (contents, *nested):
        if isinstance(candidate, Mapping) and all(
            isinstance(name, str) and isinstance(value, Tensor) for name, value in candidate.items()
        ):
            return dict(candidate)
    return {}
