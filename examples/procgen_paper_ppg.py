"""Procgen with PPG as in arXiv:2009.04416, appendix A: StarPilot, easy, all levels (extra envpool).

    apt-get install libqt5core5a libqt5gui5
    pip install "ding_lite[envpool]"
    ding-lite train -c examples/procgen_paper_ppg.py

An iteration collects 64 environments x 256 steps, as one of the authors' four workers does. The authors
train for 100M steps on the hard games: env.env_id=StarpilotHard-v0 max_env_step=100_000_000
The auxiliary memory takes 6.4 GB, and twice as much while a checkpoint is written; a checkpoint takes 6.4 GB.
"""

config = dict(
    max_env_step=25_000_000,
    env=dict(
        env_id="StarpilotEasy-v0",
        manager=dict(type="env_pool"),
        collector_env_num=64,
        n_evaluator_episode=64,
    ),
    policy=dict(
        type="ppg",
        recompute_adv=False,
        model=dict(
            arch="dual",  # two IMPALA networks (16, 32, 32 channels)
            encoder=dict(type="impala_cnn"),
            init="normed",  # norm of rows: 1.4; convolutions: 1, in residual blocks 0.639; heads: 0.1
        ),
        learn=dict(
            actor_epoch_per_collect=1,  # E_pi
            critic_epoch_per_collect=1,  # E_V
            batch_size=2048,  # 8 minibatches
            learning_rate=5e-4,
            adam_eps=1e-8,
            clip_ratio=0.2,
            entropy_weight=0.01,
            value_weight=1.0,  # 0.5 x squared error, as in the paper
            value_norm=False,  # the rewards are normalised instead
            adv_norm="batch",
            grad_clip_type=None,
            aux_freq=32,  # N_pi
            aux_train_epoch=6,  # E_aux
            aux_bc_weight=1.0,  # beta_clone
            aux_batch_size=1024,  # 16 minibatches per epoch and iteration in memory
        ),
        collect=dict(n_sample=64 * 256, discount_factor=0.999, gae_lambda=0.95),
        normalize=dict(reward=True, reward_clip=10.0, reward_discount=0.99),  # 0.99: the authors' scale
        eval=dict(eval_freq=1_000_000),
    ),
    checkpoint=dict(freq=2_500_000),  # the default, 50,000, would write 1.6 TB
)
