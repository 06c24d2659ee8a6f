"""HalfCheetah-v5 (extra mujoco), Tianshou's settings: 64 environments, less noise, advantages as they are.

pip install "ding_lite[mujoco]"
ding-lite train -c halfcheetah_tuned_ppo
"""

config = dict(
    seed=0,
    max_env_step=1_000_000,
    env=dict(env_id="HalfCheetah-v5", collector_env_num=64, evaluator_env_num=8, n_evaluator_episode=16),
    policy=dict(
        type="ppo",
        recompute_adv=True,
        model=dict(initial_sigma_value=0.6065),
        learn=dict(
            epoch_per_collect=10,
            batch_size=64,
            learning_rate=3e-4,
            lr_schedule="linear",
            adv_norm=False,
            value_weight=0.25,
            value_norm=True,
        ),
        collect=dict(n_sample=2048, discount_factor=0.99, gae_lambda=0.95),
        normalize=dict(obs=True, reward=True, reward_clip=10.0),
        eval=dict(eval_freq=100_000),
    ),
)
