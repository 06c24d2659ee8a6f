"""Box2D: BipedalWalker-v3 (extra box2d).

After rl-zoo, with a discount of 0.99, not 0.999, and smaller rollouts.

pip install "ding_lite[box2d]"
ding-lite train -c bipedalwalker_ppo
"""

environments = {"BipedalWalker-v3": {}}  # `train --env` trains these with this config
config = dict(
    max_env_step=3_000_000,
    env=dict(env_id="BipedalWalker-v3", collector_env_num=32, evaluator_env_num=8),
    policy=dict(
        recompute_adv=True,
        learn=dict(batch_size=256, lr_schedule="linear", clip_ratio=0.18, value_norm_std=1.0),
        collect=dict(n_sample=16_384),
        normalize=dict(obs=True, reward=True),
        eval=dict(eval_freq=150_000),
    ),
)
