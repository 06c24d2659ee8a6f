"""Acrobot-v1, with normalised observations, as in rl-zoo. Reaches about -80 within 500k steps.

ding-lite train -c acrobot_ppo
"""

config = dict(
    seed=0,
    max_env_step=500_000,
    env=dict(env_id="Acrobot-v1", collector_env_num=16, evaluator_env_num=8, n_evaluator_episode=16),
    policy=dict(
        type="ppo",
        learn=dict(
            epoch_per_collect=4, batch_size=256, learning_rate=1e-3, lr_schedule="linear", value_norm=True
        ),
        collect=dict(n_sample=4096, discount_factor=0.99, gae_lambda=0.94),
        normalize=dict(obs=True),
        eval=dict(eval_freq=50_000),
    ),
)
