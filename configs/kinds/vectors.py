"""Where observations are numbers: the settings of `ding-lite train --env ID` without a shipped config."""

PPG = dict(learn=dict(actor_epoch_per_collect=3, critic_epoch_per_collect=3))

config = dict(policy=dict(learn=dict(value_norm_std=3.0, adam_eps=1e-8), normalize=dict(obs=True)))
by_policy = dict(ppg=PPG, ppg_offpolicy=PPG)  # overrides of the section policy
