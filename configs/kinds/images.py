"""Where observations have images: the settings of `ding-lite train --env ID` without a shipped config."""

PPG = dict(learn=dict(actor_epoch_per_collect=3, critic_epoch_per_collect=3))

config = dict(
    policy=dict(
        learn=dict(
            batch_size=256,
            learning_rate=2.5e-4,
            lr_schedule="linear",
            entropy_weight=0.01,
            adam_eps=1e-8,
        ),
        collect=dict(n_sample=1024),
    ),
)
# Overrides of the section policy.
by_policy = dict(ppo=dict(learn=dict(epoch_per_collect=4)), ppg=PPG, ppg_offpolicy=PPG)
wrappers = ["frame_stack"]  # if the image is the whole observation: four frames show motion
