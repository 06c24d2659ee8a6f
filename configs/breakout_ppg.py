"""Breakout on Atari (extra atari) with PPG: one encoder without gradients of the value loss (arch=detach).

    pip install "ding_lite[atari]"
    ding-lite train -c breakout_ppg

The auxiliary memory holds the stacked frames of 32 iterations as uint8: 0.9 GB.
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
        type="ppg",
        recompute_adv=False,
        model=dict(arch="detach", encoder=dict(type="nature_cnn"), encoder_hidden_size_list=[512]),
        learn=dict(
            actor_epoch_per_collect=1,
            critic_epoch_per_collect=1,
            batch_size=256,
            learning_rate=5e-4,
            lr_schedule="linear",
            entropy_weight=0.01,
            aux_freq=32,
            aux_train_epoch=6,
            aux_batch_size=512,
        ),
        collect=dict(n_sample=1024, discount_factor=0.99, gae_lambda=0.95),
        eval=dict(eval_freq=500_000),
    ),
)
