"""Where observations are cells or symbols: the settings of `train --env ID` without a shipped config."""

PPO = dict(learn=dict(epoch_per_collect=4))
PPG = dict(learn=dict(actor_epoch_per_collect=3, critic_epoch_per_collect=3))

config = dict(
    env=dict(collector_env_num=16),
    policy=dict(
        learn=dict(
            batch_size=128,
            learning_rate=1e-3,
            lr_schedule="linear",
            value_norm_std=1.0,  # where a rare 1 is the whole return, more drowns the loss of the policy
            adam_eps=1e-8,
            entropy_weight=0.01,
        )
    ),
)
by_policy = dict(ppo=PPO, ppg=PPG, ppg_offpolicy=PPG)  # in the section policy
