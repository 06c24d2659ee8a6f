"""Environment packages: registers their ids, names the extra that installs them, corrects their resets."""

from __future__ import annotations

import functools
import importlib
import re
from typing import Any

import gymnasium as gym

from ding_lite.config.registry import import_fault
from ding_lite.errors import CheckpointError

# The extras, and the lower-case words of an import error that each of them answers.
EXTRAS = {
    "box2d": "box2d",
    "mujoco": "mujoco",
    "atari": "ale_py ale cv2 opencv",
    "minigrid": "minigrid babyai",
    "minatar": "minatar",
    "envpool": "envpool",
    "plot": "pygame moviepy",
}
# The module that registers the ids of a namespace.
NAMESPACES = {"ALE": "ale_py", "MinAtar": "minatar.gym", "MiniGrid": "minigrid", "BabyAI": "minigrid"}


def id_faults(env_id: Any, path: str) -> list[str]:
    """Returns why gymnasium must not import the module of an id "module:Name-v0" now, at most one line.

    Args:
        env_id: the id of an environment.
        path: the id's key in the config, for the message.
    """
    fault = import_fault(env_id) if ":" in str(env_id) else ""
    return [f"{path}: {fault}"] if fault else []


def register_ids(env_id: str) -> None:
    """Registers ``env_id`` with gymnasium, if it belongs to one of the known packages.

    Call this first with every id that gymnasium receives: gymnasium imports the module of "module:Name-v0".

    Raises:
        ImportError: if that package is not installed; :func:`missing_extra` returns the install line.
        CheckpointError: see :func:`id_faults`.
    """
    if faults := id_faults(env_id, "env.env_id"):
        raise CheckpointError(faults[0])
    namespace = "ALE" if "NoFrameskip-v4" in env_id else re.split("[/-]", env_id)[0]
    module = NAMESPACES.get(namespace)
    if module and env_id not in gym.registry:
        _register(module)


@functools.cache  # gymnasium warns for every id that is registered a second time
def _register(module: str) -> None:
    loaded: Any = importlib.import_module(module)
    if module == "ale_py":  # it prints a banner on stderr, once per process
        loaded.ALEInterface.setLoggerMode(loaded.LoggerMode.Error)
    getattr(loaded, "register_envs", lambda: gym.register_envs(loaded))()


def missing_extra(error: BaseException) -> str:
    """Returns how to install, or to register, what ``error`` reports missing, or ""."""
    # A word of another error's message may be a package's name by chance.
    if isinstance(error, (ImportError, gym.error.DependencyNotInstalled, gym.error.NamespaceNotFound)):
        for word in re.findall(r"\w+", str(error).lower()):
            for extra, words in EXTRAS.items():
                if word in words.split():
                    return f' (pip install "ding_lite[{extra}]")'
    if isinstance(error, (gym.error.NameNotFound, gym.error.NamespaceNotFound)):
        return " An id of your own or of a package needs its import first: --import MODULE"
    return ""


def with_correct_reset(env: gym.Env) -> gym.Env:
    """Returns ``env``, wrapped if the ``reset`` of its package is slow or is not decided by the seed."""
    game: Any = env.unwrapped
    if type(game).__module__ == "minatar.gym":
        return MinAtarReset(env)
    if type(game).__module__ == "ale_py.env" and not game.ale.getFloat("repeat_action_probability"):
        return AtariReset(env)
    return env


class AtariReset(gym.Wrapper):
    """Resets with a seed in 5 ms to the state that ale_py reaches in 90 ms, without loading the ROM again.

    ALE reads a new seed for its sticky actions only when it loads the ROM. Without sticky actions the game is
    deterministic, but a plain reset leaves parts of the memory as the last episode left them. This wrapper
    therefore first restores the state that followed the loading of the ROM.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        game: Any = env.unwrapped
        self.game = game
        self.loaded_state = game.ale.cloneState()

    def reset(self, *, seed: int | None = None, **kwargs: Any) -> Any:
        if seed is not None:
            self.game.seed_game(seed)
            self.game.ale.restoreState(self.loaded_state)
        return self.env.reset(**kwargs)


class MinAtarReset(gym.Wrapper):
    """Clears the last action at each reset, so that seed and actions decide the whole episode.

    MinAtar repeats the last action with probability 0.1 (sticky actions) and keeps it over resets, so that an
    episode's first step would depend on the episode before.
    """

    def reset(self, **kwargs: Any) -> Any:
        game: Any = self.unwrapped
        game.game.last_action = 0
        return self.env.reset(**kwargs)
