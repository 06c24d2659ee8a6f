"""Environment packages: registers their ids, names the extra that installs them, corrects their resets."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium as gym

# The extra that installs a module, by the lower-case name of the module or a word of an import error.
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
# By namespace of environment ids: the module that registers them, and its function to call, if any.
NAMESPACES = {
    "ALE": ("ale_py", None),
    "MinAtar": ("minatar.gym", "register_envs"),
    "MiniGrid": ("minigrid", None),
    "BabyAI": ("minigrid", None),
}
ATARI_ONLY = re.compile(r"\w+NoFrameskip-v[04]")
MAYBE_ATARI = re.compile(r"[A-Z]\w+-v[04]")


def register_ids(env_id: str) -> None:
    """Registers ``env_id`` with gymnasium, if it belongs to one of the known packages.

    Raises:
        ImportError: if that package is not installed; :func:`missing_extra` returns the install line.
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


def registering_module(env_id: str) -> str:
    """Returns the module of the class that gymnasium makes ``env_id`` of; "" if it needs no import by hand.

    Those are the ids of gymnasium itself and of the packages that :func:`register_ids` knows.
    """
    spec = gym.registry.get(env_id)
    entry_point = spec.entry_point if spec else None
    module = str(
        entry_point.partition(":")[0]
        if isinstance(entry_point, str)
        else getattr(entry_point, "__module__", "")
    )
    known = {"gymnasium", "ding_lite", *(package.split(".")[0] for package, _ in NAMESPACES.values())}
    return "" if module.split(".")[0] in known else module


@functools.cache  # gymnasium warns for every id that is registered a second time
def _register(module: str, function: str | None) -> None:
    loaded: Any = importlib.import_module(module)
    if module == "ale_py":  # it prints a banner on stderr, once per process
        loaded.ALEInterface.setLoggerMode(loaded.LoggerMode.Error)
    gym.register_envs(loaded) if function is None else getattr(loaded, function)()


@contextlib.contextmanager
def without_advice(env_id: str) -> Iterator[None]:
    """Silences messages that a user can do nothing about, while gymnasium makes an environment.

    gymnasium advises to upgrade to another version, but the config names one; for an id without a version it
    says which one it takes, for each environment again. MuJoCo 4 writes a line to stderr, and to
    MUJOCO_LOG.TXT in the working directory, for each of gymnasium's own environments that has an outdated
    attribute in its model.
    """
    spec = gym.registry.get(env_id)
    of_mujoco = spec is not None and str(spec.entry_point).startswith("gymnasium.envs.mujoco")
    with warnings.catch_warnings(), _without_outdated_models() if of_mujoco else contextlib.nullcontext():
        warnings.filterwarnings("ignore", ".* is out of date", DeprecationWarning)
        warnings.filterwarnings("ignore", ".*Using the latest versioned environment", UserWarning)
        yield


@contextlib.contextmanager
def _without_outdated_models() -> Iterator[None]:
    try:
        import mujoco
    except ImportError:  # the environment's own error names the extra
        yield
        return
    if not hasattr(mujoco, "get_mju_user_warning"):  # an older version
        yield
        return

    def show(text: str) -> None:
        if "is deprecated" not in text:
            print(f"MuJoCo: {text}", file=sys.stderr)

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(show if before is None else before)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def missing_extra(error: BaseException) -> str:
    """Returns the install line for the module that ``error`` reports missing, other advice, or ""."""
    if isinstance(error, (gym.error.NameNotFound, gym.error.VersionNotFound)):
        return ""  # its package is installed, and the error lists similar ids
    if "moved to the gymnasium-robotics" in str(error):  # MuJoCo environments v2 and v3
        return " gymnasium itself has newer versions: use the id that ends in -v5"
    if not isinstance(error, (ImportError, gym.error.Error)):
        return ""  # a word of it may be the name of a package by chance
    name = (getattr(error, "name", None) or "").lower().split(".")[0]
    words = re.findall(r"\w+", " ".join(map(str, error.args)).lower())
    extra = EXTRAS.get(name) or next((EXTRAS[word] for word in words if word in EXTRAS), "")
    return f' Install what it needs: pip install "ding_lite[{extra}]"' if extra else ""


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
    therefore restores the state after loading first.
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
