"""PPO on MyEnv.

ding-lite train -c my_env_config.py
"""

config = dict(
    exp_name="my_env",  # the run's folder is runs/my_env
    max_env_step=100_000,
    env=dict(
        type="my_env:MyEnv",
        kwargs=dict(max_steps=100),  # arguments of the class
        info_keys=["is_success"],
        collector_env_num=8,
        evaluator_env_num=8,
        n_evaluator_episode=16,
        stop_value=5.0,  # ends when evaluations reach this return
    ),
    policy=dict(
        type="ppo",
        learn=dict(epoch_per_collect=10, batch_size=256, learning_rate=1e-3),
        collect=dict(n_sample=2048, discount_factor=0.98),
    ),
)
