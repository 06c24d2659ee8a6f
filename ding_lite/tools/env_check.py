"""Checks that an environment does what training relies on.

    for finding in check_env("CartPole-v1"):
        print(finding.verdict, finding.check, finding.text)

Plays random legal actions with the checks of training, so that a fault has the same message as in training.
Then plays the same seeds and actions again, in worker processes and here, and compares every number. Worker
processes come first: this process survives if they hang or die. The command is ``ding-lite check-env``.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch

from ding_lite.config.compile import compile_config
from ding_lite.config.registry import env_section
from ding_lite.envs.checks import Watch, layers
from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.make import make_vector_env
from ding_lite.envs.vector import VectorEnv
from ding_lite.envs.workers.cores import cores
from ding_lite.errors import DingLiteError, NotFiniteError, counted
from ding_lite.models import VAC
from ding_lite.models.encoders import WIDEST
from ding_lite.rl.seeding import seeded_layers, torch_generator
from ding_lite.trees import MASK_KEY, Tree, is_image, map_tree, named_leaves, path_text, space_leaves

OK, WARN, FAIL = "OK", "WARN", "FAIL"
NUM_ENVS = 2  # environments that are played; in "subprocess" each has a worker
# The default. "ray" has the same workers as "subprocess", and takes seconds to start.
BACKENDS = ("base", "subprocess")
WORKERS = ("subprocess", "ray")
MESSAGE = 0.3e-3  # seconds that a message to a worker process and its answer take
LARGE = 1e4  # numbers from here on make the gradients of a network too large
ENTRIES = 16  # largest vector whose numbers are shown one by one

Row = dict[str, Tree]  # one step of B environments, see :func:`play`


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        check: its name.
        verdict: "OK"; "WARN": it works here, but may cause trouble; "FAIL": it does not work.
        text: what was seen, and what to do about it.
    """

    check: str
    verdict: str
    text: str


def check_env(
    env: Mapping[str, Any] | Callable[..., gym.Env] | gym.Env | str,
    *,
    steps: int = 1000,
    seed: int = 0,
    backends: Sequence[str] = BACKENDS,
) -> list[Finding]:
    """Returns the findings of all checks. The environment works if no verdict is "FAIL".

    Args:
        env: a gymnasium id, a registered name, "package.module:Class", a class or another callable that makes
            the environment, or a section ``env``. An existing environment is played in this process
            only, and stays open.
        steps: to play in each of two environments. The ends of longer episodes are not checked.
        seed: of start states and actions.
        backends: to compare: "base", "subprocess", "ray".

    Raises:
        ConfigError: if the section ``env`` has a fault.
    """
    return list(findings(section_of(env), steps=steps, seed=seed, backends=backends))


def section_of(env: Mapping[str, Any] | Callable[..., gym.Env] | gym.Env | str) -> dict[str, Any]:
    """Returns the complete section ``env`` for the argument ``env`` of :func:`check_env`."""
    section = env_section(env) if isinstance(env, str) else env
    section = dict(section) if isinstance(section, Mapping) else {"type": section}
    kind = section.get("type", "gymnasium")
    # compile_config requires a class or function with a name; a functools.partial has none.
    section["type"] = kind if isinstance(kind, str) else gym.Env
    return {**compile_config({"env": section}, origin="env").values.env, "type": kind}


def findings(
    env_cfg: Mapping[str, Any], *, steps: int = 1000, seed: int = 0, backends: Sequence[str] = BACKENDS
) -> Iterator[Finding]:
    """Yields each finding as it is made; see :func:`check_env`. ``env_cfg`` is a complete section ``env``."""
    env, backend, num_envs = env_cfg["type"], env_cfg["manager"]["type"], env_cfg["collector_env_num"]
    is_made = isinstance(env, gym.Env)
    if is_made:
        env_cfg, backends, num_envs = {**env_cfg, "type": lambda: env}, ("base",), 1
    kinds = {*backends, *({backend} & {*WORKERS})}
    if backend in ("vector", "env_pool"):  # no other backend can run these environments
        kinds = {backend}
    first, *others = sorted(kinds, reverse=True)  # "base" last

    lines: list[str] = []
    stopwatches: list[Stopwatch] = []
    try:
        with _warnings_to(lines):
            envs = _vector(env_cfg, first, min(NUM_ENVS, num_envs), seed)
    except DingLiteError as error:
        yield Finding("make", FAIL, str(error))
        return
    yield Finding("make", OK, f"observation {envs.obs_space}, action {envs.action_space}")
    try:
        with _warnings_to(lines), contextlib.nullcontext() if is_made else contextlib.closing(envs):
            notes = envs.notes()
            for name, note in notes.items():
                yield Finding(name, WARN, note)
            played = list(play(envs, steps, "check", random_actions(envs, seed)))
            yield Finding("contract", OK, f"kept in {steps:,} steps of {envs.backend}")
            not_repeated = first_difference(played, play_again(envs, played))
            stopwatches += [] if not_repeated else _timed(envs)
            others_played = play(envs, steps, "other", random_actions(envs, seed))
            has_other_episodes = bool(first_difference(played, others_played))
    except DingLiteError as error:
        yield Finding("contract", FAIL, str(error))
        return
    if "scale" not in notes:  # this note explains why the same seeds give other episodes
        yield from _seeds(not_repeated, has_other_episodes)
    for kind in others if not not_repeated else []:
        # With workers, an environment may support only one instance per process.
        rows = [_of_first(row) for row in played] if kind == "base" and backend in WORKERS else played
        with _warnings_to(lines):
            finding = _compared(env_cfg, kind, seed, rows, stopwatches)
        yield finding
    for line in dict.fromkeys(lines):
        yield Finding("contract", WARN, line.removeprefix("WARNING: "))
    limit = next((stopwatch.time_limit for stopwatch in stopwatches), None)
    yield from _ends(played, limit, env_cfg)
    yield from _ranges(played, envs.obs_space)
    if stopwatches:
        yield _speed(stopwatches, env_cfg)


