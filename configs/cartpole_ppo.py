"""Classic control: CartPole-v1, the first config to try; it trains in seconds.

ding-lite train -c cartpole_ppo
"""

environments = {"CartPole-v1": {}}  # `train --env` trains these with this config
config = dict(
    max_env_step=100_000,
    env=dict(env_id="CartPole-v1", evaluator_env_num=8, stop_value=475),
    policy=dict(
        model=dict(encoder_hidden_size_list=[64, 64], activation="tanh"),
        learn=dict(
            epoch_per_collect=4,
            batch_size=256,
            learning_rate=1e-3,
            entropy_weight=0.01,
            value_norm_std=1.0,
        ),
        collect=dict(n_sample=1024),
    ),
)
