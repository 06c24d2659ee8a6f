"""Makes environments from the config section ``env``: a single one, or a vector of them on a backend."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym

from ding_lite.config.registry import ENV_REGISTRY, WRAPPER_REGISTRY, env_name
from ding_lite.config.schema import Key, Name
from ding_lite.config.values import decode
from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.masks import MaskFromInfo
from ding_lite.envs.native import STATES, EnvPoolVectorEnv, NativeVectorEnv
from ding_lite.envs.packages import id_faults, missing_extra, register_ids, with_correct_reset
from ding_lite.envs.recorder import EpisodeRecorder
from ding_lite.envs.vector import VectorEnv
from ding_lite.envs.wrappers import find_wrapper, wrap
from ding_lite.errors import FOREIGN, ConfigError, DingLiteError, EnvError, error_text
from ding_lite.rl.seeding import integer_seed

WORKERS: dict[str, Any] = dict(needs="manager.type=subprocess or manager.type=ray")

CONFIG: dict[str, Any] = dict(
    type=Key(
        "gymnasium",
        Name,
        faults=ENV_REGISTRY.faults,
        doc='"gymnasium", a registered name, "package.module:Class", or in Python the class itself',
    ),
    env_id=Key(
        "",
        faults=id_faults,
        doc='id of a gymnasium environment, or with manager.type="env_pool" EnvPool\'s name of one',
    ),
    kwargs=Key(
        {},
        # shimmy passes env_id to the old gym, which also imports the module of an id.
        faults=lambda kwargs, path: id_faults(dict.get(kwargs, "env_id", ""), f"{path}.env_id"),
        doc="arguments of the environment, in training and in evaluation. A class or a function also gets "
        "env_index, the number of the environment, and evaluate, if it has parameters of these names; a "
        "vector gets num_envs, and if it has such parameters seed and evaluate",
    ),
    wrappers=Key(
        [],
        list,
        faults=WRAPPER_REGISTRY.faults,
        doc='outermost last: names (ding-lite list wrappers), "package.module:Wrapper", or dicts '
        '{"type": ..., **arguments}',
    ),
    collector_env_num=Key(8, low=1, doc="number of environments that collect training data"),
    evaluator_env_num=Key(16, low=0, doc="number of environments that evaluate; 0: no evaluations"),
    n_evaluator_episode=Key(16, low=1, needs="evaluator_env_num", doc="episodes of one evaluation"),
    greedy_env_num=Key(
        0,
        low=0,
        doc="number of the collector_env_num, the last ones, that act greedily and are not learned from; for "
        "simulators of tensors that a process can have only once, in place of evaluator_env_num. An "
        "evaluation is their episodes since the last evaluation, and two in a row must reach stop_value",
    ),
    stop_value=Key(
        None,
        float | None,
        needs="evaluator_env_num or greedy_env_num",
        doc="the run ends as solved when the mean return of an evaluation reaches this, and also that of a "
        "second evaluation right after it; None: the run ends at its limit",
    ),
    max_eval_steps=Key(
        10_000, low=1, doc="steps after which an evaluation episode is truncated, and reported as cut"
    ),
    seed_resets=Key(
        "every",
        Literal["every", "first"],
        doc='"every": each reset has a seed, so that open episodes can be restored; "first": only the first '
        "reset, for levels that the seed draws; a resumed run begins new episodes in the same levels",
    ),
    strict_truncation=Key(
        False,
        doc="refuse environments of tensors that truncate episodes without a last observation; False: the "
        "value of the observation before it is used",
    ),
    init_at_random_ep_len=Key(
        False,
        doc="environments of tensors that have episode_length_buf begin training at random times of their "
        "first episodes, so that not all end together",
    ),
    action_mask=Key(
        "obs",
        Literal["obs", "info"],
        doc='where action masks come from: "obs" (its key "action_mask", if present) or "info"',
    ),
    info_keys=Key(
        ["is_success"],
        list[str] | dict[str, Literal["last", "sum", "mean", "max"]],
        doc="numbers of info to write to episodes.csv, and their means to metrics.csv: keys of an episode's "
        'last info, or {key: "last", "sum", "mean" or "max" over its steps}',
    ),
    manager=dict(
        type=Key(
            "auto",
            Literal["auto", "base", "subprocess", "ray", "vector", "env_pool"],
            doc="what steps the environments: auto, base (this process), subprocess (worker processes), ray "
            "(Ray actors, on any machine of a cluster), vector (a vector environment, also of tensors), or "
            "env_pool (EnvPool's names and arguments)",
        ),
        worker_num=Key(
            None,
            int | None,
            low=1,
            **WORKERS,
            doc="worker processes or Ray actors; None: one per core, with double_buffer one per two cores; "
            "in a Ray cluster one per free CPU",
        ),
        double_buffer=Key(
            False, **WORKERS, doc="one half of the environments steps while the policy acts on the other half"
        ),
        step_timeout=Key(
            300.0,
            above=0,
            **WORKERS,
            doc="seconds after which a worker that does not answer to a step counts as hung and is killed",
        ),
        reset_timeout=Key(
            300.0, above=0, **WORKERS, doc="as step_timeout, for resets; at least 300 s to make environments"
        ),
        restart_share=Key(
            0.01,
            low=0,
            **WORKERS,
            doc="how many workers are replaced if they die, hang or raise: a share of the episodes so far, "
            "and at least 3; 0: none. Collector and evaluator count separately",
        ),
    ),
)
# Keys that "vector" and "env_pool" do not have: they step all environments in one call.
SINGLE_KEYS = ("wrappers", "action_mask", "seed_resets")

# Names that a run writes itself, beside those of ``info_keys``.
OF_EPISODE = {"env_step", "return", "length", "episode_return", "episode_length", "episode_length_max"}

# ``(make, collector_cfgs, evaluator_cfgs)``, as in DI-engine: one environment ``make(cfg)`` per cfg.
EnvSetting = tuple[Callable[[Any], gym.Env], Sequence[Any], Sequence[Any]]


def single_keys(env: Mapping[str, Any]) -> list[str]:
    """Returns the keys of the section ``env`` whose values need single environments."""
    keys = [key for key in SINGLE_KEYS if env[key] != CONFIG[key].default]
    return [*keys, "info_keys"] if isinstance(env["info_keys"], dict) else keys


def section_faults(env: Mapping[str, Any]) -> list[str]:
    """Returns the contradictions between keys of the section ``env``, one line each."""
    faults = []
    kind = env["manager"]["type"]
    if env["type"] == "gymnasium" and not env["env_id"]:
        faults.append(
            'env.env_id: missing; name a gymnasium environment, such as "CartPole-v1" (with env_setting, any '
            "name for the task)"
        )
    if env["greedy_env_num"] >= env["collector_env_num"]:
        faults.append("env.greedy_env_num: it must be below collector_env_num")
    if taken := sorted(OF_EPISODE.intersection(env["info_keys"])):
        faults.append(f"env.info_keys: the run has its own {', '.join(taken)}; use other names in info")
    faults += [
        f"env.{key}: env.manager.type={kind!r} has no single environments, which this key needs; leave it "
        "out, or set env.manager.type='base' or 'subprocess'"
        for key in single_keys(env)
        if kind in ("vector", "env_pool")
    ]
    return faults


@ENV_REGISTRY.register("gymnasium")
def make_gymnasium(env_id: str | gym.envs.registration.EnvSpec, **kwargs: Any) -> gym.Env:
    """Makes an environment that is registered with gymnasium; ding_lite's checks replace gymnasium's."""
    register_ids(env_id if isinstance(env_id, str) else env_id.id)
    return with_correct_reset(gym.make(env_id, disable_env_checker=True, **kwargs))


def make_env(
    env_cfg: Mapping[str, Any], index: int = 0, *, evaluate: bool = False, **overrides: Any
) -> gym.Env:
    """Makes one environment: the raw one, its recorder, then the wrappers of the config.

    Args:
        env_cfg: the complete section ``env``.
        index: number of the environment in its vector.
        evaluate: truncate every episode after ``max_eval_steps``, and leave out the wrappers that are for
            training only.
        overrides: replace entries of ``env.kwargs``.

    Raises:
        EnvError: if it cannot be made; the message says how to install a missing package.
    """
    env_cfg = decode(env_cfg)  # plain dicts: keys of an EasyDict may hide its methods
    kwargs = {**env_cfg["kwargs"], **overrides}
    with _naming(env_name(env_cfg)):
        factory = ENV_REGISTRY.get(env_cfg["type"])
        if env_cfg["type"] == "gymnasium":
            kwargs["env_id"] = env_cfg["env_id"]
        elif env_cfg.get("manager", {}).get("type") == "vector":
            raise EnvError("a video or a window shows one environment, and this class makes a vector of them")
        else:
            kwargs = _known_to(factory, {"env_index": index, "evaluate": evaluate}) | kwargs
        env: gym.Env = factory(**kwargs)
        env = EpisodeRecorder(env, env_cfg["info_keys"])
        for wrapper in env_cfg["wrappers"]:
            env = wrap(env, wrapper, evaluate=evaluate, index=index)
        if env_cfg["action_mask"] == "info":
            env = MaskFromInfo(env)
        if evaluate:
            env = gym.wrappers.TimeLimit(env, env_cfg["max_eval_steps"])
    return env


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Turns an exception into an EnvError with the environment's name and how to install what is missing."""
    try:
        yield
    except FOREIGN as error:
        if isinstance(error, DingLiteError) and type(error) is not EnvError:
            raise
        raise EnvError(f"env {name!r} cannot be made: {error_text(error)}{missing_extra(error)}") from error


