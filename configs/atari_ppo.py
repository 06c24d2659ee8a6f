"""Atari: Breakout, or any game by env.env_id (extra atari).

    pip install "ding_lite[atari]"
    ding-lite train -c atari_ppo
    ding-lite train -c atari_ppo env.env_id=PongNoFrameskip-v4

CleanRL's PPO for 10,000 updates of 8 environments x 128 steps. One half of the environments steps in worker
processes while the policy acts for the other half. Stacks of four 84 x 84 frames are stored as uint8; the
shared convolutions scale them by 1/255. The learning rate decays linearly to 0. labml's PPO differs by
policy.model.init=torch policy.learn.adam_eps=1e-8 policy.learn.clip_schedule=linear
"""

environments = {  # `train --env` trains these with this config, and with these overrides
    "*NoFrameskip-v4": {},
    "ALE/*-v5": dict(env=dict(kwargs=dict(frameskip=1))),  # the wrapper skips frames
}
config = dict(
    max_env_step=10_240_000,
    env=dict(
        env_id="BreakoutNoFrameskip-v4",
        wrappers=["atari"],
        evaluator_env_num=8,
        manager=dict(type="subprocess", double_buffer=True),
    ),
    policy=dict(
        model=dict(
            share_encoder=True,
            encoder=dict(type="nature_cnn"),
            encoder_hidden_size_list=[512],
            activation="relu",
        ),
        learn=dict(
            epoch_per_collect=4,
            batch_size=256,  # 4 minibatches of 8 x 128 samples
            learning_rate=2.5e-4,
            lr_schedule="linear",
            clip_ratio=0.1,
            value_clip=0.1,
            entropy_weight=0.01,
            value_norm=False,
        ),
        collect=dict(n_sample=1024),
        eval=dict(eval_freq=500_000),
    ),
)
