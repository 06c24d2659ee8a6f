"""Classic control: MountainCarContinuous-v0.

Only exploration finds the reward. Reaches more than 90.

ding-lite train -c mountaincar_continuous_ppo
"""

environments = {"MountainCarContinuous-v0": {}}  # `train --env` trains these with this config
config = dict(
    max_env_step=200_000,
    env=dict(env_id="MountainCarContinuous-v0", evaluator_env_num=8),
    policy=dict(
        recompute_adv=True,
        learn=dict(batch_size=256, lr_schedule="linear", value_norm_std=1.0),
        collect=dict(n_sample=8192, discount_factor=0.9999),
        normalize=dict(obs=True, reward=True),
        eval=dict(eval_freq=20_000),
    ),
)
