"""Adapts simulators of other libraries to the interface that :mod:`ding_lite.envs.tensor` reads.

    def make(num_envs):                                  # env.type="my_module:make"
        return RslRlEnv(MyEnv(num_envs))                 # the VecEnv of rsl_rl, legged_gym and Genesis

    env.type="playground"  env.kwargs.env_id=CartpoleBalance        MuJoCo Playground
    env.type="brax"        env.kwargs.env_id=fast                   Brax
    env.type="mjlab"       env.kwargs.env_id=Mjlab-Cartpole-Balance

Each needs ``env.manager.type="vector"``.

Shapes: N environments.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from ding_lite.config.registry import ENV_REGISTRY
from ding_lite.trees import Tree, map_tree

if TYPE_CHECKING:
    from torch import Tensor  # a worker must not import torch

STARTS = 100  # steps after which the N initial states are replaced by new ones


class RslRlEnv:
    """The ``VecEnv`` of rsl_rl. It returns no last observations, so truncation is approximate.

    Args:
        env: has ``get_observations`` and ``step``.
    """

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.SAME_STEP, "final_obs": False}

    def __init__(self, env: Any) -> None:
        self.unwrapped, self.num_envs = env, env.num_envs
        self.single_observation_space = _space_of(self.reset()[0])
        self.single_action_space = gym.spaces.Box(-np.inf, np.inf, (env.num_actions,))

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Tree, dict[str, Any]]:
        if hasattr(self.unwrapped, "reset"):
            self.unwrapped.reset()
        result = self.unwrapped.get_observations()
        return _groups(*result) if isinstance(result, tuple) else _groups(result), {}

    def step(self, action: Tensor) -> tuple[Tree, Tensor, Tensor, Tensor, dict[str, Any]]:
        obs, reward, done, extras = self.unwrapped.step(action)
        done = done.bool()
        # Without "time_outs" the horizon is finite: every end is a termination.
        truncated = done & extras["time_outs"].bool() if "time_outs" in extras else done & False
        log = extras.get("log") or extras.get("episode") or {}
        return _groups(obs, extras), reward, done & ~truncated, truncated, {"log": log}


def _groups(obs: Any, extras: Any = None) -> Tree:
    """Returns observations as a tensor, or as a dict of groups; older environments have others in extras."""
    obs = dict(obs.items()) if hasattr(obs, "items") else obs
    others = (extras or {}).get("observations") or {}
    return {"policy": obs, **others} if others and not isinstance(obs, dict) else obs


def _space_of(obs: Tree) -> gym.Space:
    """Returns the space of observations (N, ...)."""
    if isinstance(obs, Mapping):
        return gym.spaces.Dict({name: _space_of(leaf) for name, leaf in obs.items()})
    return gym.spaces.Box(-np.inf, np.inf, tuple(obs.shape[1:]))


class BraxEnv:
    """An environment of Brax or of MuJoCo Playground: one jitted step, with exact last observations.

    Tensors share the memory of JAX's arrays. The N initial states of episodes are drawn only every ``STARTS``
    steps, because a reset takes as long as many steps.

    Args:
        env: a single environment with ``reset(key)`` and ``step(state, action)``.
        num_envs: N.
        episode_length: steps after which an episode is truncated.
    """

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, env: Any, num_envs: int, episode_length: int = 1000) -> None:
        import jax

        self.unwrapped, self.num_envs, self._jax = env, num_envs, jax
        jnp = jax.numpy

        def step(state: Any, first: Any, steps: Any, action: Any) -> Any:
            after = jax.vmap(env.step)(state, jnp.clip(action, -1.0, 1.0))
            steps = steps + 1
            terminated = after.done.astype(bool)
            truncated = (steps >= episode_length) & ~terminated
            ended = terminated | truncated

            def begun(initial: Any, last: Any) -> Any:
                if last.shape[:1] != ended.shape:  # MJX has leaves that belong to no environment
                    return last
                return jnp.where(ended.reshape(-1, *[1] * (last.ndim - 1)), initial, last)

            current = jax.tree.map(begun, first, after)
            log = {name: x.mean() for name, x in after.metrics.items()}
            results = (current.obs, after.reward, *(x.astype(jnp.float32) for x in (terminated, truncated)))
            return current, jnp.where(ended, 0, steps), results, {"final_obs": after.obs, "log": log}

        self._step = jax.jit(step)
        self._reset = jax.jit(lambda key: jax.vmap(env.reset)(jax.random.split(key, num_envs)))
        self.single_observation_space = _space_of(self.reset(0)[0])
        self.single_action_space = gym.spaces.Box(-1.0, 1.0, (env.action_size,))

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Tree, dict[str, Any]]:
        if seed is not None:
            self._key = self._jax.random.PRNGKey(seed)
        self._count = 0
        self._state = self._first = self._starts()
        self._steps = self._jax.numpy.zeros(self.num_envs, int)
        return self._tensors(self._state.obs), {}

    def _starts(self) -> Any:
        self._key, key = self._jax.random.split(self._key)
        return self._reset(key)

    def step(self, action: Tensor) -> tuple[Tree, Tensor, Tensor, Tensor, dict[str, Any]]:
        self._count += 1
        if self._count % STARTS == 0:
            self._first = self._starts()
        numbers = self._jax.numpy.from_dlpack(action.contiguous())
        self._state, self._steps, results, info = self._step(self._state, self._first, self._steps, numbers)
        obs, reward, terminated, truncated = map(self._tensors, results)
        return obs, reward, terminated, truncated, self._tensors(info)

    def _tensors(self, tree: Tree) -> Any:
        from torch import from_dlpack

        return map_tree(from_dlpack, tree)


class MjlabEnv:
    """A ``ManagerBasedRlEnv`` of mjlab; ``auto_reset=False`` makes its last observations exact."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.DISABLED}

    def __init__(self, env: Any) -> None:
        self.unwrapped, self.num_envs = env, env.num_envs
        self.single_observation_space = _space_of(self.reset(0)[0])
        self.single_action_space = gym.spaces.Box(-np.inf, np.inf, env.single_action_space.shape)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Tree, dict[str, Any]]:
        if not options:
            self._obs, self._log = self.unwrapped.reset(seed=seed)[0], {}
        elif len(ended := options["reset_mask"].nonzero().squeeze(-1)):
            self._obs, extras = self.unwrapped.reset(env_ids=ended)
            self._log = dict(extras.get("log") or {})  # of the episodes that ended; the next step clears it
        return self._obs, {}

    def step(self, action: Tensor) -> tuple[Tree, Tensor, Tensor, Tensor, dict[str, Any]]:
        self._obs, *results, extras = self.unwrapped.step(action)
        log, self._log = {**self._log, **(extras.get("log") or {})}, {}
        return (self._obs, *results, {"log": log})

    def close(self) -> None:
        self.unwrapped.close()


