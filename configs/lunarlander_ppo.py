"""Box2D: LunarLander-v3, or LunarLanderContinuous-v3 (extra box2d).

    pip install "ding_lite[box2d]"
    ding-lite train -c lunarlander_ppo
    ding-lite train --env LunarLanderContinuous-v3

A long horizon, as in rl-zoo. Both reach more than 260 within 1M steps.
"""

environments = {  # `train --env` trains these with this config, and with these overrides
    "LunarLander-v3": {},
    "LunarLanderContinuous-v3": dict(policy=dict(learn=dict(epoch_per_collect=10, entropy_weight=0.0))),
}
config = dict(
    env=dict(env_id="LunarLander-v3", collector_env_num=16, evaluator_env_num=8),
    policy=dict(
        learn=dict(
            epoch_per_collect=4,
            batch_size=256,
            learning_rate=1e-3,
            lr_schedule="linear",
            entropy_weight=0.01,
            entropy_schedule="linear",
            value_norm_std=1.0,
        ),
        collect=dict(n_sample=8192, discount_factor=0.999, gae_lambda=0.98),
        eval=dict(eval_freq=100_000),
    ),
)
