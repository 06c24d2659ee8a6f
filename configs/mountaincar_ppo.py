"""Classic control: MountainCar-v0.

Short rollouts, scaled observations and rewards, as in rl-zoo.

ding-lite train -c mountaincar_ppo
"""

environments = {"MountainCar-v0": {}}  # `train --env` trains these with this config
config = dict(
    env=dict(env_id="MountainCar-v0", collector_env_num=16, evaluator_env_num=8),
    policy=dict(
        recompute_adv=True,
        learn=dict(epoch_per_collect=4, learning_rate=1e-3, lr_schedule="linear", value_norm_std=1.0),
        collect=dict(n_sample=256, gae_lambda=0.98),
        normalize=dict(obs=True, reward=True),
        eval=dict(eval_freq=100_000),
    ),
)
