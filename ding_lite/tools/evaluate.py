"""Plays episodes with a policy, or that of a checkpoint: to evaluate it, to record videos, or to watch."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import operator
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym

from ding_lite.config.compile import Config, compile_config
from ding_lite.config.registry import env_section
from ding_lite.data.episodes import SUCCESS, Evaluation, Evaluator
from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.make import make_env, make_vector_env, vector_env_of
from ding_lite.envs.vector import Episode, VectorEnv
from ding_lite.errors import FOREIGN, ConfigError, ContractError, EnvError, error_text
from ding_lite.policies.base import Policy
from ding_lite.rl.seeding import integer_seed
from ding_lite.run.checkpoint import load_of_run, write_whole
from ding_lite.run.load import policy_from_state, refuse_without
from ding_lite.run.resume import config_of_checkpoint
from ding_lite.run.video import recording_env
from ding_lite.trees import space_leaves


class Opened(NamedTuple):
    """The parts of a checkpoint that playing needs.

    Attributes:
        folder: of the checkpoint.
        config: of the run.
        policy: on the CPU.
        saved: config.json of the checkpoint.
        env_step: of the run, when it was saved.
    """

    folder: Path
    config: Config
    policy: Policy
    saved: Mapping[str, Any]
    env_step: int


def open_checkpoint(run: Path, trust: Sequence[str]) -> Opened:
    """Loads a policy, and the config of its run.

    Args:
        run: a run's folder, whose best checkpoint is used, or a checkpoint.
        trust: modules that the checkpoint's config may import.

    Raises:
        CheckpointError: if there is no checkpoint, or its config names a module that is not trusted.
    """
    folder, state, saved = load_of_run(run, "best")
    config = config_of_checkpoint(folder, saved, list(trust))
    policy = policy_from_state(folder, state, saved, device="cpu", trust=trust)
    return Opened(folder, config, policy, saved, int(state["progress"]["env_step"]))


class LoadedPlayer(NamedTuple):
    """What plays: the policy of a checkpoint, and the environments of its run or others like them.

    Attributes:
        checkpoint: its folder.
        env_cfg: the section ``env`` of the config.
        policy: that acts.
        stochastic: whether its actions are sampled.
    """

    checkpoint: Path
    env_cfg: dict[str, Any]
    policy: Policy
    stochastic: bool

    def play(
        self, envs: VectorEnv, episodes: int, seed: int, on_episode: Callable[[Episode], Any] | None
    ) -> Evaluation:
        """Plays episodes in these environments, and closes them; ``seed`` is that of sampled actions.

        Raises:
            EnvError: if the policy cannot play in them, or one of them fails.
        """
        actions_seed = seed if self.stochastic else None
        max_steps = self.env_cfg["max_eval_steps"]
        return _play(self.policy, envs, episodes, max_steps, actions_seed, "command", on_episode)


def evaluate(
    policy: Policy,
    env: str | Callable[[], gym.Env],
    *,
    episodes: int = 16,
    num_envs: int = 16,
    seed: int = 0,
    stochastic: bool = False,
    max_steps: int = 10_000,
) -> Evaluation:
    """Plays whole episodes with a policy in new environments; a training that goes on is not affected.

    Args:
        policy: such as :func:`~ding_lite.serial_pipeline` and :func:`~ding_lite.load_policy` return it.
        env: id of a gymnasium environment, a registered name, "package.module:Class", or a function that
            makes one.
        episodes: to play.
        num_envs: environments to play them in, at most one for each episode.
        seed: of the start states, and of sampled actions. The start states are those of no training and of no
            evaluation within one.
        stochastic: sample the actions; otherwise take the most likely ones.
        max_steps: an episode that reaches this length is cut.

    Raises:
        ContractError: if an argument is of another kind.
        EnvError: if the environments cannot be made, or the policy cannot play in them.
    """
    if not isinstance(policy, Policy):
        raise ContractError(f"policy: expected a policy, such as load_policy(RUN), got {policy!r:.80}")
    if not (isinstance(env, str) or callable(env)):
        raise ContractError(
            f"env: expected the id of an environment, or a function that makes one (lambda: MyEnv()), got "
            f"{env!r:.80}"
        )
    count = min(num_envs, episodes)
    if count < 1:
        raise ContractError(f"expected at least 1 episode and 1 environment, got {episodes} and {num_envs}")
    if callable(env):
        make = env
        envs = vector_env_of(lambda _: make(), [None] * count, seed, max_steps, info_keys=(SUCCESS,))
    else:
        user = {"env": {**env_section(env), "max_eval_steps": max_steps}}
        section = compile_config(user, origin="evaluate").values["env"]
        envs = make_vector_env(section, count, seed, evaluate=True)
    return _play(policy, envs, episodes, max_steps, seed if stochastic else None, "script")


def _play(
    policy: Policy,
    envs: VectorEnv,
    episodes: int,
    max_steps: int,
    actions_seed: int | None,
    stream: str,
    on_episode: Callable[[Episode], Any] | None = None,
) -> Evaluation:
    """Plays episodes with a policy in environments, and closes them.

    Args:
        policy, envs, episodes, max_steps, on_episode: as elsewhere.
        actions_seed: of sampled actions; None takes the most likely ones.
        stream: names the random numbers of the start states and actions.
    """
    with contextlib.closing(envs):
        _check_spaces(envs, policy)
        if actions_seed is None:
            return Evaluator(envs, policy.eval_mode, episodes, max_steps).evaluate(
                stream, on_episode=on_episode
            )
        mode = policy.eval_mode._replace(forward=policy.collect_mode.forward)
        state_of_training = policy.generator.get_state()
        policy.generator.manual_seed(integer_seed(actions_seed, stream, "action"))
        try:
            return Evaluator(envs, mode, episodes, max_steps).evaluate(stream, on_episode=on_episode)
        finally:
            policy.generator.set_state(state_of_training)


def _check_spaces(envs: VectorEnv, policy: Policy) -> None:
    """Refuses environments in which a policy cannot play.

    Raises:
        EnvError: naming the space that differs.
    """
    for name, space, own in (
        ("observation", envs.obs_space, policy.obs_space),
        ("action", envs.action_space, policy.action_space),
    ):
        # The bounds of observations may be others; actions are scaled to theirs.
        if space != own and (name == "action" or _layout(space) != _layout(own)):
            raise EnvError(
                f"the policy cannot play in this environment: its {name} space is {space}, and the "
                f"policy was trained with {own}"
            )


def _layout(space: gym.Space) -> list[Any]:
    """Returns what a network depends on: the paths of a space's leaves, and their shapes or ranges."""
    return [
        (path, (leaf.shape, leaf.dtype) if isinstance(leaf, gym.spaces.Box) else leaf)
        for path, leaf in space_leaves(space)
    ]


