"""CartPole-v1, the first config to try. Solved (return 475) in a few seconds.

ding-lite train -c cartpole_ppo
"""

config = dict(
    seed=0,
    max_env_step=100_000,
    env=dict(
        env_id="CartPole-v1",
        collector_env_num=8,
        evaluator_env_num=8,
        n_evaluator_episode=16,
        stop_value=475,
    ),
    policy=dict(
        type="ppo",
        model=dict(encoder_hidden_size_list=[64, 64], activation="tanh"),
        learn=dict(
            epoch_per_collect=4, batch_size=256, learning_rate=1e-3, entropy_weight=0.01, value_norm=True
        ),
        collect=dict(n_sample=1024, discount_factor=0.99, gae_lambda=0.95),
        eval=dict(eval_freq=10_000),
    ),
)
