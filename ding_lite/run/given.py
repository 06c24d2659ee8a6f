"""What a script gave a run in place of its config: ``env_setting=`` and ``model=``.

A checkpoint cannot hold such objects. It says that they were given, so that the environments or the network
that the config describes never take their place silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ding_lite.config.compile import DERIVED, Config
from ding_lite.config.schema import leaves
from ding_lite.envs.make import EnvSetting
from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.policies.base import DECLARED

GIVEN = "given"  # the key of a checkpoint's config.json
# Keys of the section env that have an effect beside ``env_setting``.
BESIDE_ENVS = ("env_id", "n_evaluator_episode", "stop_value", "max_eval_steps", "on_bad_value", "info_keys")


def given(env_setting: EnvSetting | None, model: nn.Module | None) -> dict[str, Any]:
    """Returns what a checkpoint keeps of the objects; empty if both are None."""
    kept: dict[str, Any] = {}
    if env_setting is not None:
        kept["env_setting"] = True
    if model is not None:
        kept["model"] = _layers(model)
    return {GIVEN: kept} if kept else {}


def replaced_keys(config: Config, env_setting: EnvSetting | None, model: nn.Module | None) -> list[str]:
    """Returns a line for each given object that leaves keys of the user without effect."""
    as_given = {}
    if env_setting is not None:
        _, collected, played = env_setting
        as_given = {"env.collector_env_num": len(collected), "env.evaluator_env_num": len(played)}
    lines = []
    for argument, value, section, others in (
        ("env_setting", env_setting, "env.", BESIDE_ENVS),
        ("model", model, "policy.model.", DECLARED),
    ):
        kept = {f"{section}{name}" for name in others}
        keys = [
            f"{path}={setting!r}"
            for path, setting in leaves(config.values)
            if path.startswith(section)
            and path not in kept
            and config.source.get(path) not in DERIVED
            and (path not in as_given or as_given[path] != setting)
        ]
        if value is not None and keys:
            lines.append(f"{' and '.join(keys)}: no effect, since {argument}= is given")
    return lines


def refuse_other_envs(folder: Path, saved: Mapping[str, Any], changes: Iterable[str], advice: str) -> None:
    """Refuses to take the environments of the config for those of a run.

    Args:
        folder: the checkpoint, for the message.
        saved: its config.json.
        changes: keys of the config that the user changes; another environment may be among them.
        advice: what to do, for the message.

    Raises:
        ConfigError: if the environments were given.
    """
    if _kept(saved).get("env_setting") and {"env.type", "env.env_id"}.isdisjoint(changes):
        raise ConfigError(
            f"{folder}: the environments of this run were given by a script (env_setting); those of its "
            f"config are others. {advice}"
        )


def refuse_other_model(folder: Path, saved: Mapping[str, Any], model: nn.Module | None) -> None:
    """Refuses to take another network for that of a run.

    Args:
        folder: the checkpoint, for the message.
        saved: its config.json.
        model: the one that is given now; None: it would be built from the config.

    Raises:
        CheckpointError: if a model was given, and now there is none, or one with other layers.
    """
    trained = _kept(saved).get("model")
    if trained is None or (model is not None and _layers(model) == trained):
        return
    problem = "it is not given now" if model is None else f"this {type(model).__name__} has other layers"
    raise CheckpointError(
        f"{folder}: the model of this run was given by a script, and {problem}. Give it again: "
        "load_policy(RUN, model=...) or SerialPipeline.resume(RUN, model=...). "
        "The command line needs its class in the config: policy.model.type='module:Class'"
    )


def _kept(saved: Mapping[str, Any]) -> Mapping[str, Any]:
    kept = saved.get(GIVEN)
    return kept if isinstance(kept, Mapping) else {}


def _layers(model: nn.Module) -> list[str]:
    """Returns the class of each layer; the shapes of weights are compared where they are loaded."""
    return [f"{name} {type(layer).__qualname__}".strip() for name, layer in model.named_modules()]
