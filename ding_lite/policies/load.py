"""A trained policy back from its run: ``load_policy("runs/cartpole_ppo").act(obs)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from ding_lite.checkpoint import find_checkpoint, load_checkpoint
from ding_lite.config import policy_modules, trusted_config
from ding_lite.envs.space_json import space_from_json
from ding_lite.errors import CheckpointError
from ding_lite.policies.base import Policy
from ding_lite.registry import MODEL_REGISTRY, POLICY_REGISTRY, Registry

# What a config's section policy.model has beside the arguments of the model.
NOT_FOR_MODELS = ("type", "obs_shape", "action_shape", "action_space")
SHOWN = 6  # names in one message


def load_policy(
    path: str | Path, *, checkpoint: str = "best", device: str = "cpu", trust: Sequence[str] = ()
) -> Policy:
    """Returns the policy of a run or of a checkpoint folder, ready to act; its scales are inside it.

    Nothing named inside the checkpoint is imported: a policy or a model of your own must have been
    registered before, by importing its module, or its module be named in ``trust``.

    Args:
        path: a run's folder, or one of its checkpoints.
        checkpoint: which one of a run: ``"best"``, ``"last"`` or ``"iteration_..."``.
        device: where it is to run.
        trust: modules of your own that the checkpoint may import.

    Raises:
        CheckpointError: if there is none, or it is damaged, or its classes are not registered.
    """
    folder = find_checkpoint(Path(path), checkpoint)
    state, saved = load_checkpoint(folder)
    return policy_from_state(folder, state, saved, device=device, trust=trust)


def policy_from_state(
    folder: Path,
    state: Mapping[str, Any],
    saved: Mapping[str, Any],
    *,
    device: str,
    trust: Sequence[str] = (),
) -> Policy:
    """Builds the policy that ``saved``, the config in ``folder``, describes, and gives it its state.

    Raises:
        CheckpointError: if that cannot be done, for whatever reason.
    """
    try:
        config = trusted_config(saved, lambda whole: policy_modules(whole["policy"]), trust)["policy"]
        _refuse_unregistered(POLICY_REGISTRY, config["type"])
        _refuse_unregistered(MODEL_REGISTRY, config["model"]["type"])
        spaces = [space_from_json(saved["spaces"][name]) for name in ("obs", "action")]
        kind = POLICY_REGISTRY.get(config["type"])
        expected = _shapes(config["model"], *spaces) if kind._make_model is Policy._make_model else None
        if expected is not None:
            refuse_misfit(folder, expected, state["policy"]["model"])
        policy: Policy = kind(
            {**config, "device": device, "cuda": None},
            *spaces,
            enable_field=("collect", "eval"),
            seed=int(saved["config"]["seed"]),
        )
        policy.load_state_dict(as_tensors(state["policy"]))
    except CheckpointError:
        raise
    except Exception as error:  # a forged file can make any constructor fail in any way
        raise CheckpointError(
            f"the checkpoint's policy cannot be built: {type(error).__name__}: {error}"
        ) from error
    return policy


def _refuse_unregistered(registry: Registry, name: str) -> None:
    if ":" not in name and name not in registry:
        raise CheckpointError(
            f"the checkpoint needs the {registry.noun} {name!r}, which is not registered. Import the "
            "module that registers it first (on the command line: --import MODULE); a checkpoint never "
            "does that by itself"
        )


def _shapes(model: Mapping[str, Any], *spaces: gym.Space) -> Mapping[str, torch.Tensor] | None:
    """Returns the state dict of a model that takes no memory: a config may ask for one of any size.

    None where it cannot be built so: one of the user's own may compute something on the way.
    """
    options = {name: value for name, value in model.items() if name not in NOT_FOR_MODELS}
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            shapes: Mapping[str, torch.Tensor] = MODEL_REGISTRY.get(model["type"])(
                *spaces, **options
            ).state_dict()
    except Exception:
        return None
    return shapes


def as_tensors(tree: Any) -> Any:
    """Returns a state tree with torch tensors where it has NumPy arrays."""
    if isinstance(tree, Mapping):
        return {name: as_tensors(value) for name, value in tree.items()}
    if isinstance(tree, list):
        return [as_tensors(value) for value in tree]
    return torch.from_numpy(tree.copy()) if isinstance(tree, np.ndarray) else tree


def refuse_misfit(folder: Path, own: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Tells all at once what is missing, what is too much, and what has another shape.

    Raises:
        CheckpointError: where the weights ``given`` in ``folder`` are not those of a model that has ``own``.
    """
    alien = [name for name, value in given.items() if not hasattr(value, "shape")]
    shapes = {name: tuple(value.shape) for name, value in given.items() if name not in alien}
    faults = {
        "not there": [name for name in own if name not in given],
        "unknown to this model": [name for name in given if name not in own],
        "not arrays": alien,
        "of another shape": [
            f"{name} {shapes[name]}, this model has {tuple(value.shape)}"
            for name, value in own.items()
            if name in shapes and shapes[name] != tuple(value.shape)
        ],
    }
    lines = [f"{kind}: {_few(names)}" for kind, names in faults.items() if names]
    if lines:
        raise CheckpointError(
            "\n  ".join(
                [f"the saved 'model' does not fit: the weights in {folder} are not of this model:", *lines]
            )
            + "\nThe spaces and policy.model must be those that it was trained with"
        )


def _few(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(str, names[:SHOWN])) + more
