"""FrozenLake8x8-v1, slippery, so that the best policy reaches the goal in nine of ten episodes.

ding-lite train -c frozenlake8x8_ppo
"""

config = dict(
    exp_name="frozenlake8x8_ppo",
    seed=0,
    max_env_step=1_000_000,
    env=dict(env_id="FrozenLake8x8-v1", collector_env_num=16, evaluator_env_num=16, n_evaluator_episode=32),
    policy=dict(
        type="ppo",
        recompute_adv=False,
        learn=dict(
            epoch_per_collect=10,
            batch_size=128,
            learning_rate=1e-3,
            lr_schedule="linear",
            entropy_weight=0.1,
            entropy_schedule="linear",
        ),
        collect=dict(n_sample=2048, discount_factor=0.995, gae_lambda=0.95),
        eval=dict(eval_freq=100_000),
    ),
)
