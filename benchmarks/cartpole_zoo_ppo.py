"""CartPole-v1 with rl-zoo's settings and defaults of Stable-Baselines3, until it is solved.

ding-lite train -c benchmarks/cartpole_zoo_ppo.py
"""

config = dict(
    exp_name="cartpole_zoo_ppo",
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
            epoch_per_collect=20,
            batch_size=256,
            learning_rate=1e-3,
            lr_schedule="linear",
            clip_ratio=0.2,
            clip_schedule="linear",
            entropy_weight=0.0,
            value_weight=1.0,  # of 0.5 mse; there 0.5 of mse
        ),
        collect=dict(n_sample=8 * 32, discount_factor=0.98, gae_lambda=0.8),
        eval=dict(eval_freq=5_120),
    ),
)
