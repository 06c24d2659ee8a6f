"""Does an environment keep the contract that training relies on? Each check is one row of a verdict table.

    for finding in check_env("CartPole-v1"):
        print(finding.verdict, finding.check, finding.seen, finding.advice)

First one environment is played with gymnasium's own calls; then every backend and autoreset mode must
give exactly the transitions that a plain rollout gives. The command is ``ding-lite check-env``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.config import compile_config
from ding_lite.env_check.backends import BACKENDS, backend_findings
from ding_lite.env_check.contract import contract_findings
from ding_lite.env_check.finding import FAIL, OK, WARN, Fault, Finding
from ding_lite.env_check.native import native_findings, only_native
from ding_lite.env_check.playing import Player, lengths_and_ends, make_bare, reset_env, step_env
from ding_lite.env_check.rollout import as_shapes, random_rollout, tree_lines
from ding_lite.env_check.seeds import (
    global_randomness,
    global_state_kept,
    mark_global_state,
    seed_findings,
)
from ding_lite.env_check.trees import draw_legal, extremes, space_leaves
from ding_lite.envs.spaces import ObservationBuffer
from ding_lite.errors import ConfigError, DingLiteError, EnvContractError
from ding_lite.models.encoders import default_encoder
from ding_lite.models.heads import ActionHead
from ding_lite.seeding import numpy_generator

__all__ = [
    "BACKENDS",
    "FAIL",
    "OK",
    "WARN",
    "Finding",
    "as_shapes",
    "check_env",
    "findings",
    "random_rollout",
    "section_of",
    "tree_lines",
]

EPISODE_STEPS = 100  # at most, of an episode that seeds are compared on


def check_env(
    env: Mapping[str, Any] | Callable[..., gym.Env] | str,
    *,
    steps: int = 1000,
    seed: int = 0,
    backends: tuple[str, ...] = BACKENDS,
) -> list[Finding]:
    """Returns what every check found; it works if no verdict is "FAIL".

    Args:
        env: a gymnasium id, a class or a callable that makes the environment, or a config's section ``env``.
        steps: to play; episodes that are longer than this are not seen to end.
        seed: of starts and actions.
        backends: to compare: "base", "subprocess".

    Raises:
        ConfigError: if a section ``env`` has a fault.
    """
    return list(findings(section_of(env), steps=steps, seed=seed, backends=backends))


def section_of(env: Mapping[str, Any] | Callable[..., gym.Env] | str) -> Mapping[str, Any]:
    """Returns a complete section ``env`` for whatever names an environment."""
    if isinstance(env, str):
        env = {"env_id": env}
    elif not isinstance(env, Mapping):
        env = {"type": env}
    kind = env.get("type")
    if hasattr(kind, "__qualname__") or not callable(kind):
        section: Mapping[str, Any] = compile_config({"env": env}, origin="check_env").values.env
        return section
    # A config needs names, for config.json; here a functools.partial will do.
    return {**section_of({**env, "type": gym.Env}), "type": kind}


def findings(
    env_cfg: Mapping[str, Any], *, steps: int = 1000, seed: int = 0, backends: tuple[str, ...] = BACKENDS
) -> Iterator[Finding]:
    """Yields each finding as soon as it is known; see :func:`check_env`. The section is complete."""
    with global_state_kept(), np.errstate(all="ignore"):
        if only_native(env_cfg):
            yield from native_findings(env_cfg, seed, steps)
            return
        try:
            env = make_bare(env_cfg)
        except DingLiteError as error:
            seen, _, install = str(error).partition(" Install what it needs: ")
            advice = install or "Correct the id, or what env.kwargs and env.wrappers give it."
            yield Finding("make", FAIL, seen, "" if isinstance(error, EnvContractError) else advice)
            return
        yield Finding("make", OK, f"{type(env.unwrapped).__module__}.{type(env.unwrapped).__qualname__}")
        try:
            yield from _single(env, env_cfg, steps, seed, backends)
        except Fault as fault:
            yield fault.finding
        finally:
            env.close()


def _single(
    env: gym.Env, env_cfg: Mapping[str, Any], steps: int, seed: int, backends: tuple[str, ...]
) -> Iterator[Finding]:
    yield (spaces := _spaces(env))
    if spaces.verdict == FAIL:
        return
    _probe(env.unwrapped, seed)
    before = mark_global_state(seed)
    player = Player(env, seed)
    player.play(steps)
    yield Finding("reset", OK, "returns (obs, info)")
    yield Finding("step", OK, "returns (obs, reward, terminated, truncated, info)")
    broken = False
    for finding in contract_findings(env, player, env_cfg):
        broken |= finding.verdict == FAIL and finding.check in ("observation", "finite", "reward", "flags")
        yield finding
    yield (actions := _actions(env, seed))
    yield global_randomness(before)
    if broken or actions.verdict == FAIL:
        advice = "Correct what has failed above, and run this again."
        yield Finding("seeds, backends", WARN, "not compared: they would stop at the same fault", advice)
        return
    deterministic = True
    for finding in seed_findings(lambda: make_bare(env_cfg), seed, min(steps, EPISODE_STEPS)):
        deterministic &= finding.verdict != FAIL
        yield finding
    shortest = min((length for length, _, _ in lengths_and_ends(player.calls)), default=0)
    rows = min(steps, max(steps // 4, shortest * 5 // 4 + 1))  # so that an episode ends in them, if one can
    yield from backend_findings(env_cfg, seed, rows, backends, deterministic)
    yield from native_findings(env_cfg, seed, rows)


def _spaces(env: gym.Env) -> Finding:
    """Whether every leaf of both spaces is of a supported kind."""
    advice = "Declare it as one of these spaces, or flatten it with a wrapper (env.wrappers)."
    try:
        for path, leaf in space_leaves(env.observation_space):
            where = f"observation{path}"
            default_encoder(leaf)
        ObservationBuffer(env.observation_space, 1)
        for path, leaf in space_leaves(env.action_space):
            where = f"action{path}"
            ActionHead(leaf, 1)
    except (ConfigError, DingLiteError) as error:
        return Finding("spaces", FAIL, f"{where}: {error}", advice)
    return Finding("spaces", OK, f"observation {env.observation_space}, action {env.action_space}")


def _probe(env: gym.Env, seed: int) -> None:
    """Calls the innermost environment once: wrappers stumble over an old API without naming it."""
    obs, _ = reset_env(env, seed)
    step_env(env, draw_legal(env.action_space, obs, numpy_generator(seed, "check", "probe")))


def _actions(env: gym.Env, seed: int) -> Finding:
    """Whether the ends of every action range are accepted, and the action is left as it was given."""
    ends = extremes(env.action_space)
    player = Player(env, seed, "actions")
    masked = (
        isinstance(env.observation_space, gym.spaces.Dict) and "action_mask" in env.observation_space.spaces
    )
    try:
        player.play(50, [] if masked else ends * 5)
    except Fault as fault:
        advice = f"The environment must take every action of {env.action_space}: declare the range it takes."
        return Finding("actions", FAIL, fault.finding.seen, advice)
    if player.changed_action:
        advice = "Copy it first (action = np.array(action)): a resumed run plays back the actions it kept."
        return Finding("actions", WARN, f"step writes into the action: {player.changed_action}", advice)
    shown = "" if masked else f"; from {_short(ends[0])} to {_short(ends[1])}"
    return Finding("actions", OK, f"accepts {'legal' if masked else 'random and extreme'} ones{shown}")


def _short(action: Any) -> str:
    text = " ".join(str(action).split())
    return text if len(text) <= 30 else text[:27] + "..."
