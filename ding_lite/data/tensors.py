"""Collects rollouts of tensors: what a simulator gives stays on its device, and no step waits for it.

obs (N, ...) --policy--> action --simulator--> step --rows of tensors--> rollout (T, N)

Finished episodes, the simulator's own metrics, and numbers that are not finite are read once a rollout.

Shapes: T steps, N environments, K truncated episodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ding_lite.data.collector import Collector
from ding_lite.data.episodes import Evaluation
from ding_lite.data.modes import ActingPolicy
from ding_lite.data.rollout import Rollout, as_rollout, to_device, view
from ding_lite.envs.tensor import APPROXIMATE, TensorVectorEnv
from ding_lite.envs.vector import ALL, RECENT_EPISODES, Episode
from ding_lite.errors import EnvContractError, EnvError, NotFiniteError
from ding_lite.ranks import ALONE, Ranks
from ding_lite.trees import Tree, map_tree, named_leaves, path_text

ROOM = 2  # truncated episodes of an environment in a rollout whose last observations have room at first
OF_EPISODES = ("episode_return", "episode_length")  # rows that are no field of a rollout


class TensorCollector(Collector):
    """A :class:`Collector` for the N environments of a simulator that gives tensors.

    Args:
        envs, policy, n_sample: as of :class:`Collector`.
        strict: refuse to train where the last observation of a truncated episode is unknown.
        greedy: gets the episodes of the last environments, which play greedily: their rows are not valid.

    Attributes:
        rows: the tensors (T, N, ...) that every rollout is written into, by name; ``storage`` is not used.
        current: observations (N, ...) that the policy acts on next.
        log: means of the simulator's own metrics over the last rollout.
    """

    envs: TensorVectorEnv

    def __init__(
        self,
        envs: TensorVectorEnv,
        policy: ActingPolicy,
        n_sample: int,
        *,
        strict: bool = False,
        greedy: GreedyEpisodes | None = None,
    ) -> None:
        if strict and not envs.has_last_obs:
            raise EnvContractError(f"{envs.backend}: {APPROXIMATE}")
        self.strict, self.greedy, self.rows, self.log = strict, greedy, {}, {}  # type: ignore[var-annotated]
        self.on_host = envs.device.type == "cpu"  # then NumPy may act
        self._has_said = not envs.has_last_obs  # that values are approximate
        self._written: set[str] = set()  # the names of the rows of this rollout
        super().__init__(envs, policy, n_sample)
        # Without room, an observation of the rollout takes the place of the last one. Its hidden state is not
        # there: only some rows are stored.
        room = ROOM * envs.num_envs if self.hidden is None else self.n_sample
        self.finals = LastObservations(room, envs.device)

    def _start_from(self, obs: Tree) -> None:
        self.current = to_device(obs, self.envs.device)
        if self.hidden is not None:
            self.hidden.begin_all()

    def collect(self) -> Rollout:
        envs, hidden, finals, greedy = self.envs, self.hidden, self.finals, self.greedy
        if self.is_incomplete:
            self._begin_anew("after an error", self.episode_count)
        acting = self.policy.acting(self.n_sample, on_device=not self.on_host)
        log: dict[str, list[Tensor]] = {}
        approximate = torch.zeros((), dtype=torch.int64, device=envs.device)
        self.is_incomplete = True
        self._written.clear()
        finals.begin()
        with torch.no_grad():
            for t in range(self.steps):
                self.timer("store")
                obs = self._write(t, "obs", self.current)
                self.timer("act")
                inputs = map_tree(view, obs) if self.on_host else obs
                before = {} if hidden is None else {"hidden": hidden.before(t, 0, ALL)}
                output = dict(acting.sample(inputs, *before.values()))
                action = to_device(acting.to_env(output["action"]), envs.device)
                if greedy is not None:
                    last = [map_tree(lambda x: x[greedy.first :], x) for x in (inputs, *before.values())]
                    best = to_device(acting.to_env(acting.greedy(*last)["action"]), envs.device)
                    action = map_tree(lambda x, y: torch.cat([x[: greedy.first], y]), action, best)
                self.timer("env")
                step = envs.step_tensors(action)
                self.timer("store")
                after = {name: output.pop(name) for name in before}
                learned = step if greedy is None else step._replace(valid=step.valid & greedy.others)
                for name, value in acting.process_transition(obs, output, learned).items():
                    self._write(t, name, value)
                for name, value in zip(OF_EPISODES, (step.returns, step.lengths), strict=True):
                    self._write(t, name, value)
                if step.final_obs is None:  # the observation before takes its place
                    finals.add(step.truncated, {"obs": obs, **before})
                    approximate += step.truncated.sum()
                else:
                    finals.add(step.truncated, {"obs": step.final_obs, **after})
                for name, value in step.log.items():  # a new number: a simulator may write over its own
                    number = torch.as_tensor(value, dtype=torch.float32, device=envs.device).mean()
                    log.setdefault(name, []).append(number)
                self.current = step.obs
                if hidden is not None:
                    hidden.after(0, after["hidden"], step.terminated | step.truncated | ~step.valid)
            rollout = self._rollout(approximate, log)
        self.is_incomplete = False
        self.timer("advantages")
        return acting.finish(rollout)

    def _write(self, t: int, name: str, value: Tree) -> Tree:
        """Copies a value (N, ...) into row ``t`` of a field, and returns the row."""
        value = to_device(value, self.envs.device)
        self._written.add(name)
        if name not in self.rows:
            self.rows[name] = map_tree(lambda leaf: leaf.new_zeros((self.steps, *leaf.shape)), value)
        return map_tree(lambda rows, leaf: rows[t].copy_(leaf), self.rows[name], value)

    def _rollout(self, approximate: Tensor, log: Mapping[str, list[Tensor]]) -> Rollout:
        """Returns the rollout, after it has been looked at: this waits for the device.

        Args:
            approximate: number of truncated episodes whose last observations are unknown.
            log: the simulator's own metrics at each step.
        """
        names = self._written.difference(OF_EPISODES)
        fields = {name: rows for name, rows in self.rows.items() if name in names}
        if not fields["valid"].any():
            raise EnvError(f"none of the {self.n_sample} rows of a rollout is a step: all are resets")
        fields["last_obs"] = map_tree(torch.clone, self.current)
        if self.hidden is not None:
            fields |= self.hidden.fields()
        place = fields["truncated"].nonzero()
        if len(place):
            late = place[self.finals.room :].unbind(1)
            last = self.finals.first(len(place))
            last["obs"] = map_tree(
                lambda some, rows: torch.cat([some, rows[late]]), last["obs"], fields["obs"]
            )
            approximate = approximate.clamp(min=len(late[0]))
            fields["final"] = {**last, "t": place[:, 0], "env": place[:, 1]}
        self._refuse_not_finite(fields)
        self._note_episodes((fields["terminated"] | fields["truncated"]).nonzero())
        means = {name: torch.stack(numbers).mean() for name, numbers in log.items()}
        means["step_reward"] = fields["reward"][fields["valid"]].mean()
        self.log = dict(zip(means, torch.stack([*means.values()]).tolist(), strict=True))
        self._note_approximate(float(approximate))
        return as_rollout(fields)

    def _refuse_not_finite(self, fields: Mapping[str, Any]) -> None:
        """Raises a NotFiniteError that names environment, step and number, if a number is not finite."""
        parts = {
            "observation": fields["obs"],
            "reward": fields["reward"],
            "next observation": fields["last_obs"],
        }
        if "final" in fields:
            parts["last observation of the episode"] = fields["final"]["obs"]
        leaves = [(path, leaf) for path, leaf in named_leaves(parts) if leaf.is_floating_point()]
        finite = torch.stack([leaf.isfinite().all() for _, leaf in leaves]).tolist()
        for ((name, *path), leaf), is_finite in zip(leaves, finite, strict=True):
            if is_finite:
                continue
            row, *column = first = (~leaf.isfinite()).nonzero()[0].tolist()
            if name in ("observation", "reward"):
                step, (env, *column) = row, column
            elif name == "next observation":
                step, env = self.steps, row
            else:
                step, env = (int(fields["final"][index][row]) for index in ("t", "env"))
            raise NotFiniteError(
                f"env {self.envs.index_offset + env}, step {step} of the rollout: {name}{path_text(path)}"
                f"{column or ''} = {leaf[tuple(first)].item()}, which is not finite; nothing was learned "
                "from this rollout"
            )

    def _note_episodes(self, place: Tensor) -> None:
        """Records the episodes that ended at some rows (M, 2), at most ``RECENT_EPISODES`` of them."""
        if self.greedy is not None:
            is_greedy = ~self.greedy.others[place[:, 1]]
            self.greedy.episodes[0] += self._episodes_at(place[is_greedy])
            place = place[~is_greedy]
        self.episode_count += len(place)
        self.episodes = self._episodes_at(place)
        self.recent += self.episodes

    def _episodes_at(self, place: Tensor) -> list[Episode]:
        count = min(len(place), RECENT_EPISODES)
        place = place[torch.linspace(0, len(place) - 1, count).long()] if count else place
        env = place[:, 1].tolist()
        returns, lengths = (self.rows[name][place.unbind(1)].tolist() for name in OF_EPISODES)
        return [Episode(*each, {}) for each in zip(env, returns, lengths, strict=True)]

    def _note_approximate(self, count: float) -> None:
        """Counts truncated episodes whose last observation is unknown."""
        if not count:
            return
        if self.strict:
            raise EnvContractError(f"{self.envs.backend}: {count:,.0f} {APPROXIMATE}")
        if not self._has_said:
            self.envs.say(f"WARNING: {count:,.0f} {APPROXIMATE}")
            self._has_said = True
        self.log["approximate_truncations"] = count

    def metrics(self) -> dict[str, float]:
        return {**self.log, **super().metrics()}


class GreedyEpisodes:
    """Evaluates by the episodes of the last environments of a simulator, which play greedily in all rollouts.

    Args:
        envs: of the simulator.
        count: of these environments.
        ranks: that share an evaluation.

    Attributes:
        first: the first of these environments.
        others: (N,), the environments that are learned from.
        episodes: since the last evaluation, of the last one, and of the one before.
    """

    def __init__(self, envs: TensorVectorEnv, count: int, ranks: Ranks = ALONE) -> None:
        self.envs, self.first, self.ranks = envs, envs.num_envs - count, ranks
        self.others = torch.arange(envs.num_envs, device=envs.device) < self.first
        self.episodes: list[list[Episode]] = [[], [], []]

    def evaluate(self, iteration: Any, attempt: int = 0) -> Evaluation:
        """Returns the episodes since the last evaluation; with ``attempt`` 1 those of the one before."""
        if not attempt:
            self.episodes = [[], *self.episodes[:2]]
        return Evaluation.of(self.episodes[1 + attempt], self.ranks)

    def state_dict(self) -> dict[str, Any]:
        return {"episodes": [[list(episode) for episode in each] for each in self.episodes]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.episodes = [[Episode(*episode) for episode in each] for each in state["episodes"]]


class LastObservations:
    """The last observations (K, ...) of truncated episodes, in memory that is written without a wait.

    Args:
        room: number of episodes that have room.
        device: of the simulator.
    """

    def __init__(self, room: int, device: torch.device) -> None:
        self.room, self._rows = room, None
        self._count = torch.zeros((), dtype=torch.int64, device=device)

    def begin(self) -> None:
        """Begins a rollout."""
        self._count.zero_()

    def add(self, cut: Tensor, last: Tree) -> None:
        """Adds the rows of ``last`` (N, ...) where ``cut`` (N,) is True."""
        if self._rows is None:
            self._rows = map_tree(lambda leaf: leaf.new_zeros((self.room + 1, *leaf.shape[1:])), last)
        place = self._count + cut.cumsum(0) - 1
        place = place.masked_fill(~cut, self.room).clamp(max=self.room)  # the last row takes all others
        map_tree(lambda rows, leaf: rows.index_copy_(0, place, leaf), self._rows, last)
        self._count += cut.sum()

    def first(self, count: int) -> dict[str, Any]:
        """Returns the first ``count`` rows that were added; more have room in the next rollout."""
        found: dict[str, Any] = map_tree(lambda rows: rows[: min(count, self.room)], self._rows)
        if count > self.room:
            self.room, self._rows = 2 * count, None
        return found
