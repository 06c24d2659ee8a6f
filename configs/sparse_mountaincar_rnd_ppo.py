"""PPO with random network distillation, on a MountainCar whose only reward is at the top (sparse_env.py).

ding-lite train -c sparse_mountaincar_rnd_ppo

Without it (policy.intrinsic.type=None) the top is not found.
"""

config = dict(
    exp_name="sparse_mountaincar_rnd_ppo",
    max_env_step=200_000,
    env=dict(
        type="sparse_env:sparse_mountaincar",
        collector_env_num=16,
        evaluator_env_num=10,
        n_evaluator_episode=20,
        stop_value=0.95,
    ),
    policy=dict(
        type="ppo",
        intrinsic=dict(type="rnd"),
        learn=dict(batch_size=256, learning_rate=1e-3),
        collect=dict(n_sample=2048, discount_factor=0.999),
        eval=dict(eval_freq=10_000),
    ),
)
