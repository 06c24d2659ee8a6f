"""BipedalWalker-v3 (extra box2d), after rl-zoo, with a discount of 0.99, not 0.999, and smaller rollouts.

pip install "ding_lite[box2d]"
ding-lite train -c bipedalwalker_ppo
"""

config = dict(
    seed=0,
    max_env_step=3_000_000,
    env=dict(env_id="BipedalWalker-v3", collector_env_num=32, evaluator_env_num=8, n_evaluator_episode=16),
    policy=dict(
        type="ppo",
        recompute_adv=True,
        learn=dict(
            epoch_per_collect=10,
            batch_size=256,
            learning_rate=3e-4,
            lr_schedule="linear",
            clip_ratio=0.18,
            value_norm=True,
        ),
        collect=dict(n_sample=16_384, discount_factor=0.99, gae_lambda=0.95),
        normalize=dict(obs=True, reward=True),
        eval=dict(eval_freq=150_000),
    ),
)
