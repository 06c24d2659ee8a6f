"""PPO with random network distillation, on a DeepSea of 20 x 20 cells (sparse_env.py).

ding-lite train -c deepsea_rnd_ppo

Without it (policy.intrinsic.type=None) the treasure is not found.
"""

config = dict(
    max_env_step=300_000,
    env=dict(
        type="sparse_env:DeepSea",
        collector_env_num=16,
        evaluator_env_num=10,
        n_evaluator_episode=10,
        stop_value=0.98,
    ),
    policy=dict(
        type="ppo",
        recompute_adv=True,
        intrinsic=dict(type="rnd", learning_rate=1e-3),
        learn=dict(batch_size=256, learning_rate=1e-3, value_norm=True),
        collect=dict(n_sample=2048, discount_factor=0.999),
        eval=dict(eval_freq=10_000),
    ),
)
