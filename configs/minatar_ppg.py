"""MinAtar: SpaceInvaders, or any game by env.env_id, with PPG (extra minatar).

    pip install "ding_lite[minatar]"
    ding-lite train -c minatar_ppg
    ding-lite train -c minatar_ppg env.env_id=MinAtar/Asterix-v1

Both networks train for three epochs, as in PPO: with one epoch, as in the paper, learning is slower
(benchmarks/RESULTS.md). The games have no time limit; env.max_eval_steps limits the episodes of evaluations.
"""

environments = {"MinAtar/*": {}}  # `train --env` trains these with this config
config = dict(
    num_threads=1,  # 10 x 10 cells: more threads are slower
    env=dict(env_id="MinAtar/SpaceInvaders-v1", collector_env_num=16, n_evaluator_episode=32),
    policy=dict(
        type="ppg",
        recompute_adv=False,
        model=dict(arch="detach", encoder=dict(type="minatar_cnn")),
        learn=dict(
            actor_epoch_per_collect=3,
            critic_epoch_per_collect=3,
            batch_size=128,
            learning_rate=1e-3,
            lr_schedule="linear",
            entropy_weight=0.01,
            aux_freq=32,
            aux_batch_size=512,
            value_norm_std=1.0,
        ),
        collect=dict(gae_lambda=0.9),
        eval=dict(eval_freq=100_000),
    ),
)
