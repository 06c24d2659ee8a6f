"""Training as a part of your own program: the pipeline is an iterator, so the loop is yours.

python examples/embed_pipeline.py
"""

import time

import gymnasium as gym

from ding_lite import SerialPipeline, load_config, load_policy

TIME_LIMIT_S = 60


def main():
    config = load_config("cartpole_ppo", overrides=["seed=3", "policy.learn.epoch_per_collect=6"])
    pipeline = SerialPipeline(config)
    started = time.monotonic()
    for progress in pipeline:  # one turn: collect, learn and, when it is due, evaluate
        if progress.evaluation:
            print(f"{progress.env_step:>8} steps  return {progress.evaluation.mean:.1f}")
        if progress.metrics["learn/approx_kl"] > 0.1:
            pipeline.policy.learning_rate /= 2  # replaces the base of the schedule, and is saved
        if time.monotonic() - started > TIME_LIMIT_S:
            break  # saved as it is: `ding-lite train --resume` goes on from here
    play(load_policy(pipeline.folder))


def play(policy):
    """A trained policy is a function from an observation to an action."""
    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    total, done = 0.0, False
    while not done:
        obs, reward, terminated, truncated, _ = env.step(policy.act(obs))
        total, done = total + reward, terminated or truncated
    env.close()
    print(f"one episode: {total:.0f}")


if __name__ == "__main__":
    main()
