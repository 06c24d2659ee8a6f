"""Training inside a program that runs the loop over iterations itself.

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
    for progress in pipeline:  # one iteration: collect, learn, and evaluate when it is due
        if progress.evaluation:
            print(f"{progress.env_step:>8} steps  return {progress.evaluation.mean:.1f}")
        if progress.metrics["learn/approx_kl"] > 0.1:
            pipeline.policy.learning_rate /= 2  # the initial value of the schedule; saved in checkpoints
        if time.monotonic() - started > TIME_LIMIT_S:
            break  # the run is saved; `ding-lite train --resume` continues it
    pipeline.close()
    play(load_policy(pipeline.folder))


def play(policy):
    """Plays one episode; ``policy.act`` maps an observation to an action."""
    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    episode_return = 0.0
    done = False
    while not done:
        obs, reward, terminated, truncated, _ = env.step(policy.act(obs))
        episode_return += reward
        done = terminated or truncated
    env.close()
    print(f"one episode: {episode_return:.0f}")


if __name__ == "__main__":
    main()
