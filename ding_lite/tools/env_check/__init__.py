"""Checks that an environment fulfils the contract on which training relies.

    for finding in check_env("CartPole-v1"):
        print(finding.verdict, finding.check, finding.seen, finding.advice)

First it plays one environment by gymnasium's own API and checks what ``reset`` and ``step`` return. Then it
checks that the backends "base" and "subprocess" return exactly the transitions of that environment in each
autoreset mode. The code that computes the expected transitions uses nothing of the library except the rule of
the seeds, so that it is an independent reference. The command is ``ding-lite check-env``.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from ding_lite.config.compile import compile_config
from ding_lite.config.registry import env_section
from ding_lite.envs.spaces import ObservationBuffer
from ding_lite.errors import FOREIGN, DingLiteError, EnvContractError, error_text
from ding_lite.models.encoders import default_encoder
from ding_lite.models.heads import ActionHead
from ding_lite.rl.seeding import numpy_generator
from ding_lite.tools.env_check.backends import BACKENDS, backend_findings
from ding_lite.tools.env_check.contract import contract_findings, findings_beside
from ding_lite.tools.env_check.finding import FAIL, OK, WARN, Fault, Finding
from ding_lite.tools.env_check.native import native_findings, only_native
from ding_lite.tools.env_check.playing import (
    MORE_TIME,
    Budget,
    HangingCall,
    Player,
    interrupted_after,
    lengths_and_ends,
    make_bare,
    reset_env,
    step_env,
)
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
    "HangingCall",
    "as_shapes",
    "check_env",
    "findings",
    "interrupted_after",
    "random_rollout",
    "section_of",
    "tree_lines",
]

SEED_STEPS = 100  # maximum length of the episodes on which seeds are compared
# Shares of the remaining time, where an environment is slow.
PLAYING, SEEDING, COMPARING = 0.3, 0.15, 0.5
SEED_PLAYS = 6  # episodes that seeds are compared on
# Steps, one after the other, for each row that is compared: of 4 environments in the reference and in 3 modes
# of "base", and of 2 environments a worker in 3 modes of "subprocess".
ROW_PLAYS = 4 + 3 * 4 + 3 * 2


def check_env(
    env: Mapping[str, Any] | Callable[..., gym.Env] | str,
    *,
    steps: int = 1000,
    seed: int = 0,
    backends: tuple[str, ...] = BACKENDS,
    seconds: float = math.inf,
) -> list[Finding]:
    """Returns the findings of all checks. The environment works if no verdict is "FAIL".

    Args:
        env: a gymnasium id, a registered name, "package.module:Class", a class or another callable that makes
            the environment, or a section ``env``.
        steps: number of steps to play. The ends of longer episodes are not checked.
        seed: of start states and actions.
        backends: to compare: "base", "subprocess", "ray".
        seconds: within which to end. Of a slow environment fewer steps are played, and what there was no time
            for is a finding of its own.

    Raises:
        ConfigError: if the section ``env`` has a fault.
    """
    return list(findings(section_of(env), steps=steps, seed=seed, backends=backends, seconds=seconds))


def section_of(env: Mapping[str, Any] | Callable[..., gym.Env] | str) -> Mapping[str, Any]:
    """Returns the complete section ``env`` for the argument ``env`` of :func:`check_env`."""
    if isinstance(env, str):
        env = env_section(env)
    elif not isinstance(env, Mapping):
        env = {"type": env}
    kind = env.get("type")
    if hasattr(kind, "__qualname__") or not callable(kind):
        section: Mapping[str, Any] = compile_config({"env": env}, origin="check_env").values.env
        return section
    # compile_config requires a class or function with a name; a functools.partial has none.
    return {**section_of({**env, "type": gym.Env}), "type": kind}


def findings(
    env_cfg: Mapping[str, Any],
    *,
    steps: int = 1000,
    seed: int = 0,
    backends: tuple[str, ...] = BACKENDS,
    seconds: float = math.inf,
) -> Iterator[Finding]:
    """Yields each finding as soon as its check is done; see :func:`check_env`.

    Args:
        env_cfg: a complete section ``env``.
        steps, seed, backends, seconds: see :func:`check_env`.
    """
    budget = Budget(seconds)
    with global_state_kept(), np.errstate(all="ignore"):
        if only_native(env_cfg):
            yield from native_findings(env_cfg, seed, steps)
            return
        try:
            env = make_bare(env_cfg)
        except DingLiteError as error:
            seen, _, install = str(error).partition(" Install what it needs: ")
            yield Finding("make", FAIL, seen, install or _advice_to_make(error))
            return
        yield Finding("make", OK, f"{type(env.unwrapped).__module__}.{type(env.unwrapped).__qualname__}")
        hangs = False  # closing it may hang, too
        try:
            yield from _single(env, env_cfg, steps, seed, backends, budget)
        except Fault as fault:
            yield fault.finding
            yield from findings_beside(fault)
        except HangingCall as error:
            hangs = True
            yield Finding("time", FAIL, f"a check {error}", f"{MORE_TIME}.")
        finally:
            if not hangs:
                _check_close(env)


def _advice_to_make(error: DingLiteError) -> str:
    """Returns what to do about an environment that cannot be made."""
    if isinstance(error, EnvContractError):
        return ""  # its message says it
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    module = ""
    for frame, _ in traceback.walk_tb(root.__traceback__):
        module = frame.f_globals.get("__name__", "")
    of_gymnasium = module.startswith("gymnasium.") and (
        not module.startswith("gymnasium.envs.") or module == "gymnasium.envs.registration"
    )
    if of_gymnasium or isinstance(root, ImportError) or module.startswith(("ding_lite.", "importlib")):
        return "Correct the id, env.kwargs or env.wrappers."
    return "The environment's own code raised this: correct it there, or the arguments in env.kwargs."


def _single(
    env: gym.Env,
    env_cfg: Mapping[str, Any],
    steps: int,
    seed: int,
    backends: tuple[str, ...],
    budget: Budget,
) -> Iterator[Finding]:
    """Checks one environment by gymnasium's API, and then the backends."""
    spaces = _check_spaces(env)
    yield spaces
    if spaces.verdict == FAIL:
        return
    _probe(env.unwrapped, seed)
    before = mark_global_state(seed)
    player = Player(env, seed)
    player.play(steps, until=budget.share(PLAYING))
    played = sum(call.step > 0 for call in player.calls)
    yield Finding("reset", OK, "returns (obs, info)")
    yield Finding("step", OK, "returns (obs, reward, terminated, truncated, info)")
    broken = False
    for finding in contract_findings(env, player, env_cfg):
        broken |= finding.verdict == FAIL and finding.check in ("observation", "finite", "reward", "flags")
        yield finding
    actions = _check_actions(env, seed, budget)
    yield actions
    yield global_randomness(before)
    fault_of_close = _check_close(make_bare(env_cfg))
    yield from fault_of_close
    if broken or actions.verdict == FAIL or fault_of_close:
        advice = "Correct the failed checks above, and run this again."
        yield Finding("seeds, backends", WARN, "not compared: they would stop at the same fault", advice)
        return
    pace = player.seconds / len(player.calls)
    seed_steps = min(steps, SEED_STEPS)
    shortest = min((length for length, _, _ in lengths_and_ends(player.calls)), default=0)
    # A quarter of the steps, or as many as it takes to see an episode end.
    rows = min(steps, max(steps // 4, shortest * 5 // 4 + 1))
    in_time = (
        budget.affordable(seed_steps, pace * SEED_PLAYS, SEEDING),
        budget.affordable(rows, pace * ROW_PLAYS, COMPARING),
    )
    if (played, *in_time) != (steps, seed_steps, rows):
        seen = (
            f"{1 / pace:,.2g} steps/s: {played} of {steps} steps were played, {in_time[0]} of {seed_steps} "
            f"are compared for equal seeds and {in_time[1]} of {rows} on each backend, to stay within "
            f"{budget.seconds:g} s"
        )
        yield Finding("time", OK if all(in_time) else WARN, seen, "For more, give more time: --seconds N.")
    seed_steps, rows = in_time
    deterministic = True
    if seed_steps:
        for finding in seed_findings(lambda: make_bare(env_cfg), seed, seed_steps):
            deterministic &= finding.verdict != FAIL
            yield finding
    if rows:
        yield from backend_findings(env_cfg, seed, rows, backends, deterministic, budget)
        yield from native_findings(env_cfg, seed, rows)


def _check_spaces(env: gym.Env) -> Finding:
    """Checks that every leaf of both spaces is of a supported kind."""
    advice = "Declare it as one of these spaces, or flatten it with a wrapper (env.wrappers)."
    try:
        ObservationBuffer(env.observation_space, 1)
    except EnvContractError as error:
        return Finding("spaces", FAIL, str(error), advice)
    try:
        for path, leaf in space_leaves(env.observation_space):
            where = f"observation{path}"
            default_encoder(leaf)
        for path, leaf in space_leaves(env.action_space):
            where = f"action{path}"
            ActionHead(leaf, 1)
    except DingLiteError as error:
        return Finding("spaces", FAIL, f"{where}: {error}", advice)
    return Finding("spaces", OK, f"observation {env.observation_space}, action {env.action_space}")


def _probe(env: gym.Env, seed: int) -> None:
    """Calls the innermost environment once; wrappers fail on an old API without naming it."""
    obs, _ = reset_env(env, seed)
    step_env(env, draw_legal(env.action_space, obs, numpy_generator(seed, "check", "probe")))


def _check_actions(env: gym.Env, seed: int, budget: Budget) -> Finding:
    """Checks that ``step`` accepts the bounds of the action space and does not change the action."""
    ends = extremes(env.action_space)
    player = Player(env, seed, "actions")
    masked = isinstance(env.observation_space, gym.spaces.Dict) and MASK_KEY in env.observation_space.spaces
    try:
        player.play(50, [] if masked else ends * 5, until=budget.share(SEEDING))
    except Fault as fault:
        if isinstance(fault.__cause__, HangingCall):
            raise
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


def _check_close(env: gym.Env) -> list[Finding]:
    """Closes an environment; returns a finding if that raises."""
    try:
        env.close()
    except HangingCall:
        raise
    except FOREIGN as error:
        advice = "Release what the environment holds, and raise nothing."
        return [Finding("close", FAIL, f"close() raised {error_text(error)}", advice)]
    return []


def _short(action: Any) -> str:
    text = " ".join(str(action).split())
    return text if len(text) <= 30 else text[:27] + "..."
