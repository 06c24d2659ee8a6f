"""MountainCar-v0 with rl-zoo's rollouts: short ones, scaled observations and rewards.

ding-lite train -c mountaincar_ppo
"""

config = dict(
    seed=0,
    max_env_step=1_000_000,
    env=dict(env_id="MountainCar-v0", collector_env_num=16, evaluator_env_num=8, n_evaluator_episode=16),
    policy=dict(
        type="ppo",
        recompute_adv=True,
        learn=dict(
            epoch_per_collect=4, batch_size=64, learning_rate=1e-3, lr_schedule="linear", value_norm=True
        ),
        collect=dict(n_sample=256, discount_factor=0.99, gae_lambda=0.98),
        normalize=dict(obs=True, reward=True),
        eval=dict(eval_freq=100_000),
    ),
)
