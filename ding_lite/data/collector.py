"""Collects rollouts: steps the environments with the policy and stores each row.

obs (B, ...) --policy--> action --envs--> transition --storage--> rollout (T, B)

Environments in worker processes may form two groups: while one group steps, the policy acts for the other.

Shapes: T steps, B environments, G environments of one group, K final observations.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from ding_lite.data.episodes import means_of
from ding_lite.data.hidden import HiddenStates, ends_of
from ding_lite.data.modes import Acting, ActingPolicy
from ding_lite.data.rollout import Rollout, RolloutStorage
from ding_lite.envs.checks import Watch
from ding_lite.envs.spaces import sample_actions
from ding_lite.envs.vector import RECENT_EPISODES, Episode, VectorEnv
from ding_lite.envs.workers.cores import leaving_cores
from ding_lite.errors import EnvError, ReplayError
from ding_lite.rl.seeding import integer_seed
from ding_lite.trees import MASK_KEY, Tree, map_tree


class Collector:
    """Collects rollouts of T = ceil(n_sample / B) steps from B environments.

    Args:
        envs: only the collector steps them.
        policy: acts, and adds advantages to each rollout.
        n_sample: transitions in a rollout, rounded up to whole steps.

    Attributes:
        steps: T.
        n_sample: T B.
        obs: current observations of each group, (G, ...).
        recent: the most recent finished episodes.
        episodes: the episodes that finished in the last rollout.
        episode_count: finished episodes since the start of the run.
        is_incomplete: True while a rollout is being collected, and after one that failed.
    """

    def __init__(self, envs: VectorEnv, policy: ActingPolicy, n_sample: int) -> None:
        self.envs, self.policy, self.timer = envs, policy, policy.timer
        self._watch = Watch(envs, "; nothing was learned from this rollout")
        self.steps = math.ceil(n_sample / envs.num_envs)
        self.n_sample = self.steps * envs.num_envs
        self.storage = RolloutStorage(self.steps, envs.num_envs)
        self._env_indices = [np.arange(envs.num_envs)[rows] for rows in envs.groups]  # of each group
        self._fields: dict[str, Any] = {}  # of the newest row, beside the observations
        self.hidden: HiddenStates | None = None
        if policy.recurrence is not None:
            self.hidden = HiddenStates(policy.recurrence, self._env_indices, self.steps)
        # Truncated episodes of the current rollout: (t, environments, last observations and hidden states),
        # where t is the row of the truncation.
        self._finals: list[tuple[int, np.ndarray, dict[str, Tree]]] = []
        self._start_from(self._watch.reset("collect"))
        self.recent: deque[Episode] = deque(maxlen=RECENT_EPISODES)
        self.episodes: list[Episode] = []
        self.episode_count = 0
        self.is_incomplete = False

    def collect(self) -> Rollout:
        """Returns one rollout with advantages. The next rollout overwrites its memory.

        Shapes:
            -> (T, B)

        Raises:
            EnvContractError: if an observation or a reward is not finite, an index is outside of its range,
                or a mask leaves no legal action. Nothing is learned from this rollout.
            EnvError: if no row is valid.
        """
        if self.is_incomplete:  # an error ended the last rollout, maybe while a group was stepping
            self._reset("after an error", self.episode_count)
        self.is_incomplete = True
        self.episodes, self._finals = [], []
        acting = self.policy.acting(self.n_sample)
        with leaving_cores(self.envs.busy_cores) if self.envs.busy_cores else nullcontext():
            for t in range(self.steps + 1):
                for group, rows in enumerate(self.envs.groups):
                    if t:
                        self._finish_row(acting, t - 1, group)
                    # The policy reads the row of the storage: the environments may reuse their arrays.
                    obs = self.storage.write(t, "obs", self.obs[group], rows)
                    if t < self.steps:
                        self.timer("act")
                        hidden = () if self.hidden is None else (self.hidden.before(t, group, rows),)
                        output = acting.sample(obs, *hidden)
                        action = acting.to_env(output["action"])
                        self.timer("env")  # until a group is received
                        self.envs.send(action, group)
                        self._pending[group] = obs, output
        if not self.storage.arrays["valid"].any():
            raise EnvError(
                f"none of the {self.n_sample} rows of a rollout is a step: all are resets, or lost with a "
                "worker; raise policy.collect.n_sample, or correct the environment"
            )
        self.recent += self.episodes
        self.episode_count += len(self.episodes)
        others = {"last_obs": map_tree(lambda rows: rows[-1], self.storage.arrays["obs"])}
        if self.hidden is not None:
            others |= self.hidden.fields()
        if self._finals:
            cut_rows, envs_of_rows, last = zip(*self._finals, strict=True)
            others["final"] = {
                **map_tree(lambda *leaves: np.concatenate(leaves), *last),  # (K, ...)
                "t": np.repeat(cut_rows, [len(env_indices) for env_indices in envs_of_rows]),
                "env": np.concatenate(envs_of_rows),
            }
        self.is_incomplete = False
        self.timer("advantages")
        return acting.finish(self.storage.rollout("obs", *self._fields, **others))

    def _finish_row(self, acting: Acting, t: int, group: int) -> None:
        """Waits for the transition of row ``t`` of a group of environments, and stores it."""
        obs, output = self._pending[group]
        transition = self.envs.receive()
        self.timer("store")
        self.obs[group] = transition.obs
        rows, env_indices = self.envs.groups[group], self._env_indices[group]
        # With has_fillers, invalid rows are resets. count_nonzero takes a sixth of the time of all().
        if t and not self.envs.has_fillers and np.count_nonzero(transition.valid) < len(env_indices):
            self._cut_lost_episodes(t, group, obs, transition.valid)
        if self.hidden is not None:
            output = dict(output)
            hidden = output.pop("hidden")
            self.hidden.after(group, hidden, ends_of(transition))
        self._fields = acting.process_transition(obs, output, transition)
        for name, value in self._fields.items():
            self.storage.write(t, name, value, rows)
        if transition.final_obs is not None:
            final = {"obs": transition.final_obs}
            if self.hidden is not None:
                cut = torch.from_numpy(transition.final_env)
                final["hidden"] = map_tree(lambda leaf: leaf[cut].cpu(), hidden)
            self._finals.append((t, env_indices[transition.final_env], final))
        self._watch.look(transition, rows)
        # A transition numbers the environments of its group from 0.
        self.episodes += [ended._replace(env=int(env_indices[ended.env])) for ended in transition.episodes]

    def _start_from(self, obs: Tree) -> None:
        """Sets the current observations (B, ...); no environment may be stepping."""
        self.obs = [map_tree(lambda leaf, rows=rows: leaf[rows], obs) for rows in self.envs.groups]
        # For each group: observations and policy output of the row that is being stepped.
        self._pending: list[Any] = [None] * len(self.obs)
        if self.hidden is not None:
            self.hidden.reset_all()

    def _reset(self, *stream: str | int) -> None:
        """Resets all environments, seeded by ``stream``; without ``seed_every``, by the first seeds again."""
        self._start_from(self._watch.reset("collect", *(stream if self.envs.seed_every else ())))

    def _cut_lost_episodes(self, t: int, group: int, obs: Tree, valid: np.ndarray) -> None:
        """Truncates the episodes that a worker lost, at their last known observations.

        An episode was lost if it was open after row ``t - 1`` and row ``t`` is not valid: no environment
        executed the policy's action for its last observation. A loss at row 0 truncates nothing: the previous
        rollout bootstrapped from that observation.
        """
        was_valid, terminated, truncated = (
            self.storage.arrays[name][t - 1, self.envs.groups[group]]
            for name in ("valid", "terminated", "truncated")
        )
        lost = np.flatnonzero(was_valid & ~terminated & ~truncated & ~valid)
        if len(lost):
            truncated[lost] = True  # in the storage
            final = {"obs": map_tree(lambda leaf: leaf[lost], obs)}
            if self.hidden is not None:
                final["hidden"] = map_tree(lambda leaf: leaf[lost].cpu(), self.hidden.of_groups[group])
            self._finals.append((t - 1, self._env_indices[group][lost], final))

    def random_observations(self, n: int, seed: int, *stream: str | int) -> Tree:
        """Returns the observations of random steps, and resets all environments afterwards.

        Actions are samples of the action space; with action masks, the policy draws them.

        Args:
            n: number of observations.
            seed: of the run.
            stream: completes the name of the random stream that seeds the action space.

        Shapes:
            -> (n, ...)

        Raises:
            EnvContractError: as :meth:`collect`.
        """
        envs, acting = self.envs, self.policy.acting()
        envs.action_space.seed(integer_seed(seed, "warm up", *stream))
        obs = self._watch.reset("warm up")
        rows = []
        for _ in range(math.ceil(n / envs.num_envs)):
            rows.append(map_tree(np.copy, obs))
            if isinstance(obs, dict) and MASK_KEY in obs:
                action = acting.to_env(acting.sample(obs)["action"])
            else:
                action = sample_actions(envs.action_space, envs.num_envs)
            transition = envs.step(action)
            self._watch.look(transition)
            obs = transition.obs
        self._start_from(self._watch.reset("collect"))
        return map_tree(lambda *leaves: np.concatenate(leaves)[:n], *rows)

    def metrics(self) -> dict[str, float]:
        """Returns counts, means of finished episodes, and the mean of each key of ``env.info_keys``.

        Returns, lengths and means are taken over the most recent finished episodes, and are missing before
        the first one. ``env_restarts`` counts from 0 in a resumed run.
        """
        counts = {"episode_count": float(self.episode_count), "env_restarts": float(self.envs.restarts)}
        if not self.recent:
            return counts
        lengths = [episode.length for episode in self.recent]
        return {
            **means_of(episode.info for episode in self.recent),
            **counts,
            "episode_return": float(np.mean([episode.episode_return for episode in self.recent])),
            "episode_length": float(np.mean(lengths)),
            "episode_length_max": float(max(lengths)),
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the environments, the recent finished episodes and their count.

        During a rollout, such as after an environment has failed, this is the state before the rollout,
        without the open episodes.
        """
        # A resumed run repeats calls before a reset: it cannot repeat those made during an open episode.
        is_whole = self.envs.restorable and not (self.is_incomplete or self.envs.calls)
        return {
            "envs": self.envs.state_dict() if is_whole else None,
            "hidden": None if self.hidden is None else self.hidden.state_dict(),
            "recent": [list(episode) for episode in self.recent],
            "episode_count": self.episode_count,
            "calls": dict(self.envs.calls),
        }

    def load_state_dict(self, state: Mapping[str, Any], *, new_episodes: bool = False) -> str | None:
        """Restores the state.

        Args:
            state: as :meth:`state_dict` returns it.
            new_episodes: whether to reset the environments instead of continuing the open episodes.

        Returns:
            the reason why the environments were reset; None if the open episodes continue.
        """
        self.recent = deque((Episode(*episode) for episode in state["recent"]), maxlen=RECENT_EPISODES)
        self.episode_count = int(state["episode_count"])
        self.envs.repeat_calls(state["calls"])
        self.is_incomplete = False
        reason = "the checkpoint has no open episodes for these environments"
        if self.envs.restorable and not new_episodes and state["envs"] is not None:
            try:
                self._start_from(self.envs.load_state_dict(state["envs"]))
                if self.hidden is not None:
                    self.hidden.load_state_dict(state["hidden"])
                return None
            except ReplayError as error:
                reason = str(error)
        # The last rollout bootstrapped the open episodes at its last row, like truncated ones.
        self._reset("resumed", self.episode_count)
        return reason
