"""Where observations are cells or symbols: the settings of `train --env ID` without a shipped config."""

config = dict(
    env=dict(collector_env_num=16),
    policy=dict(learn=dict(batch_size=128, learning_rate=1e-3, lr_schedule="linear", entropy_weight=0.01)),
)
wrappers = []  # where the observation is a single Box
by_policy = dict(  # in the section policy, for some of them
    ppo=dict(learn=dict(epoch_per_collect=4)),
    ppg=dict(learn=dict(actor_epoch_per_collect=3, critic_epoch_per_collect=3)),
    ppg_offpolicy=dict(learn=dict(actor_epoch_per_collect=3, critic_epoch_per_collect=3)),
)