def make_vector_env(
    env_cfg: Mapping[str, Any],
    num_envs: int,
    seed: int,
    *,
    evaluate: bool = False,
    index_offset: int = 0,
) -> VectorEnv:
    """Makes a vector of environments on the backend that the config selects.

    Args:
        env_cfg: the complete section ``env``.
        num_envs: B.
        seed: of the run.
        evaluate: as for :func:`make_env`.
        index_offset: number of the first environment, if this is one rank's part of a larger vector; seeds
            depend on it.
    """
    env_cfg, kind = decode(env_cfg), backend_of(env_cfg)
    options: dict[str, Any] = dict(seed=seed, index_offset=index_offset)
    if kind in ("vector", "env_pool"):
        options["info_keys"] = tuple(env_cfg["info_keys"])
        with _naming(env_name(env_cfg)):
            if kind == "env_pool":
                return EnvPoolVectorEnv(env_cfg["env_id"], num_envs, kwargs=env_cfg["kwargs"], **options)
            kwargs = {"num_envs": num_envs, **env_cfg["kwargs"]}
            if env_cfg["type"] == "gymnasium":
                register_ids(env_cfg["env_id"])
                env = gym.make_vec(env_cfg["env_id"], vectorization_mode="vector_entry_point", **kwargs)
                return NativeVectorEnv(env, **options)
            from ding_lite.envs.tensor import TensorVectorEnv, gives_tensors  # a worker imports no torch

            factory, side = ENV_REGISTRY.get(env_cfg["type"]), "evaluate" if evaluate else "collect"
            # A simulator may draw its terrains when it is made.
            optional = {"seed": integer_seed(seed, "make", side, index_offset), "evaluate": evaluate}
            env = factory(**_known_to(factory, optional) | kwargs)
            if gives_tensors(env):
                if env_cfg["info_keys"] != CONFIG["info_keys"].default:
                    raise ConfigError("env.info_keys: environments of tensors put means into info['log']")
                return TensorVectorEnv(env, seed, index_offset, env_cfg["init_at_random_ep_len"])
            return NativeVectorEnv(env, **options)
    manager, options["seed_every"] = env_cfg["manager"], env_cfg["seed_resets"] == "every"
    if kind in ("subprocess", "ray"):
        from ding_lite.envs.workers.vector_env import SubprocessVectorEnv

        if kind == "ray":
            from ding_lite.envs.workers.ray_actors import RayActors

            # Evaluations run while the workers that collect wait, so they need no cores of their own.
            options["starter"] = RayActors(manager["worker_num"], reserve=not evaluate)
        with _naming(env_name(env_cfg)):
            return SubprocessVectorEnv(
                functools.partial(make_env, _resolved(env_cfg), evaluate=evaluate),
                num_envs,
                num_workers=manager["worker_num"],
                double_buffer=manager["double_buffer"] and not evaluate,
                **{name: manager[name] for name in ("step_timeout", "reset_timeout", "restart_share")},
                **options,
            )
    return InProcessVectorEnv(functools.partial(make_env, env_cfg, evaluate=evaluate), num_envs, **options)


