"""Where observations have images: the settings of `ding-lite train --env ID` without a shipped config."""

config = dict(
    policy=dict(
        learn=dict(batch_size=256, learning_rate=2.5e-4, lr_schedule="linear", entropy_weight=0.01),
        collect=dict(n_sample=1024),
    ),
)
wrappers = ["frame_stack"]  # where the observation is a single Box: four frames show what moves
by_policy = dict(  # in the section policy, for some of them
    ppo=dict(learn=dict(epoch_per_collect=4)),
    ppg=dict(learn=dict(actor_epoch_per_collect=3, critic_epoch_per_collect=3)),
    ppg_offpolicy=dict(learn=dict(actor_epoch_per_collect=3, critic_epoch_per_collect=3)),
)
