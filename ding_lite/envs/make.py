"""From ``config.env`` to environments: one env, or a vector of them on the backend that suits it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym

from ding_lite.envs.finite import ON_BAD_VALUE, RAISE
from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.masks import MaskFromInfo
from ding_lite.envs.native import STATE_ADAPTERS, NativeVectorEnv
from ding_lite.envs.packages import mended, missing_extra, register_ids
from ding_lite.envs.recorder import EpisodeRecorder
from ding_lite.envs.vector import VectorEnv
from ding_lite.envs.wrappers import find_wrapper, wrap, wrapper_faults
from ding_lite.errors import FOREIGN, ConfigError, DingLiteError, EnvError, told
from ding_lite.registry import ENV_REGISTRY
from ding_lite.schema import Key

CONFIG: dict[str, Any] = dict(
    # "gymnasium", a registered name, "package.module:Class", or in Python the class itself.
    type=Key(
        "gymnasium", (str, object), faults=lambda kind, path: ENV_REGISTRY.choice_faults({"type": kind}, path)
    ),
    env_id=Key("", (str,)),
    # Arguments of the environment, for collector and evaluator alike.
    kwargs={},
    # Outermost last: names (ding-lite list wrappers), "package.module:Wrapper", or dicts
    # {"type": ..., **arguments}.
    wrappers=Key([], (list,), faults=wrapper_faults),
    collector_env_num=Key(8, low=1),
    evaluator_env_num=Key(8, low=1),
    n_evaluator_episode=Key(16, low=1),
    # A mean evaluation return that counts as solved and ends the run; None: run to the limit.
    stop_value=Key(None, (float,), optional=True),
    # Steps after which an evaluation episode is cut, and reported as cut.
    max_eval_steps=Key(10_000, low=1),
    # A nan or an infinite number in an observation or a reward. raise: ends the run; reset_env: its episode
    # ends before that step; drop: and nothing of that episode is learned from. Not for vector and env_pool.
    on_bad_value=Key(RAISE, choices=ON_BAD_VALUE),
    # Where action masks come from: "obs" (its key "action_mask", if it has one) or "info".
    action_mask=Key("obs", choices=("obs", "info")),
    # Keys of an ended episode's info that go to episodes.csv.
    info_keys=["is_success"],
    # Who steps the environments: auto, base (this process), subprocess (worker processes), vector
    # (gymnasium's own vector environment), or env_pool (EnvPool's names and arguments).
    manager=dict(
        type=Key("auto", choices=("auto", "base", "subprocess", "vector", "env_pool")),
        # What the row after an episode's end is (see envs.vector); not for vector.
        autoreset=Key("same_step", choices=("same_step", "next_step", "disabled")),
        # Worker processes; None: one a core, or with double_buffer one for every two.
        worker_num=Key(None, (int,), low=1, optional=True),
        # One half of the environments steps while the policy acts on the other half, with those cores that
        # the workers leave it.
        double_buffer=False,
        # Seconds after which a worker that does not answer is taken for hung, and killed.
        step_timeout=Key(300.0, above=0),
        reset_timeout=Key(300.0, above=0),
        start_timeout=Key(300.0, above=0),
        # How many workers that die, hang or raise are replaced within any so many steps of the vector;
        # 0: the first one ends the run. Collector and evaluator have a budget each.
        max_restarts=Key(3, low=0),
        restart_window=Key(100_000, low=1),
    ),
)


def section_faults(env: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong between the keys of the section ``env``, a line each."""
    faults, kind = [], env["manager"]["type"]
    if env["type"] == "gymnasium" and not env["env_id"]:
        faults.append('env.env_id: missing; name a gymnasium environment, such as "CartPole-v1"')
    if env["on_bad_value"] != RAISE and kind in ("vector", "env_pool"):
        faults.append(
            f"env.on_bad_value: {env['on_bad_value']!r} begins one environment anew, which "
            f"{kind!r} cannot: set env.manager.type='base' or 'subprocess'"
        )
    return faults


WORKER_KEYS = ("step_timeout", "reset_timeout", "start_timeout", "max_restarts", "restart_window")
ENV_REGISTRY.declare_section(CONFIG, section_faults)


