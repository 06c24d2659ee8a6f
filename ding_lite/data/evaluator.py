"""Evaluation: plays whole episodes with the policy's eval mode. Training is not affected."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ding_lite.data.episode_quota import SPOILED_PER_EPISODE, shares
from ding_lite.data.evaluation import Evaluation
from ding_lite.data.memories import begin_episodes, ends_of
from ding_lite.data.modes import EvalMode, check_output
from ding_lite.envs.checks import Watch
from ding_lite.envs.transition import Episode
from ding_lite.envs.vector import VectorEnv
from ding_lite.errors import NotFiniteError
from ding_lite.ranks import ALONE, Ranks


class EvaluationStopped(Exception):
    """An evaluation was given up, since :attr:`Evaluator.stop_at` has passed."""


class Evaluator:
    """Plays ``n_episode`` episodes, an equal share in each environment.

    Args:
        envs: made for evaluation; only the evaluator steps them.
        mode: eval mode of the policy.
        n_episode: episodes in one evaluation.
        max_steps: an episode that reaches this length is cut, in case the environment has no limit.
        ranks: that play a share of the episodes each; every rank gets the evaluation of all.

    Attributes:
        stop_at: time (``time.monotonic``) from which on an evaluation is given up; None: never. With several
            ranks it has no effect.
    """

    def __init__(
        self, envs: VectorEnv, mode: EvalMode, n_episode: int, max_steps: int, ranks: Ranks = ALONE
    ) -> None:
        self.envs = envs
        self.mode = mode
        self.n_episode = n_episode
        self.max_steps = max_steps
        self.ranks = ranks
        self.stop_at: float | None = None
        self._watch = Watch(envs, ", in an evaluation")
        self._env_indices = np.arange(envs.num_envs)
        self._bad_values_before = 0  # envs.bad_values when the evaluation began

    def evaluate(
        self,
        *stream: str | int,
        on_episode: Callable[[Episode], Any] | None = None,
    ) -> Evaluation:
        """Plays one evaluation. The same ``stream`` gives the same initial states.

        Args:
            stream: name of the seeds, such as ``(iteration, attempt)``.
            on_episode: called with each episode of this rank that has ended, in the order they end.

        Raises:
            EnvContractError: if an observation or a reward is not finite, an index is outside of its range,
                or a mask leaves no legal action.
            NotFiniteError: if env.on_bad_value allows values that are not finite, and they occur more than
                ``SPOILED_PER_EPISODE * n_episode`` times.
            EvaluationStopped: if ``stop_at`` passes before the last episode has ended.
        """
        left = shares(self.n_episode, self.envs.num_envs)
        self._bad_values_before = self.envs.bad_values
        mode = self.mode.for_evaluation()
        results: list[list[Episode]] = [[] for _ in range(self.envs.num_envs)]
        round_number = 0
        while left.any():
            for episode in self._play_round(mode, left, stream, round_number):
                results[episode.env].append(episode)
                left[episode.env] -= 1
                if on_episode is not None:
                    on_episode(episode)
            round_number += 1
        own = [episode for of_env in results for episode in of_env]
        episodes = [episode for of_rank in self.ranks.from_all(own) for episode in of_rank]
        return Evaluation(
            returns=tuple(episode.episode_return for episode in episodes),
            lengths=tuple(episode.length for episode in episodes),
            cut_short=sum(episode.cut for episode in episodes),
            infos=tuple(episode.info for episode in episodes),
        )

    def _play_round(
        self, mode: EvalMode, share: np.ndarray, stream: tuple[str | int, ...], number: int
    ) -> Iterator[Episode]:
        """Yields finished episodes until each environment has played ``share`` (B,) of them or was cut.

        An environment without a time limit of the library (a native one) is cut here. It cannot be reset
        alone, so it waits for the next round, which resets all environments.
        """
        envs = self.envs
        left: list[int] = share.tolist()
        steps = 0
        mode.reset()
        initial = None if mode.initial_state is None else mode.initial_state(envs.num_envs)
        state = initial
        obs = self._watch.reset("evaluate", *stream, *([number] if number else []))
        self._check_spoiled()
        while any(left):
            if self.stop_at is not None and self.ranks.size == 1 and time.monotonic() >= self.stop_at:
                raise EvaluationStopped
            output = mode.forward(obs) if state is None else mode.forward(obs, state)
            check_output(output, "_forward_eval")
            transition = envs.step(mode.to_env(output["action"]))
            if state is not None:
                state = begin_episodes(output["state"], ends_of(transition), initial)
            self._watch.look(transition, self._env_indices)
            self._check_spoiled()
            obs = transition.obs
            steps += 1
            for episode in transition.episodes:
                if left[episode.env]:
                    left[episode.env] -= 1
                    yield episode
            if steps < self.max_steps:  # no episode can be as long
                continue
            is_open = ~(transition.terminated | transition.truncated)
            for env in np.flatnonzero((envs.episode_lengths >= self.max_steps) & is_open).tolist():
                if left[env]:
                    left[env] = 0
                    yield Episode(
                        env=env,
                        episode_return=float(envs.episode_returns[env]),
                        length=int(envs.episode_lengths[env]),
                        info=envs.open_info(env),
                        cut=True,
                    )

    def state_dict(self) -> dict[str, Any]:
        """Returns the calls of methods of the environments; nothing else outlives an evaluation."""
        return {"calls": self.envs.saved_calls()} if self.envs.calls else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.envs.repeat_calls(state.get("calls", {}))

    def _check_spoiled(self) -> None:
        """Raises NotFiniteError if too many episodes of this evaluation were lost."""
        spoiled = self.envs.bad_values - self._bad_values_before
        if spoiled > SPOILED_PER_EPISODE * self.n_episode:
            raise NotFiniteError(
                f"an evaluation of {self.n_episode} episodes lost {spoiled} episodes to values that are not "
                f"finite, more than {SPOILED_PER_EPISODE} per episode; env.on_bad_value="
                f"{self.envs.on_bad_value!r} is meant for rare values, so correct the environment"
            )
