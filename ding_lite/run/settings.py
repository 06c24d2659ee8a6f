"""The settings of a run without a config: ``ding-lite train --env ID``.

They are read from ``configs/``: from a shipped config whose ``environments`` match the ID, or else from the
file in ``configs/kinds`` for the kind of the observations. A config of the user does not use them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.config.compile import (
    COMMAND_LINE,
    POLICIES,
    Config,
    by_key,
    compile_config,
    merged,
    shipped_configs,
)
from ding_lite.config.registry import POLICY_REGISTRY, env_name, env_section, name_of, names_in
from ding_lite.config.schema import leaves, selected
from ding_lite.envs.checks import FLOAT32_MAX, PIXELS
from ding_lite.envs.make import make_vector_env
from ding_lite.errors import ConfigError
from ding_lite.trees import MASK_KEY, is_image, space_leaves

TYPES = ("policy.type", "policy.model.type")
OF_TASK = ("policy.model.", "policy.learn.entropy_", "policy.collect.discount_factor")
COLOURS = 3  # images with more channels are stacks of frames already


def settings(env: str, policy: str = "ppo") -> dict[str, Any]:
    """Returns the config that ``ding-lite train --env ENV --policy POLICY`` begins with, as plain data.

    Args:
        env: a gymnasium id, a registered name, or "package.module:Class".
        policy: a registered name, or "package.module:Class".

    Raises:
        EnvError: if the environment cannot be made. It is made only if no shipped config fits.
    """
    return config_for(env, policy).written()


def config_for(env: str, policy: str = "ppo", overrides: Mapping[str, Any] | None = None) -> Config:
    """Returns the config of :func:`settings` with overrides; its first note says which settings these are."""
    task = {"env": env_section(env), "policy": {"type": policy}}
    overrides = by_key(overrides or {}, task)
    env_overrides = {path: value for path, value in overrides.items() if path.startswith(("env.", *TYPES))}
    typed = compile_config(task, env_overrides, origin=COMMAND_LINE).values
    bases = map(name_of, POLICY_REGISTRY.get_class(typed.policy.type).__mro__)
    preset: Any = {}
    origin, note = COMMAND_LINE, f"none, since {name_of(typed.policy.type)} extends no policy of the library"
    if typed.env.manager.type == "vector" and typed.env.type != "gymnasium":
        note = "none, since a simulator may exist only once in a process, and its spaces are not known before"
    elif base := next((name for name in bases if name in POLICIES), None):
        preset, origin, note = _settings_of(base, task, env_overrides, env_name(typed.env))
        # The user's classes may lack a key, or change its default: such a value of the preset is left out.
        of_library = dict(leaves(compile_config({**task, "policy": {"type": base}}).values))
        of_user = dict(leaves(typed))
        mro = POLICY_REGISTRY.get_class(typed.policy.type).__mro__
        own = itertools.takewhile(lambda cls: name_of(cls) != base, mro)
        declared = {f"policy.{path}" for cls in own for path, _ in leaves(vars(cls).get("config", {}))}
        kept = (of_library.keys() & of_user.keys()) - declared
        same = {path for path in kept if of_user[path] == of_library[path]}
        preset = selected(preset, lambda path, _: path not in of_library or path in same)
    try:
        config = compile_config(merged(preset, task), overrides, origin=origin)
    except ConfigError as error:
        compile_config(task, overrides, origin=COMMAND_LINE)  # raises if the command line alone has a fault
        raise ConfigError(f"{error}\nSettings of this run: {note}; --plain leaves them out") from error
    first = f"settings: {note} (--plain: the defaults of the keys)"
    return dataclasses.replace(config, notes=(first, *config.notes))


def _settings_of(policy: str, task: Any, env_overrides: Any, name: str) -> tuple[dict[str, Any], str, str]:
    """Returns the settings for a policy of the library and an environment, their name, and the reason.

    Args:
        policy: its registered name.
        task: the config that only names environment and policy.
        env_overrides: the overrides of the section ``env`` and of the types of policy and model.
        name: of the environment.
    """
    shipped = _shipped_for(name)
    stems = {config["policy"].get("type", "ppo"): stem for stem, config in shipped.items()}
    if stem := stems.get(policy):
        return shipped[stem], stem, f"shipped config {stem}"
    if stem := stems.get(policy.removesuffix("_offpolicy")):  # all but the number of epochs
        rate = compile_config(shipped[stem]).values.policy.learn.learning_rate
        config = merged(shipped[stem], {"policy": {"type": policy, "learn": {"learning_rate": rate}}})
        config["policy"]["learn"].pop("epoch_per_collect", None)
        return config, stem, f"shipped config {stem}, with a replay buffer"
    preset: dict[str, Any] = {}
    note = f"no shipped config is for {name} with {policy}"
    if shipped:  # these keys describe the environment, for every policy
        stem, config = next(iter(shipped.items()))
        known = dict(leaves(compile_config(task, env_overrides).values))
        of_env = selected(config, lambda path, _: not path.startswith("policy."))
        of_task = selected(config, lambda path, _: path.startswith(OF_TASK) and path in known)
        preset = {**of_env, **of_task}
        note += f"; network, entropy and discount from {stem}"
    env = compile_config(merged(preset, task), env_overrides).values.env
    with contextlib.closing(make_vector_env(env, 1, 0)) as envs:
        kind, why = kind_of(envs.obs_space)
        is_single, rescales = isinstance(envs.obs_space, gym.spaces.Box), needs_rescale(envs.action_space)
        shape = envs.obs_space.shape or ()
    note = f"for {kind}, since {why} and {note}"
    names = names_in(next(iter(shipped_configs().values())).parent / "kinds" / f"{kind}.py")
    preset = merged(merged(names["config"], {"policy": names["by_policy"].get(policy, {})}), preset)
    if "env.wrappers" not in env_overrides and env.manager.type not in ("vector", "env_pool"):
        wrappers = env.wrappers
        if kind == "images" and is_single and not wrappers and (len(shape) == 2 or min(shape) <= COLOURS):
            wrappers, note = names["wrappers"], f"{note}; four frames are stacked"
        if rescales:
            wrappers, note = [*wrappers, "action_rescale"], f"{note}; actions are rescaled to -1 .. 1"
        preset = merged(preset, {"env": {"wrappers": wrappers}} if wrappers else {})
    return preset, f"kinds/{kind}", note


def _shipped_for(name: str) -> dict[str, dict[str, Any]]:
    """Returns the shipped configs that are for an environment, by their names."""
    configs = {}
    for file in shipped_configs().values():
        names = names_in(file)
        patterns = names.get("environments", {})
        matching = [name] if name in patterns else [p for p in patterns if fnmatchcase(name, p)]
        if matching:
            configs[file.stem] = merged(names["config"], patterns[matching[0]])
    return configs


def needs_rescale(space: gym.Space) -> bool:
    """Returns whether a space is a Box with bounds other than -1 .. 1, which a wrapper can rescale."""
    if not isinstance(space, gym.spaces.Box) or np.dtype(space.dtype).kind != "f":
        return False
    low, high = space.low, space.high
    is_unit = (low == -1).all() and (high == 1).all()
    return bool(np.abs([low, high]).max() < FLOAT32_MAX and (low < high).all() and not is_unit)


def kind_of(space: gym.Space) -> tuple[str, str]:
    """Returns the kind of an observation space, which names a file in ``configs/kinds``, and why."""
    leaves = [leaf for path, leaf in space_leaves(space) if path[:1] != (MASK_KEY,)]
    images = [leaf.shape or () for leaf in leaves if is_image(leaf)]
    has_numbers = any(isinstance(leaf, gym.spaces.Box) and not is_image(leaf) for leaf in leaves)
    beside = ", with numbers that are not normalised by default," if has_numbers else ""
    if pictures := [shape for shape in images if sorted(shape)[-2] >= PIXELS]:
        return "images", f"observations have images of shape {pictures[0]}{beside}"
    if images:
        return "grids", f"observations have small images or cells{beside}"
    return ("vectors", "observations are numbers") if has_numbers else ("grids", "observations are symbols")