@ENV_REGISTRY.register("playground")
def make_playground(num_envs: int, env_id: str, episode_length: int | None = None, **config: Any) -> BraxEnv:
    """Makes an environment of MuJoCo Playground; ``config`` replaces values of its default config."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else JAX takes most of the GPU
    from mujoco_playground import registry

    length = episode_length or registry.get_default_config(env_id).episode_length
    return BraxEnv(registry.load(env_id, config_overrides=config or None), num_envs, length)


@ENV_REGISTRY.register("brax")
def make_brax(num_envs: int, env_id: str, episode_length: int = 1000, **options: Any) -> BraxEnv:
    """Makes an environment of Brax."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    from brax import envs

    return BraxEnv(envs.get_environment(env_id, **options), num_envs, episode_length)


@ENV_REGISTRY.register("mjlab")
def make_mjlab(num_envs: int, env_id: str, seed: int, device: str | None = None) -> MjlabEnv:
    """Makes a task of mjlab; ``device``: None selects a GPU, if there is one."""
    import mjlab.tasks  # noqa: F401 - registers the tasks
    import torch
    from mjlab.envs import ManagerBasedRlEnv
    from mjlab.tasks.registry import load_env_cfg

    cfg = load_env_cfg(env_id)
    cfg.scene.num_envs, cfg.auto_reset, cfg.seed = num_envs, False, seed
    return MjlabEnv(ManagerBasedRlEnv(cfg, device or ("cuda:0" if torch.cuda.is_available() else "cpu")))
