"""Loads a trained policy, ``load_policy("runs/cartpole_ppo").act(obs)``, or begins from its weights.

Whatever the file, nothing in it is executed, and no module is imported that only the file names.
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
from ding_lite.envs.space_json import space_from_json
from ding_lite.envs.wrappers import ActionMap
from ding_lite.errors import CheckpointError, ConfigError, counted, error_text
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
# Parts of a model that start anew where weights lack them, by the beginning of their names.
NEW_PARTS = {
    "auxiliary_head.": "auxiliary head, which is PPG's own: it starts anew",
    "critic_": "value network: it starts anew; policy.learn.critic_warmup=10 lets it learn alone at first",
}
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
    return policy_of(*load_of_run(path, checkpoint), device, trust, model)


def policy_of(
    file: Path,
    state: Mapping[str, Any],
    saved: Mapping[str, Any],
    device: str = "cpu",
    trust: Sequence[str] = (),
    model: nn.Module | None = None,
) -> Policy:
    """Returns the policy of a checkpoint that is read already; see :func:`load_policy`."""
    if model is None:
        refuse_without(file, saved, "model")
    with refusing(f"the policy of {file} cannot be built", saved, trust), importing_only(trust):
        config = decode(saved["config"]["policy"])
        spaces = [space_from_json(saved["spaces"][name]) for name in ("obs", "action")]
        policy_class = POLICY_REGISTRY.get(config["type"])
        built = model
        if model is None and policy_class._make_model is Policy._make_model:
            built = _unallocated(config["model"], *spaces)
        if built is not None:
            refuse_misfit(file, built.state_dict(), state["policy"]["model"])
        policy: Policy = policy_class(
            {**config, "device": device},
            *spaces,
            enable_field=("collect", "eval"),
            model=model,
            seed=int(saved["config"]["seed"]),
        )
        policy.load_state_dict(as_tensors(state["policy"]))
        policy.action_maps = [ActionMap.from_json(each) for each in saved["action_maps"]]
    return policy


@contextlib.contextmanager
def refusing(what: str, saved: Mapping[str, Any] | None = None, trust: Sequence[str] = ()) -> Iterator[None]:
    """Turns any error of a block into a CheckpointError: a forged checkpoint can make any part fail.

    Args:
        what: fails.
        saved: what the checkpoint keeps beside the state, if a module that is missing may be the reason: then
            the error names all modules that the run has imported.
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
            text += f"\nThe run has more modules; if you trust them: {words} (in Python: trust={missing})"
        raise CheckpointError(text) from error


def refuse_without(file: Path, saved: Mapping[str, Any], name: str) -> None:
    """Refuses to take what a config describes for what a script gave the run: ``env_setting`` or ``model``.

    Raises:
        ConfigError: if the script gave it.
    """
    given = saved.get("given")
    if isinstance(given, list) and name in given:
        raise ConfigError(
            f"{file}: a script gave this run its {name}, and the config describes another one. Give it "
            f"again, in Python: {name}=..."
        )


def _unallocated(model: Mapping[str, Any], *spaces: gym.Space) -> nn.Module | None:
    """Returns a model whose weights take no memory, since a config may ask for any size.

    None if it cannot be built without data, as a model of the user that computes with its parameters.
    """
    arguments = {name: value for name, value in model.items() if name != "type"}
    factory = MODEL_REGISTRY.get(model["type"])
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            built: nn.Module = factory(*spaces, **arguments)
            return built
    except Exception:
        if factory.__module__.startswith("ding_lite."):
            raise
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
        CheckpointError: if names or shapes differ; the message lists the first differences.
    """
    own, theirs = (
        {name: tuple(getattr(value, "shape", ("not an array",))) for name, value in tensors.items()}
        for tensors in (expected, weights)
    )
    names = [name for name in {**own, **theirs} if own.get(name) != theirs.get(name)]
    if names:
        lines = [f"{name}: {theirs.get(name)}, this model has {own.get(name)}" for name in names[:MAX_NAMES]]
        raise CheckpointError(
            "\n  ".join(
                [f"the weights in {file} are not of this model in {counted(len(names), 'name')}:", *lines]
            )
            + "\nThe spaces and policy.model (widths, rnn, encoders) must be those that the weights were "
            "trained with"
        )


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
    foreign = _foreign_weights(Path(path))
    if foreign is None:
        file, state, saved = load_of_run(path, "best")
    else:
        file, state, saved = Path(path), {"policy": {"model": foreign}}, {}
    own, model = policy.state_dict(), policy.model
    messages = [f"begins from the weights of {file}"]
    with refusing(f"the weights in {file} cannot be loaded"):
        theirs = as_tensors(state["policy"])
        for begin, line in NEW_PARTS.items():
            new = {name: value for name, value in model.state_dict().items() if name.startswith(begin)}
            if new and not any(name.startswith(begin) for name in theirs["model"]):
                theirs["model"] |= new
                messages.append(f"the weights have no {line}")
        if "obs_norm" in own and theirs.get("obs_norm") is None:
            messages.append(
                "WARNING: the weights have no scale of observations, so with policy.normalize.obs the policy "
                "acts otherwise than before; policy.normalize.obs=False keeps its actions"
            )
        refuse_misfit(file, model.state_dict(), theirs["model"])
        is_described = saved and "model" not in saved.get("given", ())
        trained_with = saved["config"]["policy"]["model"] if is_described else {}
        mine = encode(policy.cfg.model, "policy.model")
        for key in MEANINGS:
            if trained_with.get(key) != mine.get(key) and key in trained_with:
                raise CheckpointError(
                    f"the weights in {file} were trained with policy.model.{key}={trained_with[key]!r}, and "
                    f"compute something else with {mine.get(key)!r}: set it to the value that they were "
                    "trained with"
                )
        for name, key in SCALES.items():
            if theirs.get(name) is not None and name not in own:
                raise CheckpointError(
                    f"the weights in {file} were trained with {key}, and are wrong without it: set {key} to "
                    "the value that they were trained with"
                )
        loaded = {name: theirs[name] for name in ("model", *SCALES) if name in theirs}
        if loaded.get("reward_scale"):
            # The discounted returns of the saved run's open episodes, which this run does not continue.
            loaded["reward_scale"] = {**loaded["reward_scale"], "running_return": None}
        policy.load_state_dict({**own, **loaded})
    return messages


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
    for found in (contents, *nested):
        if isinstance(found, Mapping) and found and all(isinstance(x, Tensor) for x in found.values()):
            return dict(found)
    raise CheckpointError(
        f"{file} has no state dict of tensors, neither as a whole nor under {', '.join(NESTED)}"
    )
