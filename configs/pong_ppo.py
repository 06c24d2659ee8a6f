"""Pong on Atari (extra atari), with CleanRL's settings (ppo_atari.py), which reports 20.4 at 10M steps.

pip install "ding_lite[atari]"
ding-lite train -c pong_ppo
"""

config = dict(
    seed=0,
    max_env_step=10_000_000,
    env=dict(
        env_id="PongNoFrameskip-v4",
        wrappers=["atari"],
        collector_env_num=8,
        evaluator_env_num=8,
        n_evaluator_episode=16,
        manager=dict(type="subprocess", double_buffer=True),
    ),
    policy=dict(
        type="ppo",
        model=dict(share_encoder=True, encoder=dict(type="nature_cnn"), init="orthogonal"),
        learn=dict(
            epoch_per_collect=4,
            batch_size=256,
            learning_rate=2.5e-4,
            lr_schedule="linear",
            adam_eps=1e-5,
            clip_ratio=0.1,
            value_clip=0.1,
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
