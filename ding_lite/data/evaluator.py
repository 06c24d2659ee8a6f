"""Evaluation: plays whole episodes with the policy's eval mode. Training is not affected."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ding_lite.data.episode_quota import SPOILED_PER_EPISODE, shares
from ding_lite.data.evaluation import Evaluation, means_of
from ding_lite.data.memories import begin_episodes, ends_of
from ding_lite.data.modes import EvalMode, check_output
from ding_lite.envs.checks import Watch
from ding_lite.envs.transition import Episode
from ding_lite.envs.vector import VectorEnv
from ding_lite.errors import NotFiniteError
from ding_lite.rl.ranks import ALONE, Ranks
from ding_lite.trees import Tree


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
        on_step: Callable[[Tree], Any] | None = None,
        on_episode: Callable[[Episode], Any] | None = None,
    ) -> Evaluation:
        """Plays one evaluation. The same ``stream`` gives the same initial states.

        Args:
            stream: name of the seeds, such as ``(iteration, attempt)``.
            on_step: called with the observations (B, ...) before each step.
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
            for episode in self._play_round(mode, left, stream, round_number, on_step):
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
        self, mode: EvalMode, share: np.ndarray, stream: tuple[str | int, ...], number: int, on_step: Any
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
            if on_step is not None:
                on_step(obs)
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


class Scores:
    """The evaluations of a run: the last one, the best mean return, and whether the task is solved.

    Args:
        stop_value: the task is solved if the mean returns of two evaluations with different seeds both
            reach this value; None: it is never solved.

    Attributes:
        last: the last evaluation, or None.
        best: highest finite mean return so far; -inf before the first.
        iteration: of the last evaluation; -1 before the first.
    """

    def __init__(self, stop_value: float | None) -> None:
        self.stop_value = stop_value
        self.last: Evaluation | None = None
        self.best = self._best_before = -math.inf
        self.iteration = -1

    def evaluate(self, evaluator: Evaluator, iteration: int) -> tuple[Evaluation, bool]:
        """Evaluates once, or twice if the first mean reaches ``stop_value``.

        Returns:
            ``(evaluation, solved)``; the evaluation has the episodes of both rounds.
        """
        evaluation = evaluator.evaluate(iteration, 0)
        solved = False
        if self.stop_value is not None and evaluation.mean >= self.stop_value:
            second = evaluator.evaluate(iteration, 1)
            solved = second.mean >= self.stop_value
            evaluation = evaluation + second
        self.last = evaluation
        self.iteration = iteration
        return evaluation, solved

    def update_best(self, evaluation: Evaluation | None) -> bool:
        """Makes ``evaluation`` the best one if no mean return was higher so far; returns whether it is.

        Called for every checkpoint; None if there was no evaluation before it.

        Of equal means the later one is the best, because its policy was trained for longer. A mean that is
        not finite is never the best: no later one could exceed infinity.
        """
        self._best_before = self.best
        if evaluation is None or not (math.isfinite(evaluation.mean) and evaluation.mean >= self.best):
            return False
        self.best = evaluation.mean
        return True

    def restore_best(self) -> None:
        """Takes back the last :meth:`update_best`, because ``ckpt/best`` could not be saved."""
        self.best = self._best_before

    def state_dict(self) -> dict[str, Any]:
        last = self.last
        infos = [] if last is None else [dict(info) for info in last.infos]
        return {
            "best": None if math.isinf(self.best) else self.best,
            "iteration": self.iteration,
            "last": None if last is None else [list(last.returns), list(last.lengths), last.cut_short],
            **({"last_infos": infos} if any(infos) else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        last = state["last"]
        self.last = None
        if last is not None:
            returns, lengths, cut_short = last
            infos = state.get("last_infos", [{}] * len(returns))
            self.last = Evaluation(tuple(returns), tuple(lengths), int(cut_short), tuple(map(dict, infos)))
        self.best = self._best_before = -math.inf if state["best"] is None else float(state["best"])
        self.iteration = int(state["iteration"])


def evaluation_metrics(evaluation: Evaluation) -> dict[str, float]:
    """Returns the logged metrics of an evaluation, by name."""
    own = {
        "eval/episode_return_mean": evaluation.mean,
        "eval/episode_return_std": evaluation.std,
        "eval/episode_return_min": min(evaluation.returns),
        "eval/episode_return_max": max(evaluation.returns),
        "eval/episode_length_mean": float(np.mean(evaluation.lengths)),
        "eval/episode_length_max": float(max(evaluation.lengths)),
    }
    info = {f"eval/{key}": mean for key, mean in means_of(evaluation.infos).items()}
    return own | info | own  # keys of info come last, and replace no metric
