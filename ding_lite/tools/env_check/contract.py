"""Checks of what one environment returned: observations, rewards, flags, and ends of episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from ding_lite.envs.make import auto_is_native
from ding_lite.envs.masks import as_mask, mask_fault, without_legal_action
from ding_lite.envs.spaces import ObservationBuffer
from ding_lite.envs.workers.cores import default_workers
from ding_lite.errors import EnvContractError
from ding_lite.tools.env_check.finding import FAIL, OK, WARN, Fault, Finding
from ding_lite.tools.env_check.playing import Call, Player, declared_limit, is_set, lengths_and_ends
from ding_lite.tools.env_check.trees import first_difference, stored, value_leaves
from ding_lite.trees import MASK_KEY, map_tree, without_numbers

TOLERANCE = 1e-5  # relative tolerance at a bound, for float32 rounding
MESSAGE = 0.3e-3  # seconds that a message to a worker process and its answer take
CLEARLY = 3  # times a message: if the steps for one message take longer, worker processes pay in any case
UNDISTURBED = 0.95  # share of the steps that count for the speed; other processes interrupt the slowest ones


def contract_findings(env: gym.Env, player: Player, env_cfg: Mapping[str, Any]) -> Iterator[Finding]:
    """Yields one finding for each check of the calls that ``player`` has recorded."""
    calls = player.calls
    yield observation(env, calls)
    yield bounds(env, calls)
    yield finite(env, calls)
    yield reward(calls)
    yield flags(calls)
    yield both_flags(calls)
    yield aliasing(player)
    yield episodes_end(env, calls, env_cfg["max_eval_steps"])
    yield time_limit(env, calls)
    if isinstance(env.observation_space, spaces.Dict) and MASK_KEY in env.observation_space.spaces:
        yield action_mask(env, calls)
    elif player.has_mask_in_info:
        yield Finding(
            "action mask",
            WARN,
            f"info has the key {MASK_KEY!r}, which is not used",
            "Set env.action_mask=info, or put the mask into the observation.",
        )
    yield speed(calls, env_cfg)


def findings_beside(fault: Fault) -> Iterator[Finding]:
    """Yields what else is wrong with a step whose info is no dict, which ends the checks."""
    if fault.result:
        obs, reward_, terminated, truncated, _ = fault.result
        call = Call("the same step", 0, 1, obs, reward_, terminated, truncated)
        yield from (found for found in (reward([call]), flags([call])) if found.verdict != OK)


def observation(env: gym.Env, calls: Sequence[Call]) -> Finding:
    """Checks structure, shape and dtype, by the rule with which the backends store observations."""
    if empty := without_numbers(env.observation_space):
        return Finding("observation", FAIL, empty, "")
    buffer = ObservationBuffer(env.observation_space, 1)
    for call in calls:
        try:
            buffer.write(0, call.obs)
        except EnvContractError as error:
            advice = "Declare in observation_space what the environment returns, or cast before returning."
            return Finding("observation", FAIL, f"{call.where}: {error}", advice)
    notes = dict.fromkeys(note for call in calls[:50] for note in _dtype_notes(env, call.obs))
    seen = f"{len(calls)} observations have the structure, shape and dtype of their space"
    return Finding("observation", OK, "; ".join([seen, *notes]))


def _dtype_notes(env: gym.Env, obs: Any) -> Iterator[str]:
    for path, space, value in value_leaves(env.observation_space, obs):
        got = np.asarray(value).dtype
        if space.dtype == np.float64:
            yield f"float64 observations{path} become float32"
        elif isinstance(space, spaces.Box) and got != space.dtype:
            yield f"{got} observations{path} become {space.dtype}"


def bounds(env: gym.Env, calls: Sequence[Call]) -> Finding:
    """Checks that values are inside of their space."""
    worst: dict[str, tuple[float, str]] = {}
    for call in calls:
        for path, space, value in value_leaves(env.observation_space, call.obs):
            if isinstance(space, spaces.Box):
                excess = _excess(space, value)
                if excess > worst.get(path, (0.0, ""))[0]:
                    worst[path] = excess, call.where
            elif _outside(space, value):
                seen = f"{call.where}: observation{path} = {value!r:.60} is not in {space}"
                return Finding(
                    "bounds", FAIL, seen, "Declare a larger space: an index outside of it cannot be encoded."
                )
    if worst:
        seen = "; ".join(
            f"observation{path} is outside of its bounds by up to {excess:.3g} ({where})"
            for path, (excess, where) in worst.items()
        )
        advice = "Widen low and high, or clip: scaling to the bounds and other libraries rely on them."
        return Finding("bounds", WARN, seen, advice)
    return Finding("bounds", OK, "every value is inside of its space")


def _array(value: Any) -> np.ndarray:
    """Returns a leaf as an array; a ragged list becomes a 0-d array of None."""
    try:
        return np.asarray(value)
    except ValueError:  # a ragged list
        return np.asarray(None)


def _excess(space: spaces.Box, value: Any) -> float:
    """Returns the largest distance of a value beyond its bounds; 0 if it is within the tolerance."""
    array = _array(value)
    if array.shape != space.shape or array.dtype.kind not in "biuf":
        return 0.0  # reported by the check of shape and dtype
    array = array.astype(np.float64)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    distance = np.fmax(low - array, array - high)
    bound = np.where(array > high, high, low)
    allowed = TOLERANCE * np.fmax(1.0, np.abs(np.where(np.isfinite(bound), bound, 1.0)))
    distance = np.where(np.isfinite(array) & (distance > allowed), distance, 0.0)
    return float(distance.max(initial=0.0))


def _outside(space: gym.Space, value: Any) -> bool:
    """Returns whether a value of a discrete space is outside of it."""
    array = _array(value)
    if array.dtype.kind not in "biu" or array.shape != (space.shape or ()):
        return False  # reported by the check of shape and dtype
    if isinstance(space, spaces.MultiBinary):
        return bool(((array != 0) & (array != 1)).any())
    start = np.asarray(getattr(space, "start", 0))
    count = np.asarray(getattr(space, "n", 0) if isinstance(space, spaces.Discrete) else space.nvec)  # type: ignore[attr-defined]
    return bool(((array < start) | (array >= start + count)).any())


def finite(env: gym.Env, calls: Sequence[Call]) -> Finding:
    """Checks that observations and rewards are finite; a run ends at the first one that is not."""
    for call in calls:
        for path, _, value in value_leaves(env.observation_space, call.obs):
            array = _array(value)
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                index = [int(i) for i in np.argwhere(~np.isfinite(array))[0]]
                shown = array[tuple(index)]
                seen = f"{call.where}: observation{path}{index or ''} = {shown}"
                return Finding("finite", FAIL, seen, "Training stops here: look for a division by zero.")
        value = _as_number(call.reward)
        if value is not None and not np.isfinite(value):
            seen = f"{call.where}: reward = {value}"
            return Finding("finite", FAIL, seen, "Training stops here: return a finite reward.")
    return Finding("finite", OK, "no NaN and no infinity in observations and rewards")


def _as_number(value: Any) -> float | None:
    """Returns a reward as a number, also from an array of one element; None if it is neither."""
    if value is None or isinstance(value, (str, bytes, dict)):
        return None
    try:
        array = np.asarray(value)
        return float(array.reshape(())) if array.size == 1 and array.dtype.kind in "biuf" else None
    except (TypeError, ValueError):
        return None


def reward(calls: Sequence[Call]) -> Finding:
    """Checks that each reward is a number; an array of one element gets a warning."""
    coerced = ""
    for call in calls:
        if _as_number(call.reward) is None:
            seen = f"{call.where}: reward = {call.reward!r:.60} ({type(call.reward).__name__})"
            return Finding("reward", FAIL, seen, "Return one number as the reward: float(reward).")
        if np.ndim(call.reward) and not coerced:
            shown = f"a {type(call.reward).__name__} of shape {np.shape(call.reward)}"
            coerced = f"{call.where}: the reward is {shown}, taken as the number in it"
    if coerced:
        advice = (
            "Return float(reward): gymnasium's own vector environments and other libraries fail on an array."
        )
        return Finding("reward", WARN, coerced, advice)
    values = [float(call.reward) for call in calls if call.step]
    finite_values = [value for value in values if np.isfinite(value)] or [0.0]
    seen = f"numbers from {min(finite_values):.4g} to {max(finite_values):.4g}"
    return Finding("reward", OK, seen)


def flags(calls: Sequence[Call]) -> Finding:
    """Checks that both flags are bools; 0, 1 and arrays of one element get a warning."""
    coerced = ""
    for call in calls:
        for name, flag in (("terminated", call.terminated), ("truncated", call.truncated)):
            if isinstance(flag, (bool, np.bool_)):
                continue
            shown = f"{call.where}: {name} = {flag!r:.40} ({type(flag).__name__})"
            array = _array(flag)
            if array.size != 1 or array.dtype.kind not in "biu" or int(array.reshape(())) not in (0, 1):
                return Finding("flags", FAIL, shown, f"Return bool({name}), True or False.")
            coerced = coerced or f"{shown}, taken as {bool(array)}"
    if coerced:
        return Finding("flags", WARN, coerced, "Return bool(...): other libraries index with these flags.")
    return Finding("flags", OK, "terminated and truncated are bools")


def both_flags(calls: Sequence[Call]) -> Finding:
    """Checks that the flags are never both set; such an episode counts as terminated."""
    both = [call for call in calls if call.step and is_set(call.terminated) and is_set(call.truncated)]
    if both:
        seen = f"{both[0].where}: terminated and truncated are both True ({len(both)} times)"
        advice = (
            "Set truncated only if the task itself has not ended; here termination wins, without a bootstrap."
        )
        return Finding("both flags", WARN, seen, advice)
    return Finding("both flags", OK, "never both set")


def aliasing(player: Player) -> Finding:
    """Checks that observations do not share memory with earlier ones."""
    seen = player.overwritten or player.shared
    if seen:
        advice = "Return obs.copy(): ding_lite copies observations, but other libraries keep references."
        return Finding("aliasing", WARN, seen, advice)
    return Finding("aliasing", OK, "no observation shares memory with an earlier one")


def episodes_end(env: gym.Env, calls: Sequence[Call], max_eval_steps: int) -> Finding:
    """Checks that episodes end within the steps played, or that there is a time limit."""
    ended = lengths_and_ends(calls)
    limit = declared_limit(env)
    steps = sum(call.step > 0 for call in calls)
    if ended:
        lengths = [length for length, _, _ in ended]
        seen = f"{len(ended)} episodes of {min(lengths)} to {max(lengths)} steps"
        return Finding("episodes end", OK, seen)
    if limit is not None:
        return Finding("episodes end", OK, f"none in {steps} steps; the time limit is {limit} steps")
    seen = f"no episode ended in {steps} random steps, and there is no time limit"
    advice = (
        f"Evaluation episodes will be cut at env.max_eval_steps={max_eval_steps}. Register the environment "
        "with max_episode_steps=N, or wrap it in gymnasium.wrappers.TimeLimit."
    )
    return Finding("episodes end", WARN, seen, advice)


def time_limit(env: gym.Env, calls: Sequence[Call]) -> Finding:
    """Checks that episodes that reach a time limit are truncated, not terminated.

    Otherwise the value of the last state is learned as if nothing came after it.
    """
    ended = lengths_and_ends(calls)
    limit = declared_limit(env)
    advice = (
        "Report a time limit as truncated=True, terminated=False, so that the last value is bootstrapped. If "
        "the task itself ends then, and the observation shows the remaining time, nothing needs to change."
    )
    if limit is not None:
        at_limit = [terminated for length, terminated, _ in ended if length == limit]
        if at_limit and all(at_limit):
            seen = f"all {len(at_limit)} episodes of {limit} steps, the time limit, are terminated"
            return Finding("time limit", FAIL if len(at_limit) > 1 else WARN, seen, advice)
        if at_limit:
            return Finding("time limit", OK, f"episodes of {limit} steps are truncated, not terminated")
        return Finding("time limit", OK, f"{limit} steps, not reached by random actions")
    lengths = {length for length, terminated, _ in ended}
    if len(ended) >= 3 and len(lengths) == 1 and max(lengths) > 1 and all(t for _, t, _ in ended):
        seen = f"every episode terminated at exactly {max(lengths)} steps ({len(ended)} of {len(ended)})"
        if _equal_starts(env, calls):
            seen += ", and all began with the same observation"
            advice = (
                "Equal starts may be the reason: if the task ended, nothing needs to change. If it is a time "
                f"limit: {advice[0].lower()}{advice[1:]}"
            )
        return Finding("time limit", WARN, seen, advice)
    cuts = sum(truncated and not terminated for _, terminated, truncated in ended)
    seen = f"none declared; the environment truncated {cuts} episodes itself" if cuts else "none declared"
    return Finding("time limit", OK, seen)


def _equal_starts(env: gym.Env, calls: Sequence[Call]) -> bool:
    """Returns whether all episodes began with the same observation."""
    first, *others = [stored(env.observation_space, call.obs) for call in calls if not call.step]
    return not any(first_difference(other, first, "") for other in others)


def action_mask(env: gym.Env, calls: Sequence[Call]) -> Finding:
    """Checks the space of the masks, and that every step has a legal action."""
    fault = mask_fault(env.observation_space[MASK_KEY], env.action_space)  # type: ignore[index]
    if fault:
        seen, advice = fault
        return Finding("action mask", FAIL, seen, f"{advice}.")
    for call in calls:
        try:
            mask = map_tree(lambda leaf: leaf[None], as_mask(call.obs[MASK_KEY], env.action_space))
        except (KeyError, TypeError, ValueError):
            continue  # reported by the check "observation"
        # The last observation of an episode needs no legal action.
        if not call.ended and without_legal_action(mask, env.action_space).any():
            seen = f"{call.where}: no action is legal"
            return Finding("action mask", FAIL, seen, "End the episode there, or leave one action legal.")
    return Finding("action mask", OK, "every step has a legal action")


def speed(calls: Sequence[Call], env_cfg: Mapping[str, Any]) -> Finding:
    """Reports the steps per second and the backend that suits them; it always passes."""
    durations = sorted(call.seconds for call in calls if call.step)
    seconds = float(np.mean(durations[: max(1, int(UNDISTURBED * len(durations)))]))
    batch = seconds * env_cfg["collector_env_num"]
    shown = (
        f"{1 / max(seconds, 1e-9):,.0f} steps/s; a batch of {env_cfg['collector_env_num']} takes "
        f"{1000 * batch:.2g} ms"
    )
    if auto_is_native(env_cfg):
        return Finding("speed", OK, f"{shown}: env.manager.type=auto uses its native vector environment")
    return Finding("speed", OK, f"{shown}: {_suited_backend(seconds, env_cfg['collector_env_num'])}")


def _suited_backend(seconds: float, num_envs: int) -> str:
    """Returns which backend suits environments whose steps take so many seconds.

    A message to a worker steps all of its environments, so their time together is compared with its cost.
    """
    workers = min(num_envs, default_workers(double_buffer=False))
    share = seconds * num_envs / workers
    if workers == 1 or share < MESSAGE:
        return "env.manager.type=base suits it"
    if share > CLEARLY * MESSAGE:
        return "env.manager.type=subprocess suits it"
    return "env.manager.type=base or subprocess; `ding-lite profile -c ... --tune` decides"
