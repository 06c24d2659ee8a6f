"""The settings for a task of cells or symbols that has no config: ``train --env ID``."""

config = dict(
    env=dict(collector_env_num=16),
    policy=dict(learn=dict(batch_size=128, learning_rate=1e-3, lr_schedule="linear", entropy_weight=0.01)),
)
by_policy = dict(ppo=dict(learn=dict(epoch_per_collect=4)))