def load_player(
    run: Path,
    *,
    stochastic: bool = False,
    changes: Mapping[str, Any] | None = None,
    trust: Sequence[str] = (),
) -> LoadedPlayer:
    """Returns the player of a checkpoint.

    Args:
        run, trust: as for :func:`open_checkpoint`.
        stochastic: sample the actions; otherwise take the most likely ones.
        changes: of the environment, such as ``{"env.kwargs.g": 15.0}``.

    Raises:
        CheckpointError: as :func:`open_checkpoint`.
        ConfigError: if a change is not one of the section ``env``, or is faulty; if a script gave the run its
            environments, and ``changes`` name none.
    """
    opened = open_checkpoint(run, trust)
    config = opened.config
    others = [key for key in changes or {} if not key.startswith("env.")]
    if others:
        raise ConfigError(f"{others[0]}: only keys of env can be changed here; the policy is that of the run")
    if {"env.type", "env.env_id"}.isdisjoint(changes or ()):
        refuse_without(opened.folder, opened.saved, "env_setting")
    if changes:
        config = compile_config(config.as_json(), changes, origin="the run's config")
    return LoadedPlayer(opened.folder, config.values["env"], opened.policy, stochastic)


def evaluate_checkpoint(
    run: Path,
    *,
    episodes: int,
    seed: int = 0,
    stochastic: bool = False,
    video: Path | None = None,
    episodes_csv: Path | None = None,
    changes: Mapping[str, Any] | None = None,
    trust: Sequence[str] = (),
    on_episode: Callable[[Episode], Any] | None = None,
    on_video: Callable[[Path], Any] | None = None,
) -> tuple[Path, Evaluation]:
    """Plays episodes with a trained policy, on the CPU, in the environments of its run or others like them.

    Args:
        run: a run's folder, whose best checkpoint is used, or a checkpoint.
        episodes: to play.
        seed: of the start states, and of sampled actions.
        stochastic: sample the actions; otherwise take the most likely ones.
        video: folder for one mp4 file per episode; the episodes are then played one after the other.
        episodes_csv: file for one row per episode.
        changes: of the environment, as for :func:`load_player`.
        trust: modules that the checkpoint's config may import.
        on_episode: called with each episode that has ended.
        on_video: called with each video that is written.

    Returns:
        the folder of the checkpoint, and the returns and lengths of the episodes.

    Raises:
        CheckpointError: if there is no checkpoint, or its config names a module that is not trusted.
        EnvError: if the environments cannot be made or recorded, or the policy cannot play in them.
        ConfigError: if a change is faulty, or ``episodes_csv`` cannot be written.
    """
    player = load_player(run, stochastic=stochastic, changes=changes, trust=trust)
    played: list[Episode] = []

    def ended(episode: Episode) -> None:
        played.append(episode)
        if on_episode is not None:
            on_episode(episode)

    if episodes_csv is not None and not episodes_csv.absolute().parent.is_dir():
        raise ConfigError(
            f"--episodes-csv {episodes_csv} cannot be written: there is no folder {episodes_csv.parent}"
        )
    if video is None:
        num_envs = min(player.env_cfg["evaluator_env_num"], episodes)
        envs = make_vector_env(player.env_cfg, num_envs, seed, evaluate=True)
    else:
        envs = recording_env(player.env_cfg, video, episodes, seed, on_video)
    evaluation = player.play(envs, episodes, seed, ended)
    if episodes_csv is not None:
        _write_episodes(episodes_csv, seed, played, player.env_cfg["info_keys"])
    return player.checkpoint, evaluation


