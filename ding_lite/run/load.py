"""Loads a trained policy, ``load_policy("runs/cartpole_ppo").act(obs)``, or begins from its weights.

Nothing in a file is executed, and a module that only the file names is not imported.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.config.registry import MODEL_REGISTRY, POLICY_REGISTRY, importing_only
from ding_lite.config.values import decode, encode
from ding_lite.envs.space_json import spaces_from_json
from ding_lite.envs.wrappers import ActionMap
from ding_lite.errors import CheckpointError, ConfigError, error_text
from ding_lite.models.actor_critic import usual_activation
from ding_lite.policies.base import Policy
from ding_lite.rl.scales import RAW
from ding_lite.rl.seeding import ONE_THREAD
from ding_lite.run.checkpoint import METADATA, SUFFIX, Checkpoint, load_of_run, map_state
from ding_lite.run.resources import torch_defaults

# Normalisers that weights were trained with, and the config key that turns each on.
SCALES = {
    "obs_norm": "policy.normalize.obs",
    "reward_scale": "policy.normalize.reward",
    "value_norm": "policy.learn.value_norm",
}
MEANINGS = ("activation", "box_distribution", "bound_type")  # of policy.model: change what weights compute
# Parts of a model that stay newly initialised if the weights lack them, by the prefix of their names.
NEW_PARTS = {
    "auxiliary_head.": "auxiliary head, which only PPG has: it starts untrained",
    "critic_": "value network: it starts untrained; policy.learn.critic_warmup=10 lets it learn alone first",
}
NESTED = ("model", "state_dict", "model_state_dict", "policy")  # keys under which other programs save weights


def load_policy(
    path: str | Path,
    *,
    checkpoint: str | None = None,
    device: str = "cpu",
    trust: Sequence[str] = (),
    model: nn.Module | None = None,
) -> Policy:
    """Returns the policy of a run or of a checkpoint, ready to act; it contains its normalisers.

    Args:
        path: a run's folder, or one of its checkpoints.
        checkpoint: name of a checkpoint of the run: ``"best"``, ``"last"`` or ``"iteration_..."``;
            None: "best", or "last" of a run that was not evaluated.
        device: device of the model, such as ``"cpu"`` or ``"cuda:0"``.
        trust: your own modules that the config of the run names; they are imported first.
        model: module to load the weights into, for a run of a script's model; None: built from the config.

    Raises:
        CheckpointError: if there is no checkpoint, it is damaged, its config names a module that is not
            trusted, or its weights do not fit.
    """
    return policy_of(load_of_run(path, checkpoint), device, trust, model)


@torch_defaults()
def policy_of(checkpoint: Checkpoint, device: str, trust: Sequence[str], model: nn.Module | None) -> Policy:
    """Returns the policy of a checkpoint in memory; see :func:`load_policy`."""
    refuse_without(checkpoint, model=model)
    file, state, saved = checkpoint
    with refusing(f"the policy of {file} cannot be built", saved, trust), importing_only(trust):
        config = decode({**saved["config"]["policy"], "device": device})
        policy_state = map_state(as_tensor, state["policy"])
        weights = sum(leaf.numel() for leaf in policy_state["model"].values())
        saved_spaces = spaces_from_json(weights, saved["spaces"])
        spaces, seed = (saved_spaces["obs"], saved_spaces["action"]), int(saved["config"]["seed"])
        policy_class = POLICY_REGISTRY.get(config["type"])
        if model is None and policy_class._make_model is Policy._make_model:
            _refuse_misfit(config["model"], spaces, policy_state["model"])
        fields = ("collect", "eval")
        policy: Policy = policy_class(config, *spaces, enable_field=fields, model=model, seed=seed)
        policy.load_state_dict(policy_state)
        policy.action_maps = [ActionMap.from_json(action_map, weights) for action_map in saved["action_maps"]]
    return policy


@contextlib.contextmanager
def refusing(what: str, saved: Mapping[str, Any] | None = None, trust: Sequence[str] = ()) -> Iterator[None]:
    """Turns any error of a block into a CheckpointError: a forged checkpoint can make any part fail.

    Args:
        what: what fails, as the start of the message.
        saved: the checkpoint's data beside the state, if a missing module may be the reason: then the error
            names the run's modules that are not in ``trust``.
        trust: modules that are imported.
    """
    try:
        yield
    except Exception as error:
        text = str(error) if isinstance(error, CheckpointError) else f"{what}: {error_text(error)}"
        modules = saved.get("imports") if saved else None
        of_run = modules.items() if isinstance(modules, dict) else ()
        missing = [str(typed) for name, typed in of_run if name not in trust]
        if missing and all(map(str.isprintable, missing)):
            words = " ".join(f"--import {shlex.quote(module)}" for module in missing)
            text += (
                "\nModules of the run that are not imported, if you trust them: "
                f"{words} (in Python: trust={missing})"
            )
        raise CheckpointError(text) from error


def refuse_without(checkpoint: Checkpoint, **arguments: Any) -> None:
    """Refuses to build from the config what the run's script passed instead: ``env_setting`` or ``model``.

    Raises:
        ConfigError: if the script passed it, and it is None here.
    """
    by_script = checkpoint.saved.get("given")
    for name, value in arguments.items():
        if value is None and isinstance(by_script, list) and name in by_script:
            raise ConfigError(
                f"{checkpoint.file}: a script passed {name} to this run, and the config describes another "
                f"one. Pass it again, in Python: {name}=..."
            )


def _refuse_misfit(model: Mapping[str, Any], spaces: Sequence[gym.Space], weights: Mapping[str, Any]) -> None:
    """Compares weights with a model without memory (device meta), since a config may ask for any size.

    A user's model that cannot be built without data is not compared.

    Raises:
        Exception: if a model of the library cannot be built, or if names or shapes of any model differ.
    """
    arguments = {name: value for name, value in model.items() if name != "type"}
    factory = MODEL_REGISTRY.get(model["type"])
    try:
        with ONE_THREAD, torch.device("meta"), torch.random.fork_rng(devices=[]):
            built: nn.Module = factory(*spaces, **arguments)
    except Exception:
        if factory.__module__.startswith("ding_lite."):
            raise
        return
    built.load_state_dict(weights, assign=True)


def as_tensor(leaf: Any) -> Any:
    """Returns a NumPy array as a tensor that shares its memory, and any other leaf of a state as it is."""
    return torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf


def warm_start(policy: Policy, path: str | Path) -> list[str]:
    """Loads the weights and the normalisers of a run's best checkpoint, a checkpoint, or a file of weights.

    The optimiser, the counters and the generators stay as they are, since the run is a new one.

    Args:
        policy: receives the weights.
        path: of a run, a checkpoint, or another program's file with a state dict of tensors: ``.pt`` or
            ``.safetensors``.

    Returns:
        Lines for the user about what was loaded.

    Raises:
        CheckpointError: if there is no such file, or its weights do not fit the policy.
    """
    file, state, saved = _foreign_weights(Path(path)) or load_of_run(path)
    current, model = policy.state_dict(), policy.model
    messages = [f"begins from the weights of {file}"]
    with refusing(f"the weights in {file} cannot be loaded"):
        theirs = map_state(as_tensor, state["policy"])
        raw = {"value_norm": RAW}  # the critic predicts raw values if no scale is saved
        for begin, line in NEW_PARTS.items():
            new = {name: value for name, value in model.state_dict().items() if name.startswith(begin)}
            if new and new.keys().isdisjoint(theirs["model"]):
                theirs["model"] |= new
                messages.append(f"the weights have no {line}")
                raw = {} if begin == "critic_" else raw
        if "obs_norm" in current and theirs.get("obs_norm") is None:
            messages.append(
                "WARNING: the weights have no scale of observations, so with policy.normalize.obs the policy "
                "acts differently from before; policy.normalize.obs=False keeps its actions"
            )
        if "spaces" in saved:
            weights = sum(leaf.numel() for leaf in theirs["model"].values())
            trained_for = spaces_from_json(weights, saved["spaces"])["action"]
            if trained_for != policy.action_space:
                messages.append(
                    f"WARNING: the weights were trained for actions in {trained_for}, and act in "
                    f"{policy.action_space} here: an output of the network means another action"
                )
        by_script = "model" in saved.get("given", ())
        trained_with = {} if by_script else saved["config"]["policy"]["model"]
        model_cfg = encode(policy.cfg.model, "policy.model")
        usual = {"activation": usual_activation(policy.obs_space)}  # instead of None
        pairs = [(key, trained_with[key], model_cfg.get(key)) for key in MEANINGS if key in trained_with]
        wrong = [
            f"policy.model.{key}={one!r} (here {other!r})"
            for key, one, other in pairs
            if (one or usual.get(key)) != (other or usual.get(key))
        ]
        wrong += [key for name, key in SCALES.items() if theirs.get(name) is not None and name not in current]
        if wrong:
            raise CheckpointError(
                f"the weights in {file} were trained with {', '.join(wrong)}, and compute something else "
                "with other values: set the values that they were trained with"
            )
        loaded = raw | {name: theirs[name] for name in ("model", *SCALES) if name in theirs}
        policy.load_state_dict({**current, **loaded})
        policy.forget_open_episodes()
    return messages


def _foreign_weights(file: Path) -> Checkpoint | None:
    """Returns the state dict in another program's file as a checkpoint; None for a run or a checkpoint.

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
    except Exception as error:  # a forged file can make either reader fail in any way
        raise CheckpointError(
            f"{file} is not a file of tensors only ({type(error).__name__}): loading others could run code. "
            "Save the state dict of its model alone with torch.save"
        ) from error
    nested = [contents.get(name) for name in NESTED] if isinstance(contents, Mapping) else []
    for weights in (contents, *nested):
        if isinstance(weights, Mapping) and weights and all(isinstance(x, Tensor) for x in weights.values()):
            state = {"policy": {"model": dict(weights)}}
            return Checkpoint(file, state, {"config": {"policy": {"model": {}}}})
    raise CheckpointError(f"{file} has no state dict of tensors, nor have {', '.join(NESTED)} in it")
