"""``env_pool``: environments stepped by EnvPool's C++ threads (extra ``envpool``).

EnvPool is seeded when it is made, so beginning anew means making it anew. It begins an episode on the
step after the last one's end (NEXT_STEP), and offers no way to save an open episode.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ding_lite.envs.native import NativeVectorEnv, as_tree
from ding_lite.errors import EnvError
from ding_lite.seeding import integer_seed
from ding_lite.types import Tree

QT_PACKAGES = "libqt5core5a libqt5gui5"


class EnvPoolVectorEnv(NativeVectorEnv):
    """B environments of EnvPool.

    Args:
        env_id: EnvPool's name, such as ``"BigfishEasy-v0"``.
        num_envs: B.
        seed: the run's.
        kwargs: to ``envpool.make_gymnasium``, such as ``num_threads``.
        info_keys: of an ended episode's info, recorded with it.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        seed: int = 0,
        kwargs: Mapping[str, Any] | None = None,
        info_keys: tuple[str, ...] = (),
    ) -> None:
        self._env_id, self._kwargs = env_id, dict(kwargs or {})
        with _quiet():
            super().__init__(self._make(num_envs, integer_seed(seed, "spaces")), seed, info_keys=info_keys)
        self.backend = f"EnvPool's {env_id}, {num_envs} environments"

    def _make(self, num_envs: int, seed: int) -> Any:
        try:
            import envpool

            env = envpool.make_gymnasium(self._env_id, num_envs=num_envs, seed=seed, **self._kwargs)
        except (ImportError, OSError) as error:
            raise EnvError(f"env_pool: {error}.{_advice(error)}") from error
        except Exception as error:
            raise EnvError(
                f"env_pool: {self._env_id!r} cannot be made: {type(error).__name__}: {error}. EnvPool has "
                "its own names; envpool.list_all_envs() gives them"
            ) from error
        return env

    def _reset_env(self, seed: int) -> Tree:
        self.env.close()
        self.env = self._make(self.num_envs, seed)
        with _quiet():
            obs, info = self.env.reset()
        return self._with_mask(as_tree(obs, self._own_obs_space), info)

    def _raw_reward(self, reward: np.ndarray, info: Mapping[str, Any]) -> np.ndarray:
        # Atari: what the game gave, before EnvPool's own clipping.
        return np.asarray(info["reward"], np.float32) if "reward" in info else reward


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """EnvPool's bounds are float64 beside float32 observations; gymnasium warns of it at every look."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*precision lowered by casting.*")
        yield


def _advice(error: BaseException) -> str:
    if "Qt5" in str(error):
        return f" Procgen needs Qt 5: apt-get install {QT_PACKAGES}"
    return ' Install it: pip install "ding_lite[envpool]"'
