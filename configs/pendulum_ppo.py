"""Classic control: Pendulum-v1.

Scaled observations, and actions in -1 .. 1: the settings of `train --env` for a task without a config.

ding-lite train -c pendulum_ppo
"""

environments = {"Pendulum-v1": {}}  # `train --env` trains these with this config
config = dict(
    max_env_step=100_000,
    env=dict(env_id="Pendulum-v1", wrappers=["action_rescale"], evaluator_env_num=8),
    policy=dict(
        learn=dict(value_norm_std=3.0, adam_eps=1e-8),
        normalize=dict(obs=True),
        eval=dict(eval_freq=20_000),
    ),
)
