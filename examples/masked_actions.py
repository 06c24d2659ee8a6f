"""Masked actions: a maze in which moves into walls are illegal. The best mean return is -7.

ding-lite train -c examples/masked_actions.py
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

MAZE = (
    "S.#....",
    ".##.##.",
    "....#..",
    ".##...#",
    "...#.#.",
    "##...#.",
    "...#..G",
)
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))  # up, down, left, right


class Maze(gym.Env):
    """A maze: walk from a random free cell to G. The reward is -1 per step; 60 steps at most.

    The observation is a Dict with the index of the cell and "action_mask": four numbers, 1 for each legal
    move. An illegal move raises an error, which proves that a policy respects the mask.
    """

    observation_space = gym.spaces.Dict(
        {"cell": gym.spaces.Discrete(49), "action_mask": gym.spaces.MultiBinary(4)}
    )
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        free = [(r, c) for r in range(7) for c in range(7) if MAZE[r][c] not in "#G"]
        self.cell = free[self.np_random.integers(len(free))]
        self.time = 0
        return self._observation(), {}

    def step(self, action: int) -> Any:
        if not self._mask()[action]:
            raise ValueError(f"move {action} from {self.cell} leads into a wall; the mask forbids it")
        row, column = self.cell
        self.cell = row + MOVES[action][0], column + MOVES[action][1]
        self.time += 1
        at_goal = MAZE[self.cell[0]][self.cell[1]] == "G"
        return self._observation(), -1.0, at_goal, self.time >= 60, {}

    def _mask(self) -> np.ndarray:
        cells = [(self.cell[0] + down, self.cell[1] + right) for down, right in MOVES]
        return np.array([0 <= r < 7 and 0 <= c < 7 and MAZE[r][c] != "#" for r, c in cells], np.int8)

    def _observation(self) -> dict[str, Any]:
        return {"cell": np.int64(self.cell[0] * 7 + self.cell[1]), "action_mask": self._mask()}


config = dict(
    max_env_step=50_000,
    env=dict(type=Maze, collector_env_num=16, evaluator_env_num=8, n_evaluator_episode=64, stop_value=-7.5),
    policy=dict(
        learn=dict(epoch_per_collect=4, batch_size=256, learning_rate=1e-3, lr_schedule="linear"),
    ),
)
