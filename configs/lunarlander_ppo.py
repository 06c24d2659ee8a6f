"""LunarLander-v3 (extra box2d), with a long horizon, as in rl-zoo. Reaches more than 230 within 1M steps.

pip install "ding_lite[box2d]"
ding-lite train -c lunarlander_ppo
"""

config = dict(
    seed=0,
    max_env_step=1_000_000,
    env=dict(env_id="LunarLander-v3", collector_env_num=16, evaluator_env_num=8, n_evaluator_episode=16),
    policy=dict(
        type="ppo",
        learn=dict(
            epoch_per_collect=4,
            batch_size=256,
            learning_rate=1e-3,
            lr_schedule="linear",
            entropy_weight=0.01,
            entropy_schedule="linear",
            value_norm=True,
        ),
        collect=dict(n_sample=8192, discount_factor=0.999, gae_lambda=0.98),
        eval=dict(eval_freq=100_000),
    ),
)
