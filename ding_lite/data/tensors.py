"""Collects rollouts of tensors, which stay on the simulator's device.

No step waits for the device, except to convert MultiDiscrete, MultiBinary and squashed actions on the host.

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
from ding_lite.envs.masks import without_legal_action
from ding_lite.envs.tensor import APPROXIMATE, TensorVectorEnv
from ding_lite.envs.vector import ALL, RECENT_EPISODES, Episode
from ding_lite.errors import ContractError, EnvContractError, EnvError, NotFiniteError
from ding_lite.ranks import ALONE, Ranks
from ding_lite.trees import MASK_KEY, Tree, map_tree, named_leaves, path_text

OF_EPISODES = ("episode_return", "episode_length")  # rows that are not fields of a rollout


class TensorCollector(Collector):
    """A :class:`Collector` for the N environments of a simulator that returns tensors.

    Args:
        envs, policy, n_sample: as in :class:`Collector`.
        strict: raise an error if the last observation of a truncated episode is unknown.
        greedy: receives the episodes of the last environments, which act greedily; their rows are not valid.

    Attributes:
        rows: the tensors (T, N, ...) that every rollout is written into, by name; ``storage`` is not used.
        current: current observations (N, ...).
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
        self._has_warned = not envs.has_last_obs  # by the notes of envs, that values are approximate
        super().__init__(envs, policy, n_sample)
        self.finals = LastObservations(self.n_sample, envs.device)

    def _start_from(self, obs: Tree) -> None:
        self.current = to_device(obs, self.envs.device)
        if self.hidden is not None:
            self.hidden.reset_all()

    def collect(self) -> Rollout:
        envs, hidden, finals, greedy = self.envs, self.hidden, self.finals, self.greedy
        if self.is_incomplete:
            self._reset("after an error", self.episode_count)
        acting = self.policy.acting(self.n_sample, on_device=not self.on_host)
        log: dict[str, list[Tensor]] = {}
        approximate = torch.zeros((), dtype=torch.int64, device=envs.device)
        self.is_incomplete = True
        finals.clear()
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
                    of_last = [map_tree(lambda x: x[greedy.first :], x) for x in (inputs, *before.values())]
                    greedily = to_device(acting.to_env(acting.greedy(*of_last)["action"]), envs.device)
                    action = map_tree(lambda x, y: torch.cat([x[: greedy.first], y]), action, greedily)
                self.timer("env")
                step = envs.step_tensors(action)
                self.timer("store")
                after = {name: output.pop(name) for name in before}
                learned = step if greedy is None else step._replace(valid=step.valid & greedy.others)
                self._fields = acting.process_transition(obs, output, learned)
                of_episodes = dict(zip(OF_EPISODES, (step.returns, step.lengths), strict=True))
                for name, value in {**self._fields, **of_episodes}.items():
                    self._write(t, name, value)
                if step.final_obs is None:  # the observation before is used instead
                    finals.add(step.truncated, {"obs": obs, **before})
                    approximate += step.truncated.sum()
                else:
                    finals.add(step.truncated, {"obs": step.final_obs, **after})
                for name, value in step.log.items():  # a copy: a simulator may overwrite its tensor
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
        if name not in self.rows:
            self.rows[name] = map_tree(lambda leaf: leaf.new_zeros((self.steps, *leaf.shape)), value)
        return map_tree(lambda rows, leaf: rows[t].copy_(leaf), self.rows[name], value)

    def _rollout(self, approximate: Tensor, log: Mapping[str, list[Tensor]]) -> Rollout:
        """Checks the rollout and returns it; the checks wait for the device.

        Args:
            approximate: number of truncated episodes whose last observations are unknown.
            log: the simulator's own metrics at each step.
        """
        fields = {name: self.rows[name] for name in ("obs", *self._fields)}
        if not fields["valid"].any():
            raise EnvError(f"none of the {self.n_sample} rows of a rollout is a step: all are resets")
        fields["last_obs"] = map_tree(torch.clone, self.current)
        if self.hidden is not None:
            fields |= self.hidden.fields()
        cuts = fields["truncated"].nonzero()
        if len(cuts):
            fields["final"] = {**self.finals.first(len(cuts)), "t": cuts[:, 0], "env": cuts[:, 1]}
        self._refuse_not_finite(fields)
        if self._watch.is_masked:
            masks = map_tree(lambda x: view(x.flatten(0, 1)), fields["obs"][MASK_KEY])
            stuck = without_legal_action(masks, self.envs.action_space) & view(fields["valid"]).ravel()
            if stuck.any():
                step, env = divmod(int(stuck.argmax()), self.envs.num_envs)
                raise EnvContractError(
                    f"env {self.envs.index_offset + env}, step {step} of the rollout: {MASK_KEY} leaves no "
                    "legal action; nothing was learned from this rollout"
                )
        self._note_episodes((fields["terminated"] | fields["truncated"]).nonzero())
        means = {name: torch.stack(numbers).mean() for name, numbers in log.items()}
        means["step_reward"] = fields["reward"][fields["valid"]].mean()
        self.log = dict(zip(means, torch.stack([*means.values()]).tolist(), strict=True))
        if count := float(approximate):  # warns once, raises if strict
            if self.strict:
                raise EnvContractError(f"{self.envs.backend}: {count:,.0f} {APPROXIMATE}")
            if not self._has_warned:
                self.envs.say(f"WARNING: {count:,.0f} {APPROXIMATE}")
                self._has_warned = True
            self.log["approximate_truncations"] = count
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

    def _note_episodes(self, ends: Tensor) -> None:
        """Records the episodes that ended at rows ``ends`` (M, 2), at most ``RECENT_EPISODES`` of them."""
        if self.greedy is not None:
            is_greedy = ~self.greedy.others[ends[:, 1]]
            self.greedy.episodes[0] += self._episodes_at(ends[is_greedy])
            ends = ends[~is_greedy]
        self.episode_count += len(ends)
        self.episodes = self._episodes_at(ends)
        self.recent += self.episodes

    def _episodes_at(self, ends: Tensor) -> list[Episode]:
        count = min(len(ends), RECENT_EPISODES)
        ends = ends[torch.linspace(0, len(ends) - 1, count).long()] if count else ends
        env = ends[:, 1].tolist()
        returns, lengths = (self.rows[name][ends.unbind(1)].tolist() for name in OF_EPISODES)
        return [Episode(*values, {}) for values in zip(env, returns, lengths, strict=True)]

    def metrics(self) -> dict[str, float]:
        return {**self.log, **super().metrics()}


