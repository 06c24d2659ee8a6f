"""A Dict observation: a camera's image with a vector beside it, each with an encoder of its own.

python examples/dict_observation.py
"""

import gymnasium as gym
import numpy as np

from ding_lite import SerialPipeline, load_policy


class Lamps(gym.Env):
    """Shows a lamp on the left or on the right; the order says whether to choose its side or the other."""

    observation_space = gym.spaces.Dict(
        {
            "camera": gym.spaces.Box(0, 255, (16, 16, 1), np.uint8),
            "order": gym.spaces.Box(-1.0, 1.0, (1,), np.float32),
        }
    )
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def observe(self):
        self.side, wants_lamp = self.np_random.integers(2, size=2)
        camera = np.zeros((16, 16, 1), np.uint8)
        camera[4:12, 8 * self.side : 8 * self.side + 8] = 255
        self.right_answer = self.side if wants_lamp else 1 - self.side
        return {"camera": camera, "order": np.array([2.0 * wants_lamp - 1.0], np.float32)}

    def step(self, action):
        reward = float(action == self.right_answer)
        self.t += 1
        return self.observe(), reward, self.t == 8, False, {}


if __name__ == "__main__":
    config = dict(
        exp_name="lamps_ppo",
        max_env_step=60_000,
        num_threads=1,  # these images are small
        env=dict(type=Lamps, stop_value=7.5),
        policy=dict(
            # One encoder for each branch of the observation. The default of a branch is "small_cnn" for
            # images of 16 to 35 pixels, "mlp" for numbers.
            model=dict(encoder=dict(order=dict(type="mlp", hidden_size_list=[16]))),
            learn=dict(learning_rate=1e-3, batch_size=256, epoch_per_collect=4),
            collect=dict(n_sample=1024, discount_factor=0.0),  # an answer has no consequences
            eval=dict(eval_freq=2_000),
        ),
    )
    pipeline = SerialPipeline(config)
    for progress in pipeline:
        if progress.evaluation:
            print(f"{progress.env_step:>8} steps  return {progress.evaluation.mean:.1f}")
    policy = load_policy(pipeline.folder)  # in another program with trust=["dict_observation"]
    obs, _ = Lamps().reset(seed=0)
    print("one action:", policy.act(obs))
