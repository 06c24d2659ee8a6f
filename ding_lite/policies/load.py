"""A trained policy back from its run: ``load_policy("runs/cartpole_ppo").act(obs)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ding_lite.checkpoint import find_checkpoint, load_checkpoint
from ding_lite.config import policy_modules, refuse_untrusted
from ding_lite.envs.space_json import space_from_json
from ding_lite.errors import CheckpointError
from ding_lite.policies.base import Policy
from ding_lite.registry import MODEL_REGISTRY, POLICY_REGISTRY, Registry


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
    state, saved = load_checkpoint(find_checkpoint(Path(path), checkpoint))
    return policy_from_state(state, saved, device=device, trust=trust)


def policy_from_state(
    state: Mapping[str, Any], saved: Mapping[str, Any], *, device: str, trust: Sequence[str] = ()
) -> Policy:
    """Builds the policy that ``saved``, a checkpoint's config, describes, and gives it its state.

    Raises:
        CheckpointError: if that cannot be done, for whatever reason.
    """
    try:
        config = saved["config"]["policy"]
        refuse_untrusted(policy_modules(config), trust)
        _refuse_unregistered(POLICY_REGISTRY, config["type"])
        _refuse_unregistered(MODEL_REGISTRY, config["model"]["type"])
        spaces = [space_from_json(saved["spaces"][name]) for name in ("obs", "action")]
        policy: Policy = POLICY_REGISTRY.get(config["type"])(
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


def as_tensors(tree: Any) -> Any:
    """Returns a state tree with torch tensors where it has NumPy arrays."""
    if isinstance(tree, Mapping):
        return {name: as_tensors(value) for name, value in tree.items()}
    if isinstance(tree, list):
        return [as_tensors(value) for value in tree]
    return torch.from_numpy(tree.copy()) if isinstance(tree, np.ndarray) else tree
