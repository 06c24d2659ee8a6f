"""The settings for a task of pictures that has no config: ``train --env ID``.

Four frames are stacked, so that a policy sees what moves.
"""

config = dict(
    env=dict(wrappers=["frame_stack"]),
    policy=dict(
        model=dict(share_encoder=True, activation="relu"),
        learn=dict(batch_size=256, learning_rate=2.5e-4, lr_schedule="linear", entropy_weight=0.01),
        collect=dict(n_sample=1024),
    ),
)
by_policy = dict(ppo=dict(learn=dict(epoch_per_collect=4)))