@contextlib.contextmanager
def _warnings_to(lines: list[str]) -> Iterator[None]:
    """Appends the text of each warning in the block to ``lines``."""
    with warnings.catch_warnings(record=True) as caught, np.errstate(all="ignore"):
        warnings.simplefilter("default")
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
    lines += [str(warning.message) for warning in caught]


def _vector(
    env_cfg: Mapping[str, Any], kind: str, num_envs: int, seed: int, workers: int | None = None
) -> VectorEnv:
    keys = {"type": kind, "worker_num": workers or num_envs, "restart_share": 0.0, "double_buffer": False}
    return make_vector_env({**env_cfg, "manager": {**env_cfg["manager"], **keys}}, num_envs, seed)


# ------------------------------------------------------------------ playing


def play(envs: VectorEnv, steps: int, stream: str, act: Callable[[Tree], Tree]) -> Iterator[Row]:
    """Plays as training does, and yields each step.

    Args:
        envs: B environments.
        steps: to play.
        stream: names the seeds of the episodes.
        act: observations (B, ...) -> actions (B, ...) as the environments take them.

    Shapes:
        "obs", "action", "reward", "terminated", "truncated", "valid": (B, ...)
        "final": the last observations (K, ...) of truncated episodes; {} if there are none

    Raises:
        EnvError: as training does.
    """
    watch = Watch(envs, "")
    obs = watch.reset(stream)
    for _ in range(steps):
        obs = map_tree(np.array, obs)  # a copy, since the environments overwrite their arrays
        action = act(obs)
        row = {"obs": obs, "action": map_tree(np.array, action)}
        got = envs.step(action)
        watch.look(got)
        flags = {
            name: np.array(getattr(got, name)) for name in ("reward", "terminated", "truncated", "valid")
        }
        yield {**row, **flags, "final": {} if got.final_obs is None else got.final_obs}
        obs = got.obs


def random_actions(envs: VectorEnv, seed: int) -> Callable[[Tree], Tree]:
    """Returns a function that draws random legal actions from the distribution of the default model.

    Raises:
        ConfigError: if the model cannot be made for these spaces.
    """
    names = [*envs.obs_space] if isinstance(envs.obs_space, gym.spaces.Dict) else []
    groups = {"actor": names, "critic": names} if names else None  # the encoders do not act here
    with seeded_layers(seed, "check"):
        model = VAC(envs.obs_space, envs.action_space, obs_groups=groups)
    generator = torch_generator(seed, "check")
    with torch.no_grad():
        logit = model.actor_head.out.logit(torch.zeros(envs.num_envs, model.actor_head.out.size))

    def act(obs: Tree) -> Tree:
        mask = obs.get(MASK_KEY) if isinstance(obs, dict) else None
        legal = None if mask is None else map_tree(lambda leaf: torch.as_tensor(leaf).bool(), mask)
        action = model.distribution(logit, legal).sample(generator)
        return model.actor_head.out.to_env(map_tree(lambda leaf: leaf.numpy(), action))

    return act


def play_again(envs: VectorEnv, played: Sequence[Row]) -> Iterator[Row]:
    """Plays the same seeds and actions again; yields as :func:`play`."""
    actions = iter([row["action"] for row in played])
    return play(envs, len(played), "check", lambda obs: next(actions))


