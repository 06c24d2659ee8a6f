"""PPO with MyEncoder on CartPole-v1.

ding-lite train -c my_encoder_config.py
"""

config = dict(
    exp_name="my_encoder",  # the run's folder is runs/my_encoder
    max_env_step=60_000,
    env=dict(env_id="CartPole-v1", stop_value=475),  # ends when evaluations reach this return
    policy=dict(
        type="ppo",
        # Of a Dict observation, encoder={"position": dict(type=...)} sets the encoder of one leaf.
        model=dict(
            encoder=dict(type="my_encoder:MyEncoder", frequencies=2), encoder_hidden_size_list=[64, 64]
        ),
        learn=dict(epoch_per_collect=4, batch_size=256, learning_rate=1e-3),
        collect=dict(n_sample=1024),  # transitions of one iteration, over all environments
    ),
)
