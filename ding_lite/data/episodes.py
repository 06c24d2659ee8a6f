"""Evaluation: plays episodes with a policy, and returns their results.

Each environment plays a share of the episodes that is fixed in advance. Counting the episodes that end first
would favour short ones and bias the mean return. An evaluation changes nothing in training.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ding_lite.data.hidden import begin_episodes, ends_of
from ding_lite.data.modes import Acting, ActingPolicy
from ding_lite.data.samples import even_sizes
from ding_lite.envs.checks import Watch
from ding_lite.envs.vector import Episode, VectorEnv
from ding_lite.ranks import ALONE, Ranks

SUCCESS = "is_success"  # the key of info that says whether an episode reached its goal


@dataclass(frozen=True)
class Evaluation:
    """The episodes of one evaluation, in the order of their environments.

    Attributes:
        returns: undiscounted sum of the raw rewards of each episode.
        lengths: steps of each episode.
        cut_short: number of episodes that were cut at ``max_eval_steps``, or by a wrapper.
        infos: the numbers that ``env.info_keys`` takes from the last info of each episode.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    cut_short: int = 0
    infos: tuple[Mapping[str, float], ...] = ()

    @property
    def mean(self) -> float:
        """The mean of the returns."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """The population standard deviation of the returns."""
        return float(np.std(self.returns))

    @staticmethod
    def of(episodes: list[Episode], ranks: Ranks) -> Evaluation:
        """Returns one evaluation of the ``episodes`` of all ranks."""
        of_all = [episode for of_rank in ranks.from_all(episodes) for episode in of_rank]
        _, returns, lengths, infos, cut = zip(*of_all, strict=True) if of_all else [()] * 5
        return Evaluation(returns, lengths, sum(cut), infos)

    def __add__(self, other: Evaluation) -> Evaluation:
        """Returns one evaluation with the episodes of both."""
        return Evaluation(*map(operator.add, vars(self).values(), vars(other).values()))


def means_of(infos: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean of each key over the infos that have it; an episode without ``SUCCESS`` failed."""
    infos = list(infos)
    values: dict[str, list[float]] = {}
    for info in infos:
        for name, value in info.items():
            values.setdefault(name, []).append(value)
    if SUCCESS in values:
        values[SUCCESS] += [0.0] * (len(infos) - len(values[SUCCESS]))
    return {name: float(np.mean(of_name)) for name, of_name in values.items()}


class Evaluator:
    """Plays ``n_episode`` episodes, an equal share in each environment.

    Args:
        envs: made for evaluation; only the evaluator steps them.
        policy: acts; drawn actions advance its ``generator``.
        n_episode: episodes of this rank in one evaluation.
        max_steps: length at which an open episode is truncated; a time limit may end it earlier.
        ranks: each plays its own ``n_episode`` episodes, and gets the evaluation of all.
        greedy: whether the policy takes its most likely actions; else it draws them.
    """

    def __init__(
        self,
        envs: VectorEnv,
        policy: ActingPolicy,
        n_episode: int,
        max_steps: int,
        ranks: Ranks = ALONE,
        *,
        greedy: bool = True,
    ) -> None:
        self.envs, self.policy, self.greedy, self.ranks = envs, policy, greedy, ranks
        self.n_episode, self.max_steps = n_episode, max_steps
        self._watch = Watch(envs, ", in an evaluation")

    def evaluate(self, *stream: str | int) -> Evaluation:
        """Plays one evaluation. The same ``stream`` gives the same initial states.

        Args:
            stream: name of the seeds, such as ``(iteration, attempt)``.

        Raises:
            EnvContractError: if an observation or a reward is not finite, an index is outside of its range,
                or a mask leaves no legal action.
        """
        left = even_sizes(self.n_episode, self.envs.num_envs)
        acting = self.policy.acting()
        results: list[list[Episode]] = [[] for _ in range(self.envs.num_envs)]
        round_number = 0
        while any(left):
            for episode in self._play_round(acting, left, stream, round_number):
                results[episode.env].append(episode)
                left[episode.env] -= 1
            round_number += 1
        return Evaluation.of([episode for of_env in results for episode in of_env], self.ranks)

    def _play_round(
        self, acting: Acting, share: list[int], stream: tuple[str | int, ...], number: int
    ) -> Iterator[Episode]:
        """Yields finished episodes until each environment has played ``share`` (B,) of them or was cut.

        The library adds no time limit to a native environment, so its episode is truncated here. It cannot
        be reset alone, so it waits for the next round, which resets all environments.
        """
        envs = self.envs
        left, steps = list(share), 0
        forward, recurrence = acting.greedy if self.greedy else acting.sample, self.policy.recurrence
        hidden = initial = None if recurrence is None else recurrence.initial_hidden(envs.num_envs)
        obs = self._watch.reset("evaluate", *stream, *([number] if number else []))
        while any(left):
            output = forward(obs) if hidden is None else forward(obs, hidden)
            transition = envs.step(acting.to_env(output["action"]))
            if hidden is not None:
                hidden = begin_episodes(output["hidden"], ends_of(transition), initial)
            self._watch.look(transition)
            obs = transition.obs
            steps += 1
            for episode in transition.episodes:
                if left[episode.env]:
                    left[episode.env] -= 1
                    yield episode
            if steps < self.max_steps:  # no episode can have reached max_steps
                continue
            is_open = ~(transition.terminated | transition.truncated)
            for env in np.flatnonzero((envs.episode_lengths >= self.max_steps) & is_open).tolist():
                if left[env]:
                    left[env] = 0
                    total, length = float(envs.episode_returns[env]), int(envs.episode_lengths[env])
                    yield Episode(env, total, length, info={}, cut=True)

    def state_dict(self) -> dict[str, Any]:
        """Returns the calls of the environments' methods; an evaluation leaves no other state."""
        return {"calls": dict(self.envs.calls)} if self.envs.calls else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.envs.repeat_calls(state.get("calls", {}))
