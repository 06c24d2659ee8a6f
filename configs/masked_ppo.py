"""Masked actions (observation key "action_mask"), on the maze in masked_env.py. Reaches -7, the optimum.

ding-lite train -c masked_ppo
"""

config = dict(
    seed=0,
    max_env_step=50_000,
    env=dict(type="masked_env:Maze", collector_env_num=16, evaluator_env_num=8, n_evaluator_episode=64),
    policy=dict(
        type="ppo",
        learn=dict(
            epoch_per_collect=4, batch_size=256, learning_rate=1e-3, lr_schedule="linear", value_norm=True
        ),
        collect=dict(n_sample=2048, discount_factor=0.99, gae_lambda=0.95),
        eval=dict(eval_freq=10_000),
    ),
)
