"""Steps the environments with the policy, and hands over one rollout at a time.

obs (B, ...) --policy--> action, log_prob --envs--> transition --storage--> rollout (T, B)

Where the environments are two groups, one steps in its worker processes while the policy acts on the other.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ding_lite.envs.finite import DROP
from ding_lite.envs.spaces import batch_of_actions, tree_map
from ding_lite.envs.vector import VectorEnv
from ding_lite.envs.watch import Watch
from ding_lite.errors import NotFiniteError
from ding_lite.machine import leaving_cores
from ding_lite.quota import EpisodeQuota
from ding_lite.rollout import Rollout, RolloutStorage
from ding_lite.seeding import integer_seed
from ding_lite.types import MASK_KEY, RECENT_EPISODES, CollectMode, Episode, Transition, Tree


class Collector:
    """Collects rollouts of T = ceil(n_sample / B) steps from B environments, or of whole episodes.

    Args:
        envs: stepped by this collector alone.
        mode: of the policy that acts.
        n_sample: transitions in a rollout, rounded up to whole steps.
        n_episode: makes it so many whole episodes in their place, an equal share for each environment.
            Rows after an environment's share are not valid, and the next rollout begins all anew.
    """

    def __init__(
        self, envs: VectorEnv, mode: CollectMode, n_sample: int, n_episode: int | None = None
    ) -> None:
        self.envs, self.mode = envs, mode
        self._watch = Watch(envs, "; nothing of this rollout was learned from")
        self.steps = math.ceil(n_sample / envs.num_envs)
        self.quota = None if n_episode is None else EpisodeQuota(n_episode, envs.num_envs)
        self.storage = RolloutStorage(self.steps, envs.num_envs)
        self._numbers = [np.arange(envs.num_envs)[rows] for rows in envs.groups]
        # Of the rollout that is being collected, at row t: ends with their observations, and spoiled steps.
        self._final_rows: list[tuple[int, np.ndarray, Tree]] = []
        self._spoiled: list[tuple[int, np.ndarray]] = []
        self._go_on_from(self._watch.reset("collect"))
        self.finished: deque[tuple[float, int]] = deque(maxlen=RECENT_EPISODES)
        self.episodes: list[Episode] = []  # finished in the last rollout
        self.episode_count = 0
        self.bad_values = 0  # in the last rollout

    @property
    def n_sample(self) -> int:
        """Rows in a rollout: T * B; of whole episodes, as far as is foreseen."""
        return self.steps * self.envs.num_envs

    def collect(self) -> Rollout:
        """Returns one rollout with advantages; its memory is used again by the next one.

        Raises:
            EnvContractError: if an observation or a reward is not finite (where env.on_bad_value bears them:
            if no row is left), an index is outside of its range, or a mask leaves no action; nothing is
            learned from such a rollout.
        """
        storage, envs = self.storage, self.envs
        self._begin()
        bad_before = envs.bad_values
        with torch.inference_mode(), leaving_cores(envs.busy_cores), self.mode.acting(self.mode):
            last_obs = self._play()
        steps = self.steps if self.quota is None else self.quota.steps
        self.bad_values = envs.bad_values - bad_before
        if self._spoiled and envs.on_bad_value == DROP:
            self._drop()
        self._cut_lost(steps)
        if self.bad_values and not storage.array("valid")[:steps].any():
            raise NotFiniteError(
                f"all {steps * envs.num_envs} steps of a rollout are lost to values that are not finite; "
                f"env.on_bad_value={envs.on_bad_value!r} is for those that are rare"
            )
        self.finished.extend((e.episode_return, e.length) for e in self.episodes)
        self.episode_count += len(self.episodes)
        others = {"last_obs": last_obs}
        if self._final_rows:
            others["final"] = _final(self._final_rows)
        return self.mode.get_train_sample(storage.rollout(steps, **others))

    def _begin(self) -> None:
        """Makes everything ready for a rollout."""
        for group, sent in enumerate(self._sent):
            if sent is not None:  # when the last rollout was broken off
                self._receive(group)
        if self.quota is not None:
            self.quota.begin()
            self._go_on_from(self._watch.reset("collect", "episodes", self.episode_count))
        self.episodes, self._final_rows, self._spoiled = [], [], []
        self.storage.begin()

    def _play(self) -> Tree:
        """Acts until the rollout is full, and returns the observations (B, ...) after its last row."""
        groups, last, t = range(len(self.envs.groups)), RolloutStorage(1, self.envs.num_envs), 0
        while t < self.steps if self.quota is None else not self.quota.is_met:
            self.storage.reserve(t + 1)
            for group in groups:
                if t:
                    self._end_row(t - 1, group)
                self._begin_row(t, group)
            t += 1
        for group in groups:
            self._end_row(t - 1, group)
            last.write(0, "obs", self.obs[group], self.envs.groups[group])
        obs: Tree = tree_map(lambda rows: rows[0], last.array("obs"))
        return obs

    def _begin_row(self, t: int, group: int) -> None:
        """Acts on what a group of environments shows, and sends it the actions."""
        # The row of the storage stays as it is; the environments may reuse their arrays.
        obs = self.storage.write(t, "obs", self.obs[group], self.envs.groups[group])
        output = self.mode.forward(obs)
        self.envs.send(self.mode.to_env(output["action"]), group)
        self._sent[group] = obs, output

    def _end_row(self, t: int, group: int) -> None:
        """Receives what came of it, and stores the rest of the row."""
        (obs, output), shown = self._sent[group], self._receive(group)
        rows, numbers = self.envs.groups[group], self._numbers[group]
        transition = shown if self.quota is None else self.quota.count(t, shown, numbers)
        for name, value in self.mode.process_transition(obs, output, transition).items():
            if name != "obs":
                self.storage.write(t, name, value, rows)
        if transition.final_obs is not None:
            self._final_rows.append((t, numbers[transition.final_env], transition.final_obs))
        if transition.spoiled:
            self._spoiled.append((t, numbers[transition.spoiled]))
        self._watch.look(shown, numbers)
        episodes = transition.episodes
        if len(self._numbers) > 1:  # a group's environments have other numbers than the vector's
            episodes = [one._replace(env=int(numbers[one.env])) for one in episodes]
        self.episodes += episodes

    def _receive(self, group: int) -> Transition:
        transition = self.envs.receive(group)
        self.obs[group], self._sent[group] = transition.obs, None
        return transition

    def _go_on_from(self, obs: Tree) -> None:
        """Takes over what all environments show, none of which is stepping."""
        self.obs = [tree_map(lambda leaf, rows=rows: leaf[rows], obs) for rows in self.envs.groups]
        # Of each group obs and output of the row that is on its way.
        self._sent: list[Any] = [None] * len(self.obs)

    def _cut_lost(self, steps: int) -> None:
        """Ends the episodes that were lost with their worker at their last known observation.

        Only a lost one is open before a row that is not valid. That row was to be its next step: the
        action was chosen from the observation that is now its last. Where this is the first row of the
        rollout, there is nothing to do: the rollout before was cut there anyway.
        """
        valid, terminated, truncated = (
            self.storage.array(name)[:steps] for name in ("valid", "terminated", "truncated")
        )
        lost = valid[:-1] & ~terminated[:-1] & ~truncated[:-1] & ~valid[1:]
        for t in np.flatnonzero(lost.any(axis=1)).tolist():
            envs = np.flatnonzero(lost[t])
            truncated[t, envs] = True
            last = tree_map(lambda obs, t=t, envs=envs: obs[t + 1, envs], self.storage.array("obs"))
            self._final_rows.append((t, envs, last))

    def _drop(self) -> None:
        """Leaves out the rows of the episodes that ended in a value that is not finite.

        What went before in an earlier rollout has been learned from.
        """
        valid, terminated, truncated = map(self.storage.array, ("valid", "terminated", "truncated"))
        border = terminated | truncated | ~valid
        for t, envs in self._spoiled:
            for env in envs:
                borders = np.flatnonzero(border[:t, env])
                valid[borders[-1] + 1 if len(borders) else 0 : t, env] = False

    def random_observations(self, n: int, seed: int) -> Tree:
        """Returns the observations (n, ...) of random steps, and begins all episodes anew after them.

        Actions are drawn from the action space; where observations carry masks, from the policy, whose
        untrained actions are nearly uniform over the legal ones.
        """
        envs = self.envs
        envs.action_space.seed(integer_seed(seed, "warm up"))
        obs, rows, numbers = self._watch.reset("warm up"), [], np.arange(envs.num_envs)
        for _ in range(math.ceil(n / envs.num_envs)):
            rows.append(tree_map(np.copy, obs))
            if isinstance(obs, dict) and MASK_KEY in obs:
                action = self.mode.to_env(self.mode.forward(obs)["action"])
            else:
                action = batch_of_actions(envs.action_space, envs.num_envs)
            transition = envs.step(action)
            self._watch.look(transition, numbers)
            obs = transition.obs
        self._go_on_from(self._watch.reset("collect"))
        return tree_map(lambda *leaves: np.concatenate(leaves)[:n], *rows)

    METRICS = (
        "episode_return",
        "episode_length",
        "episode_length_max",
        "episode_count",
        "env_restarts",
        "bad_values",
    )

    def metrics(self) -> dict[str, float]:
        """Returns the means over the recent finished episodes, and the longest of them.

        ``env_restarts`` counts since this collector was made: a resumed run begins at 0. ``bad_values`` are
        those of the last rollout.
        """
        counts = {
            "episode_count": float(self.episode_count),
            "env_restarts": float(self.envs.restarts),
            "bad_values": float(self.bad_values),
        }
        if not self.finished:
            return counts
        returns, lengths = zip(*self.finished, strict=True)
        return counts | {
            "episode_return": float(np.mean(returns)),
            "episode_length": float(np.mean(lengths)),
            "episode_length_max": float(max(lengths)),
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns the open episodes and the recent finished ones."""
        return {
            "envs": self.envs.state_dict(),
            "finished": np.array(self.finished, np.float64).reshape(-1, 2),
            "episode_count": self.episode_count,
        }

    def load_state_dict(self, state: Mapping[str, Any], *, new_episodes: bool = False) -> None:
        """Goes on in the middle of the open episodes, or with ``new_episodes`` in their place."""
        self.finished = deque(((float(r), int(n)) for r, n in state["finished"]), maxlen=RECENT_EPISODES)
        self.episode_count = int(state["episode_count"])
        if self.envs.restorable and not new_episodes:
            self._go_on_from(self.envs.load_state_dict(state["envs"]))
        else:
            # The open episodes were bootstrapped at the last row, as truncated ones are; they end there.
            self._go_on_from(self._watch.reset("collect", "resumed", self.episode_count))


def _final(rows: list[tuple[int, np.ndarray, Tree]]) -> dict[str, Any]:
    """Returns the true last observations (K, ...) and the rows t (K,) and envs (K,) they end."""
    times = [np.full(len(envs), t) for t, envs, _ in rows]
    return {
        "obs": tree_map(lambda *leaves: np.concatenate(leaves), *[obs for _, _, obs in rows]),
        "t": np.concatenate(times),
        "env": np.concatenate([envs for _, envs, _ in rows]),
    }