def _of_first(row: Row) -> Row:
    """Returns the row of the first environment alone."""
    return map_tree(lambda leaf: leaf[:1], {**row, "final": row["final"] if row["truncated"][0] else {}})


def first_difference(played: Sequence[Row], others: Iterator[Row]) -> str:
    """Returns the first difference of two plays, or an error of the second one, as text, or "".

    Raises:
        NotFiniteError: of the second play; it says nothing about seeds.
    """
    try:
        for step, (row, other) in enumerate(zip(played, others, strict=True)):
            for (path, one), (_, two) in zip(named_leaves(row), named_leaves(other), strict=False):
                if not np.array_equal(one, two):
                    env, *index = np.argwhere(one != two)[0].tolist()
                    where = f"{'.'.join(path)}{index or ''}"
                    return f"step {step} of env {env}: {where} was {one[env, *index]}, is {two[env, *index]}"
    except NotFiniteError:
        raise
    except DingLiteError as error:
        return str(error)
    return ""


class Stopwatch(gym.Wrapper):
    """The outermost wrapper of an environment that is played again: it measures the steps.

    Attributes:
        seconds: of each step.
        time_limit: the smallest time limit of the environment's wrappers; None if there is none.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.seconds: list[float] = []
        limits = [vars(layer).get("_max_episode_steps") for layer in layers(env)]
        self.time_limit = min(filter(None, limits), default=None)

    def step(self, action: Any) -> Any:
        began = time.perf_counter()
        result = self.env.step(action)
        self.seconds.append(time.perf_counter() - began)
        return result


def _timed(envs: VectorEnv) -> list[Stopwatch]:
    """Wraps the environments that are stepped in this process, and returns the wrappers."""
    if not isinstance(envs, InProcessVectorEnv):
        return []
    stopwatches = [Stopwatch(env) for env in envs.envs]
    envs.envs = [*stopwatches]
    return stopwatches


# ------------------------------------------------------------------ findings


def _seeds(not_repeated: str, has_other_episodes: bool) -> Iterator[Finding]:
    if not_repeated:
        text = (
            f"the same seeds and actions gave another episode: {not_repeated}. Draw only from "
            "self.np_random, after super().reset(seed=seed), and reset all state in every reset: until then "
            "runs cannot be repeated, and a resumed run loses the open episodes of its checkpoint"
        )
        yield Finding("same seed", FAIL, text)
        return
    yield Finding("same seed", OK, "the same seeds and actions give the same episodes, bit for bit")
    text = "other seeds give other episodes"
    if not has_other_episodes:
        text = "other seeds give the same episodes. If anything should be random, draw it from self.np_random"
    yield Finding("other seeds", OK if has_other_episodes else WARN, text)


def _compared(
    env_cfg: Mapping[str, Any], kind: str, seed: int, played: list[Row], stopwatches: list[Stopwatch]
) -> Finding:
    """Plays the same seeds and actions on another backend, and compares every number."""
    num_envs = len(played[0]["reward"])
    try:
        if kind == "base" and num_envs > 1:  # two instances may end their process: try a worker first
            _vector(env_cfg, "subprocess", num_envs, seed, workers=1).close()
        with contextlib.closing(_vector(env_cfg, kind, num_envs, seed)) as envs:
            stopwatches += _timed(envs)
            difference = first_difference(played, play_again(envs, played))
    except DingLiteError as error:
        advice = f". env.manager.type=subprocess env.manager.worker_num={env_cfg['collector_env_num']} works"
        return Finding(kind, FAIL, f"{error}{advice if kind == 'base' else ''}")
    if not difference:
        return Finding(kind, OK, f"gives the same {len(played) * num_envs:,} transitions, bit for bit")
    return Finding(
        kind,
        FAIL,
        f"{difference}. The environment depends on its process or on its neighbours there: class attributes, "
        "module variables, global random generators",
    )


def _ends(played: list[Row], limit: int | None, env_cfg: Mapping[str, Any]) -> Iterator[Finding]:
    """Checks that episodes end, and that episodes at a time limit are truncated, not terminated."""
    ended: list[tuple[int, bool]] = []  # length, and whether it was terminated
    lengths = np.zeros(len(played[0]["reward"]), int)
    for row in played:
        lengths += row["valid"]
        over = row["terminated"] | row["truncated"]
        ended += zip(lengths[over].tolist(), row["terminated"][over].tolist(), strict=True)
        lengths[over] = 0
    every = [length for length, _ in ended]
    has_limit = f"; the time limit is {limit} steps" if limit else ""
    if limit and limit == getattr(gym.registry.get(env_cfg["env_id"]), "max_episode_steps", None):
        has_limit += ", gymnasium's: env.kwargs.max_episode_steps sets another one"
    if not ended:
        advice = (
            f". Evaluations will cut episodes at env.max_eval_steps={env_cfg['max_eval_steps']}. Register "
            "the environment with max_episode_steps=N, or wrap it in gymnasium.wrappers.TimeLimit"
        )
        text = f"no episode ended in {len(played)} steps{has_limit or advice}"
        yield Finding("episodes end", OK if limit else WARN, text)
        return
    longest = max(every)
    text = f"{counted(len(ended), 'episode')} of {min(every)} to {longest} steps{has_limit}"
    yield Finding("episodes end", OK, text)
    at_limit = [terminated for length, terminated in ended if length == (limit or longest)]
    may_be_limit = len(at_limit) == len(ended) > 2 and longest > 1
    if at_limit and all(at_limit) and (limit or may_be_limit):
        text = (
            f"all {len(at_limit)} episodes of {longest} steps were terminated. Report a time limit as "
            "truncated=True, terminated=False, so that the value of the last observation counts. If the task "
            "itself ends there, nothing needs to change"
        )
        yield Finding("time limit", FAIL if limit and len(at_limit) > 1 else WARN, text)
    else:
        cuts = sum(not terminated for _, terminated in ended)
        yield Finding("time limit", OK, f"{len(ended) - cuts} episodes were terminated, {cuts} truncated")


def _ranges(played: list[Row], obs_space: gym.Space) -> Iterator[Finding]:
    """Shows the ranges of numbers, and warns of numbers that a network cannot learn from."""
    fields = [{"observation": row["obs"], "reward": row["reward"]} for row in played]
    spaces = {("observation", *path): leaf for path, leaf in space_leaves(obs_space)}
    for path, leaf in named_leaves(map_tree(lambda *rows: np.concatenate(rows), *fields)):
        name = f"{path[0]}{path_text(path[1:])}"
        axis = 0 if leaf.ndim == 2 and leaf.shape[1] <= ENTRIES else None
        low, high = (np.array2string(bound, precision=3) for bound in (leaf.min(axis), leaf.max(axis)))
        yield Finding(name, OK, f"{low} .. {high}")
        if path[1:2] != (MASK_KEY,):
            for check, text in _doubts(leaf, name, spaces.get(path)):
                yield Finding(check, WARN, text)


def _doubts(numbers: np.ndarray, name: str, space: gym.Space | None) -> Iterator[tuple[str, str]]:
    """Yields a short name and a text for each problem of numbers (N, ...); ``space`` is None for rewards."""
    if space is None and not numbers.any():
        yield "zeros", "all rewards were 0: set policy.intrinsic.type=rnd, or begin episodes near the goal"
    if space is not None and len(numbers) > 1 and (numbers == numbers[0]).all():
        yield "constant", f"{name} never changes, and so says nothing to a network"
    key = "policy.normalize.reward=True"
    if isinstance(space, gym.spaces.Box):
        key = "policy.normalize.obs=True" + ("" if numbers.dtype.kind == "f" else " and its dtype to float32")
        key = "the bounds of its Box, by which images are divided" if is_image(space) else key
        low, high = (bound.astype(numbers.dtype) for bound in (space.low, space.high))
        if (outside := (numbers < low) | (numbers > high)).any():
            text = f"{name} has numbers outside of its Box, such as {numbers[outside][0]:.6g}"
            yield "bounds", f"{text}: correct the bounds, or set {key}"
    elif space is not None:  # indices
        return
    is_divided = space is not None and is_image(space) and np.abs(space.high).max() <= WIDEST
    if np.abs(numbers).max() > LARGE and not is_divided:
        yield "large numbers", f"{name} reaches {np.abs(numbers).max():.2g}: set {key}"


def _speed(stopwatches: list[Stopwatch], env_cfg: Mapping[str, Any]) -> Finding:
    seconds = [second for stopwatch in stopwatches for second in stopwatch.seconds]
    usual = float(np.median(seconds))  # other processes interrupt the slowest steps
    batch = env_cfg["collector_env_num"]
    text = f"{1 / max(usual, 1e-9):,.0f} steps/s; {batch} of them take {1000 * usual * batch:.2g} ms"
    return Finding("speed", OK, f"{text}: {suited_backend(usual, batch)}")


def suited_backend(seconds: float, num_envs: int) -> str:
    """Returns which backend suits environments whose steps take ``seconds``.

    A message to a worker steps all of its environments, so its cost is compared with their time together.

    Args:
        seconds: of a step.
        num_envs: that are stepped together.
    """
    workers = min(num_envs, cores())
    pays = workers > 1 and seconds * num_envs / workers > 2 * MESSAGE
    return f"env.manager.type={'subprocess' if pays else 'base'} suits it"
