"""Toy text: CliffWalking-v1.

The state is an index with an embedding. Finds the shortest path, of 13 steps.

The task itself has no limit of steps.

ding-lite train -c cliffwalking_ppo
"""

environments = {"CliffWalking-v1": {}}  # `train --env` trains these with this config
config = dict(
    max_env_step=200_000,
    env=dict(
        env_id="CliffWalking-v1",
        wrappers=[dict(type="time_limit", max_episode_steps=200)],
        collector_env_num=16,
        evaluator_env_num=4,
        n_evaluator_episode=4,
    ),
    policy=dict(
        learn=dict(
            batch_size=128,
            learning_rate=1e-3,
            lr_schedule="linear",
            entropy_weight=0.1,
            entropy_schedule="linear",
            value_norm_std=1.0,
        ),
        # A fall costs 100 and teaches some seeds to keep away from the edge and the goal behind it.
        normalize=dict(reward_clip=2.0),
        eval=dict(eval_freq=20_000),
    ),
)
