"""FrozenLake-v1, 4 x 4, not slippery: a Discrete observation with an embedding. Reaches 1.0 in seconds.

ding-lite train -c frozenlake_ppo
"""

config = dict(
    seed=0,
    max_env_step=100_000,
    env=dict(
        env_id="FrozenLake-v1",
        kwargs=dict(map_name="4x4", is_slippery=False),
        collector_env_num=16,
        evaluator_env_num=4,
        n_evaluator_episode=4,
        stop_value=1.0,
    ),
    policy=dict(
        type="ppo",
        learn=dict(
            epoch_per_collect=4, batch_size=256, learning_rate=1e-3, entropy_weight=0.05, value_norm=True
        ),
        collect=dict(n_sample=2048, discount_factor=0.98, gae_lambda=0.95),
        eval=dict(eval_freq=10_000),
    ),
)