def _write_episodes(file: Path, seed: int, episodes: Sequence[Episode], info_keys: Sequence[str]) -> None:
    """Writes one row per episode, by environment, and for each environment in the order they were played."""
    rows = []
    of_env = operator.attrgetter("env")
    for env, played in itertools.groupby(sorted(episodes, key=of_env), of_env):
        for number, episode in enumerate(played):
            place = {"seed": seed, "env": env, "episode": number}
            score = {"return": episode.episode_return, "length": episode.length, "cut": int(episode.cut)}
            rows.append({**episode.info, **place, **score})
    own = ["seed", "env", "episode", "return", "length", "cut"]
    columns = [*own, *(name for name in info_keys if name not in own and any(name in row for row in rows))]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    try:
        write_whole(file, text.getvalue())
    except OSError as error:
        raise ConfigError(f"--episodes-csv {file} cannot be written: {error}") from error


class Paced(gym.Wrapper):
    """Waits after each step, so that an environment takes at most ``fps`` steps a second."""

    def __init__(self, env: gym.Env, fps: float) -> None:
        super().__init__(env)
        self._seconds = 1 / fps
        self._next = 0.0

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        now = time.monotonic()
        time.sleep(max(0.0, self._next - now))
        self._next = max(now, self._next) + self._seconds
        return result


def play_checkpoint(
    run: Path,
    *,
    episodes: int = 5,
    seed: int = 0,
    stochastic: bool = False,
    fps: float | None = None,
    changes: Mapping[str, Any] | None = None,
    trust: Sequence[str] = (),
    video_command: str = "ding-lite eval RUN --video videos",
    on_episode: Callable[[Episode], Any] | None = None,
) -> tuple[Path, Evaluation]:
    """Plays episodes in a window.

    Args:
        run, seed, stochastic, changes, trust: as for :func:`evaluate_checkpoint`.
        episodes: to play, one after the other.
        fps: steps a second; None: as fast as the environment's own window is.
        video_command: records the same episodes; errors about the window name it.
        on_episode: called with each episode that has ended.

    Returns:
        the folder of the checkpoint, and the returns and lengths of the episodes.

    Raises:
        CheckpointError: as for :func:`evaluate_checkpoint`.
        ConfigError: if there is no display, or a change is faulty.
        EnvError: if the environment cannot be made, opens no window, or the policy cannot play in it.
    """
    player = load_player(run, stochastic=stochastic, changes=changes, trust=trust)
    advice = f"For a video instead: {video_command}"
    displays = {"DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"}
    if sys.platform.startswith("linux") and displays.isdisjoint(os.environ):
        raise ConfigError(f"there is no display to open a window on (DISPLAY is not set). {advice}")

    def make(index: int) -> gym.Env:
        env = make_env(player.env_cfg, evaluate=True, render_mode="human")
        if env.render_mode != "human":
            modes = ", ".join(map(str, env.metadata.get("render_modes", []))) or "none"
            raise EnvError(f"the environment opens no window: it renders {modes}. {advice}")
        if fps is not None:
            env.unwrapped.metadata = {**env.unwrapped.metadata, "render_fps": fps}
            env = Paced(env, fps)
        try:
            env.reset()  # opens the window
        except FOREIGN as error:
            raise EnvError(f"the environment opens no window: {error_text(error)}. {advice}") from error
        pygame = sys.modules.get("pygame")
        if pygame and pygame.display.get_init() and pygame.display.get_driver() == "offscreen":
            raise EnvError(f"the environment opens no window: the display is not available. {advice}")
        return gym.wrappers.TimeLimit(env, player.env_cfg["max_eval_steps"])

    envs = InProcessVectorEnv(make, 1, seed, on_bad_value=player.env_cfg["on_bad_value"])
    return player.checkpoint, player.play(envs, episodes, seed, on_episode)