class GreedyEpisodes:
    """Evaluates with the last environments of a simulator, which act greedily in all rollouts.

    Args:
        envs: all environments of the simulator.
        count: number of greedy environments.
        ranks: each adds its episodes to an evaluation.

    Attributes:
        first: index of the first greedy environment.
        others: (N,), True for the environments that the policy learns from.
        episodes: three lists: since the last evaluation, of the last evaluation, of the one before it.
    """

    def __init__(self, envs: TensorVectorEnv, count: int, ranks: Ranks = ALONE) -> None:
        self.envs, self.first, self.ranks = envs, envs.num_envs - count, ranks
        self.others = torch.arange(envs.num_envs, device=envs.device) < self.first
        self.episodes: list[list[Episode]] = [[], [], []]

    def evaluate(self, iteration: Any, attempt: int = 0) -> Evaluation:
        """Returns the episodes since the last evaluation; with ``attempt`` 1, the episodes before these."""
        if not isinstance(iteration, int):
            raise ContractError("env.greedy_env_num: a script calls evaluate(policy, env) in place of this")
        if not attempt:
            self.episodes = [[], *self.episodes[:2]]
        return Evaluation.of(self.episodes[1 + attempt], self.ranks)

    def state_dict(self) -> dict[str, Any]:
        return {"episodes": [[list(episode) for episode in part] for part in self.episodes]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.episodes = [[Episode(*episode) for episode in part] for part in state["episodes"]]


class LastObservations:
    """The last observations (K, ...) of truncated episodes; adding them does not wait for the device.

    Args:
        capacity: most rows that are added between two calls of ``clear``.
        device: of the simulator.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.capacity, self._rows = capacity, None
        self._count = torch.zeros((), dtype=torch.int64, device=device)

    def clear(self) -> None:
        """Drops all rows, for a new rollout."""
        self._count.zero_()

    def add(self, cut: Tensor, last: Tree) -> None:
        """Adds the rows of ``last`` (N, ...) where ``cut`` (N,) is True."""
        if self._rows is None:
            self._rows = map_tree(lambda leaf: leaf.new_zeros((self.capacity + 1, *leaf.shape[1:])), last)
        index = self._count + cut.cumsum(0) - 1
        index = index.masked_fill(~cut, self.capacity)  # other rows go to the end
        # Hidden states are on the device of the policy.
        map_tree(lambda rows, leaf: rows.index_copy_(0, index.to(rows.device), leaf), self._rows, last)
        self._count += cut.sum()

    def first(self, count: int) -> dict[str, Any]:
        """Returns the first ``count`` added rows."""
        return map_tree(lambda rows: rows[:count], self._rows)
