"""Checks that an environment fulfils the contract on which training relies.

    for finding in check_env("CartPole-v1"):
        print(finding.verdict, finding.check, finding.seen, finding.advice)

First it plays one environment by gymnasium's own API and checks what ``reset`` and ``step`` return. Then it
checks that every backend and autoreset mode returns exactly the transitions of that environment. The code
that computes the expected transitions uses nothing of the library except the rule of the seeds, so that it
is an independent reference. The command is ``ding-lite check-env``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.config.compile import compile_config
from ding_lite.envs.spaces import ObservationBuffer
from ding_lite.errors import ConfigError, DingLiteError, EnvContractError
from ding_lite.models.encoders import default_encoder
from ding_lite.models.heads import ActionHead
from ding_lite.rl.seeding import numpy_generator
from ding_lite.tools.env_check.backends import BACKENDS, backend_findings
from ding_lite.tools.env_check.contract import contract_findings
from ding_lite.tools.env_check.finding import FAIL, OK, WARN, Fault, Finding
from ding_lite.tools.env_check.native import native_findings, only_native
from ding_lite.tools.env_check.playing import Player, lengths_and_ends, make_bare, reset_env, step_env
from ding_lite.tools.env_check.rollout import as_shapes, random_rollout, tree_lines
from ding_lite.tools.env_check.seeds import (
    global_randomness,
    global_state_kept,
    mark_global_state,
    seed_findings,
)
from ding_lite.tools.env_check.trees import draw_legal, extremes, space_leaves
from ding_lite.trees import MASK_KEY

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

SEED_STEPS = 100  # maximum length of the episodes on which seeds are compared


def check_env(
    env: Mapping[str, Any] | Callable[..., gym.Env] | str,
    *,
    steps: int = 1000,
    seed: int = 0,
    backends: tuple[str, ...] = BACKENDS,
) -> list[Finding]:
    """Returns the findings of all checks. The environment works if no verdict is "FAIL".

    Args:
        env: a gymnasium id, a class or another callable that makes the environment, or a section ``env``.
        steps: number of steps to play. The ends of longer episodes are not checked.
        seed: of start states and actions.
        backends: to compare: "base", "subprocess", "ray".

    Raises:
        ConfigError: if the section ``env`` has a fault.
    """
    return list(findings(section_of(env), steps=steps, seed=seed, backends=backends))


def section_of(env: Mapping[str, Any] | Callable[..., gym.Env] | str) -> Mapping[str, Any]:
    """Returns the complete section ``env`` for the argument ``env`` of :func:`check_env`."""
    if isinstance(env, str):
        env = {"env_id": env}
    elif not isinstance(env, Mapping):
        env = {"type": env}
    kind = env.get("type")
    if hasattr(kind, "__qualname__") or not callable(kind):
        section: Mapping[str, Any] = compile_config({"env": env}, origin="check_env").values.env
        return section
    # compile_config requires a class or function with a name; a functools.partial has none.
    return {**section_of({**env, "type": gym.Env}), "type": kind}


def findings(
    env_cfg: Mapping[str, Any], *, steps: int = 1000, seed: int = 0, backends: tuple[str, ...] = BACKENDS
) -> Iterator[Finding]:
    """Yields each finding as soon as its check is done; see :func:`check_env`.

    Args:
        env_cfg: a complete section ``env``.
        steps, seed, backends: see :func:`check_env`.
    """
    with global_state_kept(), np.errstate(all="ignore"):
        if only_native(env_cfg):
            yield from native_findings(env_cfg, seed, steps)
            return
        try:
            env = make_bare(env_cfg)
        except DingLiteError as error:
            seen, _, install = str(error).partition(" Install what it needs: ")
            advice = install or "Correct the id, env.kwargs or env.wrappers."
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
    """Checks one environment by gymnasium's API, and then the backends."""
    spaces = _check_spaces(env)
    yield spaces
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
    actions = _check_actions(env, seed)
    yield actions
    yield global_randomness(before)
    if broken or actions.verdict == FAIL:
        advice = "Correct the failed checks above, and run this again."
        yield Finding("seeds, backends", WARN, "not compared: they would stop at the same fault", advice)
        return
    deterministic = True
    for finding in seed_findings(lambda: make_bare(env_cfg), seed, min(steps, SEED_STEPS)):
        deterministic &= finding.verdict != FAIL
        yield finding
    shortest = min((length for length, _, _ in lengths_and_ends(player.calls)), default=0)
    # A quarter of the steps, or as many as it takes to see an episode end.
    rows = min(steps, max(steps // 4, shortest * 5 // 4 + 1))
    yield from backend_findings(env_cfg, seed, rows, backends, deterministic)
    yield from native_findings(env_cfg, seed, rows)


def _check_spaces(env: gym.Env) -> Finding:
    """Checks that every leaf of both spaces is of a supported kind."""
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
    """Calls the innermost environment once; wrappers fail on an old API without naming it."""
    obs, _ = reset_env(env, seed)
    step_env(env, draw_legal(env.action_space, obs, numpy_generator(seed, "check", "probe")))


def _check_actions(env: gym.Env, seed: int) -> Finding:
    """Checks that ``step`` accepts the bounds of the action space and does not change the action."""
    ends = extremes(env.action_space)
    player = Player(env, seed, "actions")
    masked = isinstance(env.observation_space, gym.spaces.Dict) and MASK_KEY in env.observation_space.spaces
    try:
        player.play(50, [] if masked else ends * 5)
    except Fault as fault:
        advice = f"step must accept every action in {env.action_space}: declare the range that it accepts."
        return Finding("actions", FAIL, fault.finding.seen, advice)
    if player.changed_action:
        advice = (
            "Copy it first (action = np.array(action)): a resumed run replays the actions that it has stored."
        )
        return Finding("actions", WARN, f"step writes into the action: {player.changed_action}", advice)
    shown = "" if masked else f"; from {_short(ends[0])} to {_short(ends[1])}"
    return Finding(
        "actions", OK, f"step accepts {'legal' if masked else 'random and extreme'} actions{shown}"
    )


def _short(action: Any) -> str:
    text = " ".join(str(action).split())
    return text if len(text) <= 30 else text[:27] + "..."
