"""MuJoCo: Swimmer-v5 (extra mujoco).

A discount near 1, as in rl-zoo.

pip install "ding_lite[mujoco]"
ding-lite train -c swimmer_ppo
"""

environments = {"Swimmer-v[45]": {}}  # `train --env` trains these with this config
config = dict(
    env=dict(env_id="Swimmer-v5", collector_env_num=4, evaluator_env_num=8),
    policy=dict(
        recompute_adv=True,
        learn=dict(batch_size=256, learning_rate=6e-4, value_norm_std=1.0),
        collect=dict(n_sample=4096, discount_factor=0.9999, gae_lambda=0.98),
        normalize=dict(obs=True, reward=True),
        eval=dict(eval_freq=50_000),
    ),
)
