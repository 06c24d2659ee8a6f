"""An environment: a cart on a rail that must stop at a target.

ding-lite train -c my_env.py
"""

import gymnasium as gym
import numpy as np


class MyEnv(gym.Env):
    """Pushes a cart to a random target on a rail from -1 to 1.

    Observation: position, velocity and target. Action: a force from -1 to 1. The reward is minus the distance
    to the target, and 10 for stopping there.

    Args:
        max_steps: length of an episode that does not reach the target.
    """

    def __init__(self, max_steps=100):
        self.max_steps = max_steps
        self.observation_space = gym.spaces.Box(-2.0, 2.0, (3,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # seeds self.np_random; draw only from it, so that a seed repeats an episode
        self.position, self.target = self.np_random.uniform(-1.0, 1.0, 2)
        self.velocity = 0.0
        self.steps = 0
        return self._observation(), {}

    def step(self, action):
        force = float(np.clip(action[0], -1.0, 1.0))
        self.velocity = np.clip(0.9 * self.velocity + 0.02 * force, -2.0, 2.0)
        self.position = np.clip(self.position + self.velocity, -2.0, 2.0)
        self.steps += 1
        distance = abs(self.position - self.target)
        # terminated: the task itself has ended, and no reward can follow. truncated: the episode was only
        # cut, here by its time limit; learning then bootstraps from the value of the last observation.
        terminated = bool(distance < 0.05 and abs(self.velocity) < 0.02)
        truncated = self.steps >= self.max_steps
        reward = 10.0 if terminated else -distance
        # env.info_keys names the numbers of the info dict that are written to episodes.csv.
        return self._observation(), float(reward), terminated, truncated, {"is_success": float(terminated)}

    def _observation(self):
        return np.array([self.position, self.velocity, self.target], np.float32)


config = dict(
    max_env_step=100_000,
    env=dict(
        type=MyEnv,
        kwargs=dict(max_steps=100),  # arguments of the class
        info_keys=["is_success"],
        evaluator_env_num=8,
        stop_value=5.0,  # ends when evaluations reach this return
    ),
    policy=dict(
        learn=dict(batch_size=256, learning_rate=1e-3),
        collect=dict(n_sample=2048, discount_factor=0.98),
    ),
)
