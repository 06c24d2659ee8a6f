"""Blackjack-v1: a Tuple of three indices, each with an embedding. Reaches about -0.05, the optimum.

ding-lite train -c blackjack_ppo
"""

config = dict(
    seed=0,
    max_env_step=200_000,
    env=dict(
        env_id="Blackjack-v1",
        kwargs=dict(sab=True),  # the rules of Sutton and Barto
        collector_env_num=16,
        evaluator_env_num=16,
        n_evaluator_episode=1000,
    ),
    policy=dict(
        type="ppo",
        learn=dict(
            epoch_per_collect=4,
            batch_size=512,
            learning_rate=1e-3,
            lr_schedule="linear",
            entropy_schedule="linear",
            value_norm=True,
        ),
        collect=dict(n_sample=4096, discount_factor=1.0, gae_lambda=0.95),
        eval=dict(eval_freq=50_000),
    ),
)
