"""Toy text: FrozenLake8x8-v1, slippery.

The best policy reaches the goal in nine of ten episodes.

ding-lite train -c frozenlake8x8_ppo
"""

environments = {"FrozenLake8x8-v1": {}}  # `train --env` trains these with this config
config = dict(
    env=dict(env_id="FrozenLake8x8-v1", collector_env_num=64, evaluator_env_num=32, n_evaluator_episode=64),
    policy=dict(
        # Nearly a table: with narrow vectors and hidden layers, learning in one state changes other states.
        model=dict(encoder=dict(type="embedding", embedding_size=128), encoder_hidden_size_list=[]),
        learn=dict(
            batch_size=512,
            learning_rate=1e-3,
            lr_schedule="linear",
            entropy_weight=0.1,
            entropy_schedule="linear",
            value_norm_std=1.0,
        ),
        # Actions slip in two of three steps: long rollouts and a short trace reduce the noise.
        collect=dict(n_sample=8192, discount_factor=0.999, gae_lambda=0.8),
        eval=dict(eval_freq=100_000),
    ),
)
