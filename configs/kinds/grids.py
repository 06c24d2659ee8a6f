"""Where observations are cells or symbols: the settings of `train --env ID` without a shipped config."""

PPG = dict(learn=dict(actor_epoch_per_collect=3, critic_epoch_per_collect=3))

config = dict(
    env=dict(collector_env_num=16),
    policy=dict(
        learn=dict(
            batch_size=128,
            learning_rate=1e-3,
            lr_schedule="linear",
            value_norm_std=1.0,  # if a rare 1 is the whole return, a higher std drowns the policy loss
            adam_eps=1e-8,
            entropy_weight=0.01,
        )
    ),
)
# Overrides of the section policy.
by_policy = dict(ppo=dict(learn=dict(epoch_per_collect=4)), ppg=PPG, ppg_offpolicy=PPG)
