"""Procgen: StarPilot, or any game by env.env_id, with PPG (extra envpool).

    apt-get install libqt5core5a libqt5gui5
    pip install "ding_lite[envpool]"
    ding-lite train -c procgen_ppg
    ding-lite train -c procgen_ppg env.env_id=BigfishEasy-v0

A small CNN and shorter phases than in the paper; examples/procgen_paper_ppg.py has the paper's settings.
"""

config = dict(
    max_env_step=2_000_000,
    env=dict(
        env_id="StarpilotEasy-v0",
        manager=dict(type="env_pool"),
        collector_env_num=32,
        n_evaluator_episode=32,
    ),
    policy=dict(
        type="ppg",
        recompute_adv=False,
        model=dict(arch="detach", encoder=dict(type="nature_cnn"), encoder_hidden_size_list=[256]),
        learn=dict(
            batch_size=512,
            entropy_weight=0.01,
            aux_train_epoch=4,
            aux_batch_size=1024,
            value_norm_std=1.0,
        ),
        collect=dict(n_sample=32 * 128, discount_factor=0.999),
        normalize=dict(reward=True, reward_clip=10.0),
        eval=dict(eval_freq=250_000),
    ),
    checkpoint=dict(freq=500_000),  # each file has the samples for the auxiliary phase, 0.4 GB
)
