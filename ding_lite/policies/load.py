"""A trained policy back from its run: ``load_policy("runs/cartpole_ppo").act(obs)``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ding_lite.checkpoint import find_checkpoint, load_checkpoint
from ding_lite.envs.space_json import space_from_json
from ding_lite.errors import CheckpointError
from ding_lite.policies.base import Policy
from ding_lite.registry import MODEL_REGISTRY, POLICY_REGISTRY


def load_policy(path: str | Path, *, checkpoint: str = "best", device: str = "cpu") -> Policy:
    """Returns the policy of a run or of a checkpoint folder, ready to act; its scales are inside it.

    Nothing named inside the checkpoint is imported: a policy or a model of your own must have been
    registered before, by importing its module.

    Args:
        path: a run's folder, or one of its checkpoints.
        checkpoint: which one of a run: ``"best"``, ``"last"`` or ``"iteration_..."``.
        device: where it is to run.

    Raises:
        CheckpointError: if there is none, or it is damaged, or its classes are not registered.
    """
    folder = find_checkpoint(Path(path), checkpoint)
    state, saved = load_checkpoint(folder)
    return policy_from_state(state, saved, device=device, enable_field=("collect", "eval"))


def policy_from_state(
    state: Mapping[str, Any], saved: Mapping[str, Any], *, device: str, enable_field: tuple[str, ...]
) -> Policy:
    """Builds the policy that ``saved``, a checkpoint's config, describes, and gives it its state."""
    try:
        config = saved["config"]["policy"]
        spaces = [space_from_json(saved["spaces"][name]) for name in ("obs", "action")]
        known = {
            POLICY_REGISTRY: config["type"],
            MODEL_REGISTRY: config["model"]["type"],
        }
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint's config is not complete: {error!r}") from error
    for registry, name in known.items():
        if name not in registry:
            raise CheckpointError(
                f"the checkpoint needs the {registry.noun} {name!r}, which is not registered. Import the "
                "module that registers it first (on the command line: --import MODULE); a checkpoint "
                "never does that by itself"
            )
    policy = POLICY_REGISTRY.get(config["type"])(
        {**config, "device": device, "cuda": None},
        *spaces,
        enable_field=enable_field,
        seed=int(saved["config"]["seed"]),
    )
    policy.load_state_dict(as_tensors(state["policy"]))
    return policy


def as_tensors(tree: Any) -> Any:
    """Returns a state tree with torch tensors where it has NumPy arrays."""
    if isinstance(tree, Mapping):
        return {name: as_tensors(value) for name, value in tree.items()}
    if isinstance(tree, list):
        return [as_tensors(value) for value in tree]
    return torch.from_numpy(tree.copy()) if isinstance(tree, np.ndarray) else tree
