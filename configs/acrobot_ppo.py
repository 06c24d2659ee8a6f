"""Classic control: Acrobot-v1.

Observations are scaled, as in rl-zoo. The return is about -83 after 500k steps.

ding-lite train -c acrobot_ppo
"""

environments = {"Acrobot-v1": {}}  # `train --env` trains these with this config
config = dict(
    max_env_step=500_000,
    env=dict(env_id="Acrobot-v1", collector_env_num=16, evaluator_env_num=8),
    policy=dict(
        learn=dict(
            epoch_per_collect=4,
            batch_size=256,
            learning_rate=1e-3,
            lr_schedule="linear",
            value_norm_std=1.0,
        ),
        collect=dict(n_sample=4096, gae_lambda=0.94),
        normalize=dict(obs=True),
        eval=dict(eval_freq=50_000),
    ),
)
