"""A hybrid action (Dict of Discrete and Box, with one joint ratio), on hybrid_env.py. Reaches about -3.

ding-lite train -c hybrid_ppo
"""

config = dict(
    seed=0,
    max_env_step=200_000,
    env=dict(type="hybrid_env:Docking", collector_env_num=16, evaluator_env_num=8, n_evaluator_episode=32),
    policy=dict(
        type="ppo",
        learn=dict(
            epoch_per_collect=10, batch_size=256, learning_rate=1e-3, lr_schedule="linear", value_norm=True
        ),
        collect=dict(n_sample=4096, discount_factor=0.97, gae_lambda=0.95),
        eval=dict(eval_freq=50_000),
    ),
)
