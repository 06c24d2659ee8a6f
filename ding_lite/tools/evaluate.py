"""Plays episodes with a policy or with a checkpoint: to evaluate it, to record videos, or to watch it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym

from ding_lite.config.compile import Config
from ding_lite.config.registry import importing_only
from ding_lite.data.episodes import Evaluation, Evaluator
from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.make import make_env, make_vector_env
from ding_lite.envs.vector import VectorEnv
from ding_lite.errors import ConfigError, EnvError
from ding_lite.policies.base import Policy
from ding_lite.rl.seeding import integer_seed
from ding_lite.run.checkpoint import load_of_run
from ding_lite.run.load import policy_of, refuse_without, refusing
from ding_lite.run.resources import threads
from ding_lite.run.resume import config_of
from ding_lite.run.video import recording_env
from ding_lite.tools.env_check import section_of
from ding_lite.trees import space_leaves

WITHOUT_EFFECT = {  # of an evaluation by itself
    *(f"env.{side}_env_num" for side in ("collector", "evaluator", "greedy")),
    *("env.n_evaluator_episode", "env.stop_value", "env.strict_truncation", "env.init_at_random_ep_len"),
}
DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")


def load(
    run: Path, *, trust: Sequence[str] = (), changes: Mapping[str, Any] | None = None
) -> tuple[Path, Config, Policy, int]:
    """Returns a checkpoint's path, the config of its run, its policy on the CPU, and its env steps.

    Args:
        run: a run's folder, whose best checkpoint is used, or a checkpoint.
        trust: modules that the checkpoint's config may import.
        changes: other values of keys of the environment, such as ``{"env.kwargs.g": 15.0}``.

    Raises:
        CheckpointError: if there is no checkpoint, or its config names a module that is not trusted.
        ConfigError: if a changed key is not in the section ``env``, or its value is invalid; if a script
            passed the environments of the run, and ``changes`` name none.
    """
    changes = changes or {}
    if others := [key for key in changes if not key.startswith("env.")]:
        raise ConfigError(f"{others[0]}: only keys of env can be changed here; the policy is the run's")
    if void := sorted(WITHOUT_EFFECT.intersection(changes)):
        raise ConfigError(f"{', '.join(void)}: no effect here; -n sets the number of episodes")
    checkpoint = load_of_run(run)
    config = config_of(checkpoint, trust, to_train=False)
    if {"env.type", "env.env_id"}.isdisjoint(changes):
        refuse_without(checkpoint, env_setting=None)
    policy = policy_of(checkpoint, "cpu", trust, None)
    with refusing(f"{checkpoint.file} has no progress of a run"):
        env_step = int(checkpoint.state["progress"]["env_step"])
    return checkpoint.file, config.replaced(changes), policy, env_step


def play(
    policy: Policy,
    envs: VectorEnv,
    episodes: int,
    max_steps: int,
    stream: str,
    actions_seed: int | None = None,
) -> Evaluation:
    """Plays episodes with a policy in environments, and closes them.

    Args:
        policy: is not changed.
        envs: made for evaluation.
        episodes: to play.
        max_steps: an episode that reaches this length is cut.
        stream: name of the random streams of start states and actions.
        actions_seed: of sampled actions; None: the most likely actions are taken.

    Raises:
        EnvError: if the policy cannot play in these environments, or one of them fails.
    """
    with contextlib.closing(envs), threads("auto", envs.obs_space):
        for name, space, trained in (
            ("observation", envs.obs_space, policy.obs_space),
            ("action", envs.action_space, policy.action_space),
        ):
            # Bounds of observations may differ. Bounds of actions may not, since actions are scaled to them.
            if space != trained and (name == "action" or _layout(space) != _layout(trained)):
                raise EnvError(
                    f"the policy cannot play in this environment: its {name} space is {space}, and the "
                    f"policy was trained with {trained}. A section in place of an id has the wrappers: "
                    "evaluate(policy, dict(env_id=..., wrappers=['action_rescale']))"
                )
        state_of_training = policy.generator.get_state()
        policy.generator.manual_seed(integer_seed(actions_seed or 0, stream, "action"))
        try:
            greedy = actions_seed is None
            return Evaluator(envs, policy, episodes, max_steps, greedy=greedy).evaluate(stream)
        finally:
            policy.generator.set_state(state_of_training)


def _layout(space: gym.Space) -> list[Any]:
    """Returns what a network depends on: the paths of a space's leaves, and their shapes or ranges."""
    return [
        (path, (leaf.shape, leaf.dtype) if isinstance(leaf, gym.spaces.Box) else leaf)
        for path, leaf in space_leaves(space)
    ]


