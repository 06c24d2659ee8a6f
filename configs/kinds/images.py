"""Where observations have images: the settings of `ding-lite train --env ID` without a shipped config."""

PPO = dict(learn=dict(epoch_per_collect=4))
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
by_policy = dict(ppo=PPO, ppg=PPG, ppg_offpolicy=PPG)  # in the section policy
wrappers = ["frame_stack"]  # where the image is the whole observation: four frames show what moves
