"""Plays whole episodes with the greedy policy, beside training and without any effect on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ding_lite.envs.vector import VectorEnv
from ding_lite.envs.watch import Watch
from ding_lite.errors import NotFiniteError
from ding_lite.quota import SPOILED_PER_EPISODE, shares
from ding_lite.types import Episode, EvalMode, Evaluation, Tree


class Evaluator:
    """Plays ``n_episode`` episodes on its own environments, an equal share on each.

    Args:
        envs: made for evaluation; episodes in them are at most ``max_steps`` long.
        mode: of the policy that plays.
        n_episode: episodes in one evaluation.
        max_steps: a bound for environments that do not end by themselves.
    """

    def __init__(self, envs: VectorEnv, mode: EvalMode, n_episode: int, max_steps: int) -> None:
        self.envs, self.mode = envs, mode
        self._watch, self._numbers = Watch(envs, ", in an evaluation"), np.arange(envs.num_envs)
        self.n_episode, self.max_steps = n_episode, max_steps
        self._bad_before = 0  # how many values were not finite before this evaluation

    def evaluate(self, *stream: str | int, on_step: Callable[[Tree], Any] | None = None) -> Evaluation:
        """Plays one evaluation; the same ``stream`` of seeds gives the same start states.

        Args:
            stream: names the seeds, such as ``(iteration, attempt)``.
            on_step: called with the observations before each step.

        Raises:
            EnvContractError: as a collector, of an observation, a reward or a mask.
            NotFiniteError: if env.on_bad_value lets episodes be played anew, and that is so of nearly all.
        """
        left, self._bad_before = shares(self.n_episode, self.envs.num_envs), self.envs.bad_values
        results: list[list[Episode]] = [[] for _ in range(self.envs.num_envs)]
        round_number = 0
        while left.any():
            for episode in self._play_round(left, stream, round_number, on_step):
                results[episode.env].append(episode)
                left[episode.env] -= 1
            round_number += 1
        flat = [episode for done in results for episode in done]
        return Evaluation(
            returns=tuple(episode.episode_return for episode in flat),
            lengths=tuple(episode.length for episode in flat),
            cut_short=sum(episode.cut for episode in flat),
        )

    def _play_round(
        self, left: np.ndarray, stream: tuple[str | int, ...], number: int, on_step: Any
    ) -> Iterator[Episode]:
        """Plays on until each environment has played what is ``left`` (B,) for it, or was cut.

        An environment with no time limit of ours (a native one) is cut here and waits for the next
        round, which begins all environments anew: it cannot be begun alone.
        """
        envs, done = self.envs, left <= 0
        played = np.zeros(envs.num_envs, np.int64)
        steps = np.zeros(envs.num_envs, np.int64)  # of the open episodes
        self.mode.reset()
        obs = self._watch.reset("evaluate", *stream, *([number] if number else []))
        self._check_spoiled()
        while not done.all():
            if on_step is not None:
                on_step(obs)
            transition = envs.step(self.mode.to_env(self.mode.forward(obs)["action"]))
            self._watch.look(transition, self._numbers)
            self._check_spoiled()
            obs = transition.obs
            steps = np.where(transition.valid, steps + 1, 0)  # an episode that was lost is played anew
            for episode in transition.episodes:
                steps[episode.env] = 0
                if not done[episode.env]:
                    played[episode.env] += 1
                    yield episode
            done |= played >= left
            for env in np.flatnonzero(~done & (steps >= self.max_steps)):
                done[env] = True
                returns, lengths = envs.episode_returns, envs.episode_lengths
                yield Episode(int(env), float(returns[env]), int(lengths[env]), {}, cut=True)

    def _check_spoiled(self) -> None:
        spoiled = self.envs.bad_values - self._bad_before
        if spoiled > SPOILED_PER_EPISODE * self.n_episode:
            raise NotFiniteError(
                f"an evaluation of {self.n_episode} episodes has lost {spoiled} to values that are not "
                f"finite; env.on_bad_value={self.envs.on_bad_value!r} is for those that are rare"
            )


class Scores:
    """The evaluations of a run: the last one, the best mean, and whether it is solved.

    Args:
        stop_value: a mean that counts as solved, if a second evaluation on fresh seeds reaches it too.
    """

    def __init__(self, stop_value: float | None) -> None:
        self.stop_value = stop_value
        self.last: Evaluation | None = None
        self.best = -math.inf
        self.iteration = -1  # of the last evaluation

    def evaluate(self, evaluator: Evaluator, iteration: int) -> tuple[Evaluation, bool]:
        """Evaluates, twice where the first result calls for it, and returns (result, solved)."""
        found, solved = evaluator.evaluate(iteration, 0), False
        if self.stop_value is not None and found.mean >= self.stop_value:
            again = evaluator.evaluate(iteration, 1)
            found, solved = found + again, again.mean >= self.stop_value
        self.last, self.iteration = found, iteration
        return found, solved

    def is_best(self, found: Evaluation) -> bool:
        """Notes a result; of equals the later is the best, since it has learned more.

        What is not finite never is: nothing could be better than an infinite return.
        """
        if not (math.isfinite(found.mean) and found.mean >= self.best):
            return False
        self.best = found.mean
        return True

    def state_dict(self) -> dict[str, Any]:
        last = self.last
        return {
            "best": None if math.isinf(self.best) else self.best,
            "iteration": self.iteration,
            "last": None if last is None else [list(last.returns), list(last.lengths), last.cut_short],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        last = state["last"]
        self.last = None if last is None else Evaluation(tuple(last[0]), tuple(last[1]), int(last[2]))
        self.best = -math.inf if state["best"] is None else float(state["best"])
        self.iteration = int(state["iteration"])


def evaluation_metrics(found: Evaluation) -> dict[str, float]:
    """Returns what is logged of an evaluation."""
    return {
        "eval/episode_return_mean": found.mean,
        "eval/episode_return_std": found.std,
        "eval/episode_return_min": min(found.returns),
        "eval/episode_return_max": max(found.returns),
        "eval/episode_length_mean": float(np.mean(found.lengths)),
        "eval/episode_length_max": float(max(found.lengths)),
    }
