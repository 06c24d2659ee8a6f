"""Where observations are numbers: the settings of `ding-lite train --env ID` without a shipped config."""

config = dict(policy=dict(normalize=dict(obs=True)))
wrappers = []  # where the observation is a single Box
by_policy = dict(  # in the section policy, for some of them
    ppo_offpolicy=dict(learn=dict(reuse=9.0), other=dict(replay_buffer=dict(max_use=9))),
    ppg=dict(learn=dict(actor_epoch_per_collect=3, critic_epoch_per_collect=3)),
    ppg_offpolicy=dict(learn=dict(actor_epoch_per_collect=3, critic_epoch_per_collect=3)),
)
