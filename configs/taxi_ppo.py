"""Toy text: Taxi-v4.

The state is one of 500 indices, with an embedding. Nearly the best possible return.

ding-lite train -c taxi_ppo
"""

environments = {"Taxi-*": {}}  # `train --env` trains these with this config
config = dict(
    env=dict(env_id="Taxi-v4", collector_env_num=16, n_evaluator_episode=32),
    policy=dict(
        # Nearly a table: with narrow vectors and hidden layers, learning in one state changes other states.
        model=dict(encoder=dict(type="embedding", embedding_size=256), encoder_hidden_size_list=[]),
        learn=dict(
            batch_size=128,
            learning_rate=1e-3,
            lr_schedule="linear",
            entropy_weight=0.05,
            entropy_schedule="linear",
            value_norm_std=1.0,
        ),
        # A wrong pickup costs 10 and teaches some seeds never to pick up anyone.
        normalize=dict(reward_clip=2.0),
        eval=dict(eval_freq=100_000),
    ),
)
