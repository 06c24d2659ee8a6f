"""Packages of environments: what registers their ids, what installs them, and what must be mended."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
from typing import Any

import gymnasium as gym

# What a missing module, or a word of a message that says so, is installed by; names are lower case.
EXTRAS = {
    "box2d": "box2d",
    "mujoco": "mujoco",
    "ale_py": "atari",
    "ale": "atari",
    "cv2": "atari",
    "opencv": "atari",
    "minigrid": "minigrid",
    "babyai": "minigrid",
    "minatar": "minatar",
    "envpool": "envpool",
    "pygame": "classic",
    "moviepy": "video",
}
# Namespaces of environment ids, the module that registers them, and what to call in it, if anything.
NAMESPACES = {
    "ALE": ("ale_py", None),
    "MinAtar": ("minatar.gym", "register_envs"),
    "MiniGrid": ("minigrid", None),
    "BabyAI": ("minigrid", None),
}
ATARI_ONLY = re.compile(r"\w+NoFrameskip-v[04]")
MAYBE_ATARI = re.compile(r"[A-Z]\w+-v[04]")


def register_ids(env_id: str) -> None:
    """Makes gymnasium know ``env_id``, where a package that we know has it.

    Raises:
        ImportError: if that package is not installed; :func:`missing_extra` has the install line.
    """
    if env_id in gym.registry:
        return
    module, function = NAMESPACES.get(env_id.split("/")[0].split("-")[0], ("", None))
    is_old_atari = ATARI_ONLY.fullmatch(env_id) or (
        MAYBE_ATARI.fullmatch(env_id) and importlib.util.find_spec("ale_py")
    )
    if not module and is_old_atari:
        module = "ale_py"
    if module:
        _register(module, function)


@functools.cache  # a second time, such as for a misspelt id, gymnasium would warn of each one
def _register(module: str, function: str | None) -> None:
    loaded: Any = importlib.import_module(module)
    if module == "ale_py":  # it greets on stderr, once in every process
        loaded.ALEInterface.setLoggerMode(loaded.LoggerMode.Error)
    gym.register_envs(loaded) if function is None else getattr(loaded, function)()


def missing_extra(error: BaseException) -> str:
    """Returns the install line for a module that ``error`` says is missing, or other advice, or nothing."""
    if isinstance(error, (gym.error.NameNotFound, gym.error.VersionNotFound)):
        return ""  # its package is there, and has told what it offers instead
    if "moved to the gymnasium-robotics" in str(error):  # v2 and v3 of MuJoCo's
        return " gymnasium itself has the newer versions: let env_id end in -v5"
    name = (getattr(error, "name", None) or "").lower().split(".")[0]
    words = re.findall(r"\w+", " ".join(map(str, error.args)).lower())
    extra = EXTRAS.get(name) or next((EXTRAS[word] for word in words if word in EXTRAS), "")
    return f' Install what it needs: pip install "ding_lite[{extra}]"' if extra else ""


def mended(env: gym.Env) -> gym.Env:
    """Returns ``env``, wrapped where its package breaks a promise of gymnasium's that a run relies on."""
    game: Any = env.unwrapped
    if type(game).__module__ == "minatar.gym":
        return MinAtarReset(env)
    if type(game).__module__ == "ale_py.env" and not game.ale.getFloat("repeat_action_probability"):
        return AtariReset(env)
    return env


class AtariReset(gym.Wrapper):
    """Resets with a seed in 5 ms, and to the same state, where ale_py takes 90 to load the game's ROM again.

    ALE takes a new seed for its sticky actions only with the ROM. Without them nothing in it is random; but a
    reset alone leaves some of the memory as it was in the episode before: so back to the loaded state first.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        game: Any = env.unwrapped
        self.game, self.loaded = game, game.ale.cloneState()

    def reset(self, *, seed: int | None = None, **kwargs: Any) -> Any:
        if seed is not None:
            self.game.seed_game(seed)
            self.game.ale.restoreState(self.loaded)
        return self.env.reset(**kwargs)


class MinAtarReset(gym.Wrapper):
    """Lets a reset with a seed decide the whole episode.

    MinAtar repeats the last action with probability 0.1 (sticky actions) and remembers it over resets, so
    that an episode's first step would depend on the episode before.
    """

    def reset(self, **kwargs: Any) -> Any:
        game: Any = self.unwrapped
        game.game.last_action = 0
        return self.env.reset(**kwargs)
