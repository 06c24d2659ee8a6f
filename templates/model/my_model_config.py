"""PPO with MyModel on CartPole-v1.

ding-lite train -c my_model_config.py
"""

config = dict(
    exp_name="my_model",  # the run's folder is runs/my_model
    max_env_step=60_000,
    env=dict(env_id="CartPole-v1", stop_value=475),  # ends when evaluations reach this return
    policy=dict(
        type="ppo",
        model=dict(type="my_model:MyModel", width=64, blocks=2),
        learn=dict(epoch_per_collect=4, batch_size=256, learning_rate=1e-3),
        collect=dict(n_sample=1024),  # transitions of one iteration, over all environments
    ),
)
