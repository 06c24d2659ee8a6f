"""Procgen Starpilot, easy, all levels (extra envpool): CleanRL's settings.

apt-get install libqt5core5a libqt5gui5
pip install "ding_lite[envpool]"
ding-lite train -c procgen_starpilot_ppo
"""

config = dict(
    seed=0,
    max_env_step=25_000_000,
    env=dict(
        env_id="StarpilotEasy-v0",
        manager=dict(type="env_pool"),
        collector_env_num=64,
        evaluator_env_num=16,
        n_evaluator_episode=64,
    ),
    policy=dict(
        type="ppo",
        model=dict(encoder={"type": "impala_cnn"}, share_encoder=True),
        learn=dict(
            epoch_per_collect=3,
            batch_size=2048,  # 8 minibatches
            learning_rate=5e-4,
            entropy_weight=0.01,
            clip_ratio=0.2,
            grad_clip_value=0.5,
            value_norm=True,
        ),
        collect=dict(n_sample=64 * 256, discount_factor=0.999, gae_lambda=0.95),
        normalize=dict(reward=True, reward_clip=10.0),
        eval=dict(eval_freq=1_000_000),
    ),
)
