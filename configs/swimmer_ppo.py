"""Swimmer-v5 (extra mujoco): with a discount near 1, as in rl-zoo.

pip install "ding_lite[mujoco]"
ding-lite train -c swimmer_ppo
"""

config = dict(
    seed=0,
    max_env_step=1_000_000,
    env=dict(env_id="Swimmer-v5", collector_env_num=4, evaluator_env_num=8, n_evaluator_episode=16),
    policy=dict(
        type="ppo",
        recompute_adv=True,
        learn=dict(epoch_per_collect=10, batch_size=256, learning_rate=6e-4, value_norm=True),
        collect=dict(n_sample=4096, discount_factor=0.9999, gae_lambda=0.98),
        normalize=dict(obs=True, reward=True),
        eval=dict(eval_freq=50_000),
    ),
)
