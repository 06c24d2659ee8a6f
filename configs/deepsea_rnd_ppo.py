"""Exploration: random network distillation on DeepSea.

ding-lite train -c deepsea_rnd_ppo

The treasure in the corner of 20 x 20 cells (sparse_env.py) is not found with policy.intrinsic.type=None.
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
        recompute_adv=True,
        intrinsic=dict(type="rnd", learning_rate=1e-3),
        learn=dict(batch_size=256, learning_rate=1e-3, value_norm_std=1.0),
        collect=dict(discount_factor=0.999),
    ),
)