def backend_of(env_cfg: Mapping[str, Any]) -> str:
    """Returns the backend that ``env.manager.type`` names, or that ``auto`` selects.

    ``auto`` selects gymnasium's own vector environment if its open episodes can be restored, ``env.kwargs``
    is empty, and no key needs single environments (:func:`single_keys`).
    """
    kind = str(env_cfg["manager"]["type"])
    if kind != "auto":
        return kind
    is_plain = env_cfg["type"] == "gymnasium" and not env_cfg["kwargs"] and not single_keys(env_cfg)
    native = getattr(gym.registry.get(env_cfg["env_id"]), "vector_entry_point", None)
    return "vector" if is_plain and native in STATES else "base"


def _resolved(env_cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the section for workers: classes and specs in place of names that they may not know."""
    plain = {name: value for name, value in env_cfg.items() if name != "manager"}
    if plain["type"] != "gymnasium":
        plain["type"] = ENV_REGISTRY.get(plain["type"])
    else:
        register_ids(plain["env_id"])
        # A worker does not know an id that the user's code registered; it can make the env from the spec.
        plain["env_id"] = gym.registry.get(plain["env_id"], plain["env_id"])
    wrappers = [find_wrapper(wrapper) for wrapper in plain["wrappers"]]
    plain["wrappers"] = [{"type": factory, **arguments} for factory, arguments in wrappers]
    return plain


def _known_to(factory: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments that ``factory`` has a parameter for."""
    try:
        names = inspect.signature(factory).parameters
    except ValueError:  # a class written in C may have no signature
        return {}
    return {name: value for name, value in arguments.items() if name in names}
