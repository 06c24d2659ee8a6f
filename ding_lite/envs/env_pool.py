"""``env_pool``: environments stepped by EnvPool's C++ threads (extra ``envpool``).

EnvPool takes its seed when it is made, so ``reset`` makes it anew. It begins an episode in the step after the
end of the last one (NEXT_STEP). It cannot save an open episode.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ding_lite.envs.native import NativeVectorEnv
from ding_lite.errors import EnvError
from ding_lite.rl.seeding import integer_seed
from ding_lite.trees import Tree

QT_PACKAGES = "libqt5core5a libqt5gui5"


class EnvPoolVectorEnv(NativeVectorEnv):
    """B environments of EnvPool.

    Args:
        env_id: EnvPool's name of the environment, such as ``"BigfishEasy-v0"``.
        num_envs: B.
        seed: of the run.
        kwargs: arguments of ``envpool.make_gymnasium``, such as ``num_threads``.
        options: the other arguments of :class:`NativeVectorEnv`.

    Raises:
        EnvError: if EnvPool is not installed, or has no such environment.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        seed: int = 0,
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._env_id = env_id
        self._kwargs = dict(kwargs or {})
        with _without_cast_warnings():
            env = self._make(num_envs, integer_seed(seed, "spaces"))
            super().__init__(env, seed, **options)
        self.backend = f"EnvPool's {env_id}, {num_envs} environments"

    def _make(self, num_envs: int, seed: int) -> Any:
        try:
            import envpool

            return envpool.make_gymnasium(self._env_id, num_envs=num_envs, seed=seed, **self._kwargs)
        except (ImportError, OSError) as error:
            raise EnvError(f"env_pool: {str(error).rstrip('.')}.{_install_advice(error)}") from error
        except Exception as error:
            raise EnvError(
                f"env_pool: {self._env_id!r} cannot be made: {type(error).__name__}: {error}. EnvPool has "
                "its own names for environments; envpool.list_all_envs() returns them"
            ) from error

    def _begin(self, seed: int) -> tuple[Tree, dict[str, Any]]:
        self.env.close()
        self.env = self._make(self.num_envs, seed)
        with _without_cast_warnings():
            return self._reset_env()

    def _raw_reward(self, reward: np.ndarray, info: Mapping[str, Any]) -> np.ndarray:
        # On Atari, info has the reward before EnvPool's own clipping.
        return np.asarray(info["reward"], np.float32) if "reward" in info else reward


@contextlib.contextmanager
def _without_cast_warnings() -> Iterator[None]:
    """Silences gymnasium's warnings that EnvPool's float64 bounds are cast to float32."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*precision lowered by casting.*")
        yield


def _install_advice(error: BaseException) -> str:
    if "Qt5" in str(error):
        return f" Procgen needs Qt 5: apt-get install {QT_PACKAGES}"
    return ' Install it: pip install "ding_lite[envpool]"'
