"""The settings that a run begins with if no config is given: ``ding-lite train --env ID``.

They are data: the shipped config that names the environment in its ``environments``, or the file of its kind
in ``configs/kinds``. A config of the user is complete, and takes nothing from here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.config.compile import Config, compile_config, merged, shipped_configs
from ding_lite.config.registry import env_name, env_section, import_file
from ding_lite.envs.checks import WIDE
from ding_lite.envs.make import make_vector_env
from ding_lite.trees import MASK_KEY, is_image, space_leaves

NARROW = 0.5  # bounds of actions nearer to 0 cut most actions of a new policy
PIXELS = 36  # an image of at least this height and width is a picture, a smaller one a grid of cells


def settings(env: str, policy: str = "ppo") -> dict[str, Any]:
    """Returns the config that ``ding-lite train --env ENV --policy POLICY`` begins with, as plain data.

    Args:
        env: a gymnasium id, a registered name, or "package.module:Class".
        policy: a registered name.

    Raises:
        EnvError: if the environment cannot be made; its spaces say which kind it is.
    """
    return config_for(env, policy).written()


def config_for(env: str, policy: str = "ppo", overrides: Mapping[str, Any] | None = None) -> Config:
    """Returns the complete config of :func:`settings`, with ``overrides`` laid over it.

    Its first note says which settings it begins with.
    """
    own = {"env": env_section(env), "policy": {"type": policy}}
    user, origin, note = _of_shipped(own) or _of_kind(own, compile_config(own, overrides))
    config = compile_config(user, overrides, origin=origin)
    keep = f"`ding-lite config --env {env} --policy {policy} -o FILE` writes them; --plain leaves them out"
    return Config(config.values, config.source, config.imports, (f"settings: {note}; {keep}", *config.notes))


def _of_shipped(own: Mapping[str, Any]) -> tuple[dict[str, Any], str, str] | None:
    """Returns config, name and reason of the shipped config for an environment and a policy, or None."""
    name, found = env_name(own["env"]), {}
    for file in shipped_configs().values():
        if "\nenvironments = " in file.read_text():
            names = vars(import_file(file))
            if names["config"]["policy"].get("type", "ppo") == own["policy"]["type"]:
                found |= {pattern: (file.stem, names["config"]) for pattern in names["environments"]}
    pattern = name if name in found else next((p for p in found if fnmatchcase(name, p)), None)
    if pattern is None:
        return None
    shipped, config = found[pattern]
    user = merged(config, own)
    if env_name(config["env"]) != name:
        user["env"].pop("stop_value", None)  # a return of another task
    return user, shipped, f"those of the shipped config {shipped}, which is for {pattern}"


def _of_kind(own: Mapping[str, Any], config: Config) -> tuple[dict[str, Any], str, str]:
    """Returns config, name and reason by the spaces of an environment, which is made once."""
    env = config.values.env
    backend = env.manager.type if env.manager.type in ("vector", "env_pool") else "base"
    with contextlib.closing(
        make_vector_env({**env, "manager": {**env.manager, "type": backend}}, 1, 0)
    ) as envs:
        kind, reason = kind_of(envs.obs_space)
        rescaled = ["action_rescale"] if needs_rescale(envs.action_space) else []
    names = vars(import_file(next(iter(shipped_configs().values())).parent / "kinds" / f"{kind}.py"))
    user = merged(names["config"], {"policy": names["by_policy"].get(own["policy"]["type"], {})})
    if wrappers := [*user.get("env", {}).get("wrappers", []), *rescaled]:
        user = merged(user, {"env": {"wrappers": wrappers}})
    note = f"those for {kind}, since {reason}" + (", with actions from -1 to 1" if rescaled else "")
    return merged(user, own), f"kinds/{kind}", note


def needs_rescale(space: gym.Space) -> bool:
    """Returns whether the bounds of Box actions hardly fit a new policy, which acts within about -2 .. 2."""
    if not (isinstance(space, gym.spaces.Box) and space.is_bounded()):
        return False
    fits = (space.low <= -NARROW) & (space.high >= NARROW) & (space.high - space.low <= 2 * WIDE)
    return not np.all(fits)


def kind_of(space: gym.Space) -> tuple[str, str]:
    """Returns the kind of settings that observations of a space need, and why."""
    leaves = [leaf for path, leaf in space_leaves(space) if path[:1] != (MASK_KEY,)]
    pictures = [leaf.shape for leaf in leaves if is_image(leaf)]
    if any(sorted(shape)[-2] >= PIXELS for shape in pictures):
        return "images", f"observations have pictures of the shape {max(pictures)}"
    if pictures or not any(isinstance(leaf, gym.spaces.Box) for leaf in leaves):
        return "grids", "observations are cells or symbols"
    return "vectors", "observations are numbers"
