"""MountainCarContinuous-v0, where only exploration finds the reward. Reaches more than 90.

ding-lite train -c mountaincar_continuous_ppo
"""

config = dict(
    seed=0,
    max_env_step=200_000,
    env=dict(
        env_id="MountainCarContinuous-v0",
        collector_env_num=8,
        evaluator_env_num=8,
        n_evaluator_episode=16,
    ),
    policy=dict(
        type="ppo",
        recompute_adv=True,
        learn=dict(
            epoch_per_collect=10, batch_size=256, learning_rate=3e-4, lr_schedule="linear", value_norm=True
        ),
        collect=dict(n_sample=8192, discount_factor=0.9999, gae_lambda=0.95),
        normalize=dict(obs=True, reward=True),
        eval=dict(eval_freq=20_000),
    ),
)
