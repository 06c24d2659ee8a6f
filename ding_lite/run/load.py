"""Loads a trained policy, ``load_policy("runs/cartpole_ppo").act(obs)``, or begins from its weights.

Whatever the file, nothing in it is executed, and no module is imported that only the file names.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.config.registry import MODEL_REGISTRY, POLICY_REGISTRY, SCRIPT, import_module, script_name
from ding_lite.config.values import decode, encode, named_paths
from ding_lite.envs.space_json import space_from_json
from ding_lite.errors import FOREIGN, CheckpointError, ConfigError, error_text
from ding_lite.models.actor_critic import PhasicActorCritic, default_activation
from ding_lite.policies.base import Policy
from ding_lite.run.checkpoint import METADATA, SUFFIX, load_of_run

MAX_NAMES = 6  # names of parameters in one line of a message
# Normalisers that weights were trained with, and the config key that turns each on.
SCALES = {
    "obs_norm": "policy.normalize.obs",
    "reward_scale": "policy.normalize.reward",
    "value_norm": "policy.learn.value_norm",
}
MEANINGS = ("activation", "box_distribution", "bound_type")  # keys of policy.model: what weights compute
HEAD = "auxiliary_head."  # begins the names of its parameters
NESTED = ("model", "state_dict", "model_state_dict", "policy")  # keys under which other programs save weights


def load_policy(
    path: str | Path,
    *,
    checkpoint: str = "best",
    device: str = "cpu",
    trust: Sequence[str] = (),
    model: nn.Module | None = None,
) -> Policy:
    """Returns the policy of a run or of a checkpoint, ready to act; it contains its normalisers.

    Args:
        path: a run's folder, or one of its checkpoints.
        checkpoint: name of a checkpoint of the run: ``"best"``, ``"last"`` or ``"iteration_..."``.
        device: device of the model, such as ``"cpu"`` or ``"cuda:0"``.
        trust: your own modules that the config of the run names; they are imported first.
        model: takes the weights, for a run that was given a model; None: it is built from the config.

    Raises:
        CheckpointError: if there is no checkpoint, it is damaged, its config names a module that is not
            trusted, or its weights do not fit.
    """
    file, state, saved = load_of_run(path, checkpoint)
    return policy_from_state(file, state, saved, device=device, trust=trust, model=model)


def policy_from_state(
    file: Path,
    state: Mapping[str, Any],
    saved: Mapping[str, Any],
    *,
    device: str,
    trust: Sequence[str],
    model: nn.Module | None = None,
) -> Policy:
    """Builds the policy of a checkpoint and loads its state.

    Args:
        file: the checkpoint, for messages.
        state: state tree of the checkpoint.
        saved: config and spaces of the checkpoint.
        device, trust, model: as for :func:`load_policy`.

    Raises:
        CheckpointError: if the policy cannot be built, for any reason.
    """
    if model is None:
        refuse_without(file, saved, "model")
    try:
        policy_section = trusted_config(saved, trust, "policy")
        config = decode(policy_section, "policy")
        spaces = [space_from_json(saved["spaces"][name]) for name in ("obs", "action")]
        policy_class = POLICY_REGISTRY.get(config["type"])
        expected: Mapping[str, Any] | None = None
        if model is not None:
            expected = model.state_dict()
        elif policy_class._make_model is Policy._make_model:
            expected = _unallocated_weights(config["model"], *spaces)
        if expected is not None:
            refuse_misfit(file, expected, state["policy"]["model"])
        policy: Policy = policy_class(
            {**config, "device": device},
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
        raise CheckpointError(f"the policy of {file} cannot be built: {error_text(error)}") from error
    return policy


def trusted_config(saved: Mapping[str, Any], trust: Sequence[str], section: str = "") -> Any:
    """Returns the config of a checkpoint, or a section, if the user trusts all modules that it names.

    Each text of the form "module:Name" in it must be of a module that the user names, or a class of the
    script that runs. The user's modules are imported, since they may register names.

    Args:
        saved: what the checkpoint keeps beside the state, possibly made by anybody.
        trust: modules that the user has named in this call.
        section: of the config; "": all of it.

    Raises:
        CheckpointError: if a module is not trusted or cannot be imported, or the checkpoint has no config.
    """
    config = saved.get("config")
    config = config.get(section) if section and isinstance(config, dict) else config
    if not isinstance(config, dict):
        raise CheckpointError("the checkpoint has no config of a run: only --init-from can use its weights")
    texts = [text for text in named_paths(config) if not _is_class_of_script(text)]
    unknown = sorted({text.partition(":")[0] for text in texts} - {*trust})
    if unknown:
        options = " ".join(f"--import {module}" for module in unknown)
        raise CheckpointError(
            f"the checkpoint's config names {', '.join(map(repr, texts))}. A module that only a checkpoint "
            f"names is not imported; if you trust it: {options} (in Python: trust={unknown!r})"
        )
    loaded = {}
    for module in trust:
        try:
            loaded[module] = import_module(module)
        except FOREIGN as error:
            raise CheckpointError(
                f"the trusted module {module!r} cannot be imported: {error_text(error)}"
            ) from error
    for text in texts:  # what a trusted module has only imported, such as "mine:os.system", is not its own
        module, _, name = text.partition(":")
        found: Any = loaded[module]
        for part in name.split("."):
            found = getattr(found, part, None)
        owner = getattr(found, "__module__", module)
        if owner.split(".")[0] != module.split(".")[0]:
            raise CheckpointError(f"the checkpoint's config names {text!r}, which {module} has only imported")
    return config


def _is_class_of_script(text: str) -> bool:
    """Returns whether "module:Name" is a class that the running script itself defines."""
    module, _, name = text.partition(":")
    found = getattr(sys.modules[SCRIPT], name, None) if module in (SCRIPT, script_name()) else None
    return isinstance(found, type) and found.__module__ == SCRIPT


def was_given(saved: Mapping[str, Any], name: str) -> bool:
    """Returns whether a script gave a run an object: ``env_setting`` or ``model``."""
    given = saved.get("given")
    return isinstance(given, list) and name in given


def refuse_without(file: Path, saved: Mapping[str, Any], name: str) -> None:
    """Refuses to take what a config describes for what a script gave the run: ``env_setting`` or ``model``.

    Raises:
        ConfigError: if the script gave it.
    """
    if was_given(saved, name):
        raise ConfigError(
            f"{file}: a script gave this run its {name}, and the config describes another one. Give it "
            f"again, in Python: {name}=..."
        )


def _unallocated_weights(model: Mapping[str, Any], *spaces: gym.Space) -> Mapping[str, Tensor] | None:
    """Returns the state dict of a model without allocating it, since a config may ask for any size.

    None if the model cannot be built without data, as a user's model that computes with its parameters.
    """
    arguments = {name: value for name, value in model.items() if name != "type"}
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            built: nn.Module = MODEL_REGISTRY.get(model["type"])(*spaces, **arguments)
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


def refuse_misfit(file: Path, expected: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
    """Compares the weights in a checkpoint with the parameters of a model.

    Args:
        file: the checkpoint, for the message.
        expected: state dict of the model.
        weights: state dict in the checkpoint.

    Raises:
        CheckpointError: if names or shapes differ; the message lists all differences.
    """
    shapes = {name: tuple(getattr(value, "shape", ("not an array",))) for name, value in weights.items()}
    faults = {
        "missing": [name for name in expected if name not in shapes],
        "unknown to this model": [name for name in shapes if name not in expected],
        "of another shape": [
            f"{name} {shapes[name]}, this model has {tuple(value.shape)}"
            for name, value in expected.items()
            if shapes.get(name, tuple(value.shape)) != tuple(value.shape)
        ],
    }
    lines = [
        f"{fault}: {', '.join(map(str, names[:MAX_NAMES]))}"
        + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")
        for fault, names in faults.items()
        if names
    ]
    if lines:
        raise CheckpointError(
            "\n  ".join([f"the weights in {file} are not of this model:", *lines])
            + "\nThe spaces and policy.model (widths, rnn, encoders) must be those that the weights were "
            "trained with"
        )


def warm_start(policy: Policy, path: str | Path, *, model_is_given: bool = False) -> list[str]:
    """Loads the weights and the normalisers of a run's best checkpoint, a checkpoint, or a file of weights.

    The optimiser, the counters and the generators stay as they are, since the run is a new one.

    Args:
        policy: receives the weights.
        path: of a run, a checkpoint, or another program's file with a state dict of tensors: ``.pt`` or
            ``.safetensors``.
        model_is_given: whether the model is an object of the caller, which the config does not describe.

    Returns:
        Lines for the user about what was loaded.

    Raises:
        CheckpointError: if there is no such file, or its weights do not fit the policy.
    """
    foreign = _foreign_weights(Path(path))
    if foreign is None:
        file, state, saved = load_of_run(path, "best")
    else:
        file, state, saved = Path(path), {"policy": {"model": foreign}}, {}
    try:
        theirs = as_tensors(state["policy"])
        weights = dict(theirs["model"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{file} has no weights of a policy: {error!r}") from error
    own = policy.state_dict()
    model = policy.model
    new_heads: dict[str, Tensor] = {}
    if isinstance(model, PhasicActorCritic) and not any(name.startswith(HEAD) for name in weights):
        new_heads = {name: value for name, value in model.state_dict().items() if name.startswith(HEAD)}
    theirs["model"] = weights | new_heads
    refuse_misfit(file, model.state_dict(), theirs["model"])
    if not model_is_given and not was_given(saved, "model"):
        _refuse_other_meaning(file, saved, policy)
    for name, key in SCALES.items():
        if theirs.get(name) is not None and name not in own:
            raise CheckpointError(
                f"the weights in {file} were trained with {key}, and are wrong without it: set {key} to the "
                "value that they were trained with"
            )
    loaded = {name: theirs[name] for name in ("model", *SCALES) if name in theirs}
    if loaded.get("reward_scale"):
        # The discounted returns of the saved run's open episodes, which this run does not continue.
        loaded["reward_scale"] = {**loaded["reward_scale"], "running_return": None}
    try:
        policy.load_state_dict({**own, **loaded})
    except CheckpointError:
        raise
    except Exception as error:  # a forged checkpoint can make any part fail in any way
        raise CheckpointError(f"{file}: {type(error).__name__}: {error}") from error
    messages = [f"begins from the weights of {file}"]
    if new_heads:
        messages.append("the weights have no auxiliary head, which is PPG's own: it starts anew")
    new_scales = [key for name, key in SCALES.items() if name in own and name not in theirs]
    if new_scales:
        messages.append(f"the weights bring no statistics for {' and '.join(new_scales)}: they start anew")
    return messages


def _refuse_other_meaning(file: Path, saved: Mapping[str, Any], policy: Policy) -> None:
    """Raises a CheckpointError if the weights of a checkpoint compute something else in this policy."""
    try:
        theirs = dict(saved["config"]["policy"]["model"])
    except (KeyError, TypeError, ValueError):  # another program's weights have no config
        return
    mine = encode(policy.cfg.model, "policy.model")
    for key in MEANINGS:
        own, other = mine.get(key), theirs.get(key)
        if key == "activation":
            own, other = (value or default_activation(policy.obs_space) for value in (own, other))
        if key in mine and key in theirs and own != other:
            raise CheckpointError(
                f"the weights in {file} were trained with policy.model.{key}={other!r}, and compute "
                f"something else with {own!r}: set it to the value that they were trained with"
            )


def _foreign_weights(file: Path) -> dict[str, Tensor] | None:
    """Returns the state dict in another program's file; None for a run or a checkpoint.

    torch reads a ``.pt`` file with ``weights_only=True``, which refuses any other object in it.
    """
    if not file.is_file():
        return None
    try:
        if file.suffix == SUFFIX:
            from safetensors import safe_open

            with safe_open(file, "pt") as opened:
                if METADATA in (opened.metadata() or {}):
                    return None
                contents: Any = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        else:
            contents = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a forged file can make either fail in any way
        raise CheckpointError(
            f"{file} is not a file of tensors alone ({type(error).__name__}). Other files are refused, since "
            "loading them could run code"
        ) from error
    nested = [contents.get(name) for name in NESTED] if isinstance(contents, Mapping) else []
    for candidate in (contents, *nested):
        if (
            isinstance(candidate, Mapping)
            and candidate
            and all(isinstance(name, str) and isinstance(value, Tensor) for name, value in candidate.items())
        ):
            return dict(candidate)
    raise CheckpointError(
        f"{file} has no state dict of tensors, neither as a whole nor under {', '.join(NESTED)}"
    )
