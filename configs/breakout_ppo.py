"""Breakout on Atari (extra atari): labml's PPO, 10,000 updates of 8 environments x 128 steps.

    pip install "ding_lite[atari]"
    ding-lite train -c breakout_ppo

One half of the environments steps in worker processes while the policy acts for the other half. Stacks of
four 84 x 84 frames are stored as uint8; the shared convolutions scale them by 1/255. Learning rate, clip
range and value clip range all decay linearly to 0.
"""

config = dict(
    seed=0,
    max_env_step=10_240_000,
    env=dict(
        env_id="BreakoutNoFrameskip-v4",
        wrappers=["atari"],
        collector_env_num=8,
        evaluator_env_num=8,
        n_evaluator_episode=16,
        manager=dict(type="subprocess", double_buffer=True),
    ),
    policy=dict(
        type="ppo",
        model=dict(
            share_encoder=True,
            encoder=dict(type="nature_cnn"),
            encoder_hidden_size_list=[512],
            activation="relu",
            init="torch",
        ),
        learn=dict(
            epoch_per_collect=4,
            batch_size=256,  # 4 minibatches of 8 x 128 samples
            learning_rate=2.5e-4,
            lr_schedule="linear",
            adam_eps=1e-8,
            clip_ratio=0.1,
            value_clip=0.1,
            clip_schedule="linear",  # of clip_ratio and value_clip
            value_weight=0.5,
            entropy_weight=0.01,
            adv_norm="minibatch",
            grad_clip_type="clip_norm",
            grad_clip_value=0.5,
        ),
        collect=dict(n_sample=1024, discount_factor=0.99, gae_lambda=0.95),
        eval=dict(eval_freq=500_000),
    ),
)
