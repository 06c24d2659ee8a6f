"""Loads a trained policy from its run: ``load_policy("runs/cartpole_ppo").act(obs)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from ding_lite.config.named_classes import classes_of_policy, policy_names
from ding_lite.config.registry import ENCODER_REGISTRY, MODEL_REGISTRY, POLICY_REGISTRY, Registry
from ding_lite.config.trust import advised_imports, trusted_config
from ding_lite.envs.space_json import space_from_json
from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.policies.base import DECLARED, Policy
from ding_lite.run.checkpoint import load_of_run
from ding_lite.run.given import refuse_other_model

MAX_NAMES = 6  # names of parameters in one line of a message


def load_policy(
    path: str | Path,
    *,
    checkpoint: str = "best",
    device: str = "cpu",
    trust: Sequence[str] = (),
    model: nn.Module | None = None,
) -> Policy:
    """Returns the policy of a run or of a checkpoint, ready to act; it contains its normalisers.

    Your own policy, model or distribution needs its module: import it before, or name it in ``trust``. A
    module that only the checkpoint names is never imported.

    Args:
        path: a run's folder, or one of its checkpoints.
        checkpoint: name of a checkpoint of the run: ``"best"``, ``"last"`` or ``"iteration_..."``.
        device: device of the model, such as ``"cpu"`` or ``"cuda:0"``.
        trust: your own modules, which are imported first.
        model: takes the weights, for a run that was given a model; None: it is built from the config.

    Raises:
        CheckpointError: if there is no checkpoint, it is damaged, its classes are not registered, a trusted
            module cannot be imported, or the model is another one.
    """
    folder, state, saved = load_of_run(Path(path), checkpoint)
    return policy_from_state(folder, state, saved, device=device, trust=trust, model=model)


def policy_from_state(
    folder: Path,
    state: Mapping[str, Any],
    saved: Mapping[str, Any],
    *,
    device: str,
    trust: Sequence[str],
    model: nn.Module | None = None,
) -> Policy:
    """Builds the policy of a checkpoint and loads its state.

    Args:
        folder: the checkpoint, for messages.
        state: state tree of the checkpoint.
        saved: config and spaces of the checkpoint.
        device: device of the model.
        trust: modules of the user, which are imported first.
        model: takes the weights; None: it is built from the config.

    Raises:
        CheckpointError: if the policy cannot be built, for any reason.
    """
    try:
        refuse_other_model(folder, saved, model)
        trusted = trusted_config(saved, policy_names, trust)
        for registry, name in classes_of_policy(trusted["policy"]):
            if name is not None and registry is not ENCODER_REGISTRY:
                _refuse_unregistered(registry, name, advised_imports(saved, trust))
        config = trusted["policy"]
        spaces = [space_from_json(saved["spaces"][name]) for name in ("obs", "action")]
        policy_class = POLICY_REGISTRY.get(config["type"])
        builds_registered_model = policy_class._make_model is Policy._make_model
        if model is not None:
            expected: Mapping[str, torch.Tensor] | None = model.state_dict()
        else:
            expected = _unallocated_weights(config["model"], *spaces) if builds_registered_model else None
        if expected is not None:
            refuse_misfit(folder, expected, state["policy"]["model"])
        policy: Policy = policy_class(
            {**config, "device": device, "cuda": None},
            *spaces,
            enable_field=("collect", "eval"),
            model=model,
            seed=int(saved["config"]["seed"]),
        )
        policy.load_state_dict(as_tensors(state["policy"]))
    except CheckpointError:
        raise
    except Exception as error:  # a forged checkpoint can make any constructor fail in any way
        if isinstance(error, ConfigError) and str(error).startswith("policy.device"):
            raise  # an argument of the caller, not the checkpoint
        raise CheckpointError(
            f"the checkpoint's policy cannot be built: {type(error).__name__}: {error}"
        ) from error
    return policy


def _refuse_unregistered(registry: Registry, name: str, imports: str) -> None:
    """Raises a CheckpointError if a name is not registered.

    Args:
        registry: that should have it.
        name: in the checkpoint.
        imports: options that the run was started with, or "".
    """
    if ":" not in name and name not in registry:
        started = f". The run was started with {imports}" if imports else ""
        raise CheckpointError(
            f"the checkpoint needs the {registry.noun} {name!r}, which is not registered. If you "
            "trust the module that registers it, name it: --import MODULE (in Python: trust=['MODULE']), or "
            f"import it first{started}"
        )


def _unallocated_weights(model: Mapping[str, Any], *spaces: gym.Space) -> Mapping[str, torch.Tensor] | None:
    """Returns the state dict of a model without allocating it, since a config may ask for any size.

    None if the model cannot be built without data, as a user's model that computes with its parameters.
    """
    arguments = {name: value for name, value in model.items() if name not in ("type", *DECLARED)}
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            built: torch.nn.Module = MODEL_REGISTRY.get(model["type"])(*spaces, **arguments)
            return built.state_dict()
    except Exception:
        return None


def as_tensors(tree: Any) -> Any:
    """Returns a state tree with its NumPy arrays as torch tensors."""
    if isinstance(tree, Mapping):
        return {name: as_tensors(value) for name, value in tree.items()}
    if isinstance(tree, list):
        return [as_tensors(value) for value in tree]
    return torch.from_numpy(tree.copy()) if isinstance(tree, np.ndarray) else tree


def refuse_misfit(folder: Path, expected: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
    """Compares the weights in a checkpoint with the parameters of a model.

    Args:
        folder: the checkpoint, for the message.
        expected: state dict of the model.
        weights: state dict in the checkpoint.

    Raises:
        CheckpointError: if names or shapes differ; the message lists all differences.
    """
    not_arrays = [name for name, value in weights.items() if not hasattr(value, "shape")]
    shapes = {name: tuple(value.shape) for name, value in weights.items() if name not in not_arrays}
    faults = {
        "missing": [name for name in expected if name not in weights],
        "unknown to this model": [name for name in weights if name not in expected],
        "not arrays": not_arrays,
        "of another shape": [
            f"{name} {shapes[name]}, this model has {tuple(value.shape)}"
            for name, value in expected.items()
            if name in shapes and shapes[name] != tuple(value.shape)
        ],
    }
    lines = [f"{fault}: {_first_names(names)}" for fault, names in faults.items() if names]
    if lines:
        raise CheckpointError(
            "\n  ".join(
                [f"the saved 'model' does not fit: the weights in {folder} are not of this model:", *lines]
            )
            + "\nThe spaces and policy.model (widths, rnn, encoders) must be those that the weights were "
            "trained with"
        )


def _first_names(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(map(str, names[:MAX_NAMES])) + more