def evaluate(
    policy: Policy,
    env: str | Callable[[], gym.Env] | Mapping[str, Any],
    *,
    episodes: int = 16,
    num_envs: int = 16,
    seed: int = 0,
    stochastic: bool = False,
    max_steps: int | None = None,
) -> Evaluation:
    """Plays whole episodes with a policy in new environments; does not affect a training in progress.

    Args:
        policy: such as :func:`~ding_lite.serial_pipeline` or :func:`~ding_lite.load_policy` returns.
        env: id of a gymnasium environment, a registered name, "package.module:Class", a function that makes
            one, or keys of the section ``env``, such as ``dict(type=MyEnv, action_mask="info")``, of which
            those that count environments and episodes have no effect.
        episodes: to play.
        num_envs: environments to play them in, at most one for each episode.
        seed: of the start states, and of sampled actions. No training has these start states, and no
            evaluation within a training.
        stochastic: sample the actions; otherwise take the most likely ones.
        max_steps: an episode that reaches this length is cut; None: ``max_eval_steps`` of the section.

    Raises:
        EnvError: if the environments cannot be made, or the policy cannot play in them.
    """
    if isinstance(env, gym.Env):
        raise EnvError(f"evaluate: it makes the environments: pass a function, lambda: ..., not {env!r:.50}")
    for name, number in (("episodes", episodes), ("num_envs", num_envs), ("max_steps", max_steps)):
        if number is not None and number < 1:
            raise EnvError(f"evaluate: {name}: expected at least 1, got {number}")
    section = section_of(env) | ({} if max_steps is None else {"max_eval_steps": max_steps})
    envs = make_vector_env(section, min(num_envs, episodes), seed, evaluate=True)
    return play(policy, envs, episodes, section["max_eval_steps"], "script", seed if stochastic else None)


def evaluate_checkpoint(
    run: Path,
    *,
    episodes: int,
    seed: int = 0,
    stochastic: bool = False,
    video: Path | None = None,
    human: bool = False,
    changes: Mapping[str, Any] | None = None,
    trust: Sequence[str] = (),
) -> tuple[Path, Evaluation]:
    """Plays episodes with a trained policy, on the CPU, in the environments of its run or changed ones.

    Args:
        run, trust, changes: as for :func:`load`.
        episodes: to play.
        seed: of the start states, and of sampled actions.
        stochastic: sample the actions; otherwise take the most likely ones.
        video: folder for one mp4 file per episode; the episodes are then played one after the other.
        human: play them one after the other in a window.

    Returns:
        the checkpoint, and the returns and lengths of the episodes.

    Raises:
        CheckpointError: as :func:`load`.
        ConfigError: as :func:`load`, or if there is no display.
        EnvError: if the environments cannot be made, recorded or shown, or the policy cannot play in them.
    """
    file, config, policy, _ = load(run, trust=trust, changes=changes)
    env_cfg = config.values["env"]
    with importing_only(config.trusted):
        if human:
            envs: VectorEnv = _window(env_cfg, seed)
        elif video is not None:
            envs = recording_env(env_cfg, video, episodes, seed)
        else:
            num_envs = min(env_cfg["evaluator_env_num"] or 1, episodes)
            envs = make_vector_env(env_cfg, num_envs, seed, evaluate=True)
    actions_seed = seed if stochastic else None
    return file, play(policy, envs, episodes, env_cfg["max_eval_steps"], "command", actions_seed)


def _window(env_cfg: Mapping[str, Any], seed: int) -> InProcessVectorEnv:
    """Returns a vector of one environment that shows itself in a window.

    Raises:
        ConfigError: if there is no display.
        EnvError: if the environment opens no window.
    """
    advice = "For a video instead: ding-lite eval RUN --video videos"
    # Without a display, SDL would draw into memory, and show nothing.
    if sys.platform.startswith("linux") and not any(name in os.environ for name in DISPLAYS):
        raise ConfigError(f"there is no display to open a window on (DISPLAY is not set). {advice}")

    def make(index: int) -> gym.Env:
        env = make_env(env_cfg, evaluate=True, render_mode="human")
        if env.render_mode != "human":
            modes = ", ".join(map(str, env.metadata.get("render_modes", []))) or "none"
            raise EnvError(f"the environment opens no window: it renders {modes}. {advice}")
        return env

    return InProcessVectorEnv(make, 1, seed)
