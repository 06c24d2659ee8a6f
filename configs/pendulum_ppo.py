"""Classic control: Pendulum-v1.

A short horizon (gamma 0.9) makes it easy. About -182 after 200k steps.

ding-lite train -c pendulum_ppo
"""

environments = {"Pendulum-v1": {}}  # that `train --env` trains with this config
config = dict(
    max_env_step=200_000,
    env=dict(env_id="Pendulum-v1", evaluator_env_num=8),
    policy=dict(
        learn=dict(batch_size=128, learning_rate=1e-3, lr_schedule="linear", value_norm=False, adam_eps=1e-5),
        collect=dict(discount_factor=0.9),
        eval=dict(eval_freq=20_000),
    ),
)