@ENV_REGISTRY.register("gymnasium")
def make_gymnasium(env_id: str | gym.envs.registration.EnvSpec, **kwargs: Any) -> gym.Env:
    """Makes a registered gymnasium environment; its own checker is off, ours is on."""
    register_ids(env_id if isinstance(env_id, str) else env_id.id)
    return mended(gym.make(env_id, disable_env_checker=True, **kwargs))


def make_env(
    env_cfg: Mapping[str, Any], *, evaluate: bool = False, index: int = 0, **overrides: Any
) -> gym.Env:
    """Makes one environment: the raw one, its recorder, then the wrappers of the config.

    Args:
        env_cfg: the config's section ``env``, complete.
        evaluate: made to evaluate in: without the wrappers that are for training alone.
        index: its number in a vector.
        overrides: laid over ``env.kwargs``.

    Raises:
        EnvError: with the reason, and with the install line where a package is missing.
    """
    kind = env_cfg["type"]
    kwargs = {**env_cfg["kwargs"], **overrides}
    shown = env_cfg["env_id"] or kind
    try:
        factory = ENV_REGISTRY.get(kind)
        if kind == "gymnasium":
            kwargs["env_id"] = env_cfg["env_id"]
        env = factory(**kwargs)
        if not isinstance(env, gym.Env):
            made = type(env).__name__
            raise EnvError(f"env {shown!r} cannot be made: expected a gymnasium.Env, got {made}")
        env = EpisodeRecorder(env, tuple(env_cfg["info_keys"]))
        for wrapper in env_cfg["wrappers"]:
            env = wrap(env, wrapper, evaluate=evaluate, index=index)
        if env_cfg["action_mask"] == "info":
            env = MaskFromInfo(env)
    except DingLiteError:
        raise
    except FOREIGN as error:
        raise EnvError(f"env {shown!r} cannot be made: {_told(error)}") from error
    return env


def _told(error: BaseException) -> str:
    said = told(error).rstrip()
    return f"{said}{'' if said[-1] in '.?!' else '.'}{missing_extra(error)}"


def make_vector_env(
    env_cfg: Mapping[str, Any],
    num_envs: int,
    seed: int,
    *,
    evaluate: bool = False,
    final_of_terminated: bool = False,
) -> VectorEnv:
    """Makes ``num_envs`` environments on the backend that the config names.

    Args:
        env_cfg: the config's section ``env``, complete.
        num_envs: B.
        seed: the run's.
        final_of_terminated: give the last observation of terminated episodes too, for ``ignore_done``.
        evaluate: bound every episode by ``max_eval_steps``, and leave out what is for training alone.
    """
    manager = env_cfg["manager"]
    kind = backend_of(env_cfg)
    if kind == "vector":
        native = _make_native(env_cfg, num_envs, seed)
        native.final_of_terminated = final_of_terminated
        return native
    if kind == "env_pool":
        from ding_lite.envs.env_pool import EnvPoolVectorEnv

        _refuse_wrappers(env_cfg)
        pool = EnvPoolVectorEnv(
            env_cfg["env_id"], num_envs, seed, env_cfg["kwargs"], tuple(env_cfg["info_keys"])
        )
        pool.final_of_terminated = final_of_terminated
        return pool
    if kind == "subprocess":
        from ding_lite.envs.subprocess import SubprocessVectorEnv

        return SubprocessVectorEnv(
            functools.partial(_make_numbered, _resolved(env_cfg), evaluate),
            num_envs,
            seed,
            manager["autoreset"],
            final_of_terminated,
            num_workers=manager["worker_num"],
            on_bad_value=env_cfg["on_bad_value"],
            double_buffer=manager["double_buffer"] and not evaluate,
            **{name: manager[name] for name in WORKER_KEYS},
        )
    make: Callable[[int], gym.Env] = functools.partial(_make_numbered, env_cfg, evaluate)
    modes = (manager["autoreset"], final_of_terminated)
    return InProcessVectorEnv(make, num_envs, seed, *modes, on_bad_value=env_cfg["on_bad_value"])


