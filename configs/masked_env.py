"""A small world with masked actions: walls that cannot be walked into."""

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
    """Walk from a random free cell to G: -1 a step, at most 60 steps; moves into walls are illegal.

    The observation is a Dict with the cell's number and "action_mask": which of the four moves are legal.
    An illegal move is an error, so that a run shows that none is ever made.
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
        return self._seen(), {}

    def step(self, action: int) -> Any:
        if not self._mask()[action]:
            raise ValueError(f"move {action} from {self.cell} leads into a wall, and the mask said so")
        row, column = self.cell
        self.cell = row + MOVES[action][0], column + MOVES[action][1]
        self.time += 1
        at_goal = MAZE[self.cell[0]][self.cell[1]] == "G"
        return self._seen(), -1.0, at_goal, self.time >= 60, {}

    def _mask(self) -> np.ndarray:
        cells = [(self.cell[0] + down, self.cell[1] + right) for down, right in MOVES]
        return np.array([0 <= r < 7 and 0 <= c < 7 and MAZE[r][c] != "#" for r, c in cells], np.int8)

    def _seen(self) -> dict[str, Any]:
        return {"cell": np.int64(self.cell[0] * 7 + self.cell[1]), "action_mask": self._mask()}
