"""A custom environment: any ``gymnasium.Env``, named by its class, a callable, or a registered name.

python examples/custom_env.py
"""

import gymnasium as gym
import numpy as np

from ding_lite import ENV_REGISTRY, SerialPipeline


@ENV_REGISTRY.register("thermostat")
class Thermostat(gym.Env):
    """Keeps a room at 20 degrees by heating (up to 1) or cooling (down to -1), for 50 steps."""

    observation_space = gym.spaces.Box(-50.0, 50.0, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, outside=0.0):
        self.outside = outside

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # seeds self.np_random, the only source of randomness
        self.temperature = self.np_random.uniform(10.0, 30.0)
        self.t = 0
        return self.observe(), {}

    def observe(self):
        return np.array([self.temperature - 20.0, self.outside], np.float32)

    def step(self, action):
        self.temperature += 3.0 * float(action[0]) + 0.05 * (self.outside - self.temperature)
        self.t += 1
        reward = -abs(self.temperature - 20.0)
        # The task has no end of its own, so the time limit sets `truncated`, not `terminated`:
        # learning then bootstraps from the value of the last state.
        return self.observe(), reward, False, self.t >= 50, {}


if __name__ == "__main__":
    config = dict(
        exp_name="thermostat_ppo",
        max_env_step=60_000,
        # type=Thermostat (the class) and type="my_package.my_envs:Thermostat" work as well
        env=dict(type="thermostat", kwargs=dict(outside=5.0), stop_value=-12),
        policy=dict(
            learn=dict(learning_rate=1e-3, batch_size=256),
            collect=dict(n_sample=2048, discount_factor=0.95),
        ),
    )
    for progress in SerialPipeline(config):
        if progress.evaluation:
            print(f"{progress.env_step:>8} steps  return {progress.evaluation.mean:.1f}")