def _resolved(env_cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the section with names looked up that only this process may know, for a worker to use."""
    plain = {name: value for name, value in env_cfg.items() if name != "manager"}
    kind = plain["type"]
    if kind != "gymnasium":
        plain["type"] = ENV_REGISTRY.get(kind)
    else:
        try:
            register_ids(plain["env_id"])
        except ImportError as error:
            raise EnvError(f"env {plain['env_id']!r}: {error}.{missing_extra(error)}") from error
        # An id that the user's own code registered is unknown to a worker; its spec is not.
        plain["env_id"] = gym.registry.get(plain["env_id"], plain["env_id"])
    found = [find_wrapper(wrapper) for wrapper in plain["wrappers"]]
    plain["wrappers"] = [{"type": factory, **arguments} for _, factory, arguments in found]
    return plain


def _make_numbered(env_cfg: Mapping[str, Any], evaluate: bool, index: int) -> gym.Env:
    env = make_env(env_cfg, evaluate=evaluate, index=index)
    return gym.wrappers.TimeLimit(env, env_cfg["max_eval_steps"]) if evaluate else env


def _entry_point(env_cfg: Mapping[str, Any]) -> str:
    spec = gym.registry.get(env_cfg["env_id"])
    return str(getattr(spec, "vector_entry_point", None) or "")


def backend_of(env_cfg: Mapping[str, Any]) -> str:
    """Returns the backend that ``env.manager.type`` names, or that its ``auto`` comes to."""
    kind = str(env_cfg["manager"]["type"])
    return ("vector" if has_native(env_cfg) else "base") if kind == "auto" else kind


def has_native(env_cfg: Mapping[str, Any]) -> bool:
    """Returns whether gymnasium's own vector environment can stand in for single ones.

    There must be one, its open episodes must be such as can be saved, and none need be begun by itself.
    """
    plain = env_cfg["type"] == "gymnasium" and not env_cfg["wrappers"] and not env_cfg["kwargs"]
    return plain and env_cfg["on_bad_value"] == RAISE and _entry_point(env_cfg) in STATE_ADAPTERS


def _refuse_wrappers(env_cfg: Mapping[str, Any]) -> None:
    if env_cfg["wrappers"]:
        raise ConfigError(
            "env.wrappers: wrappers of single environments need env.manager.type 'base' or 'subprocess'; "
            f"{env_cfg['manager']['type']!r} has no single ones"
        )


def _make_native(env_cfg: Mapping[str, Any], num_envs: int, seed: int) -> NativeVectorEnv:
    _refuse_wrappers(env_cfg)
    shown = env_cfg["env_id"] or env_cfg["type"]
    try:
        if env_cfg["type"] == "gymnasium":
            register_ids(env_cfg["env_id"])
            env = gym.make_vec(
                env_cfg["env_id"],
                num_envs=num_envs,
                vectorization_mode="vector_entry_point",
                **env_cfg["kwargs"],
            )
        else:
            env = ENV_REGISTRY.get(env_cfg["type"])(num_envs=num_envs, **env_cfg["kwargs"])
    except DingLiteError:
        raise
    except FOREIGN as error:
        raise EnvError(f"vector env {shown!r} cannot be made: {_told(error)}") from error
    return NativeVectorEnv(
        env,
        seed,
        _entry_point(env_cfg),
        tuple(env_cfg["info_keys"]),
        mask_from_info=env_cfg["action_mask"] == "info",
    )


# ``(make, collector_cfgs, evaluator_cfgs)``: DI-engine's way to bring environments of one's own.
EnvSetting = tuple[Callable[[Any], gym.Env], Sequence[Any], Sequence[Any]]


def vector_env_of(
    make: Callable[[Any], gym.Env],
    cfgs: Sequence[Any],
    seed: int,
    max_steps: int | None = None,
    final_of_terminated: bool = False,
    on_bad_value: str = RAISE,
) -> VectorEnv:
    """Makes one environment for each of ``cfgs`` by ``make(cfg)``, stepped in this process."""

    def numbered(index: int) -> gym.Env:
        env: gym.Env = EpisodeRecorder(make(cfgs[index]))
        return env if max_steps is None else gym.wrappers.TimeLimit(env, max_steps)

    return InProcessVectorEnv(
        numbered, len(cfgs), seed, final_of_terminated=final_of_terminated, on_bad_value=on_bad_value
    )
