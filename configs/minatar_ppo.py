"""MinAtar: SpaceInvaders, or any game by env.env_id (extra minatar).

    pip install "ding_lite[minatar]"
    ding-lite train -c minatar_ppo
    ding-lite train --env MinAtar/Breakout-v1

Breakout returns more with a longer horizon, and at 1M steps with a constant learning rate. The games have no
time limit; env.max_eval_steps limits the episodes of evaluations.
"""

environments = {  # `train --env` trains these with this config, and with these overrides
    "MinAtar/*": {},
    "MinAtar/Breakout-v1": dict(
        policy=dict(learn=dict(lr_schedule="constant"), collect=dict(discount_factor=0.999, gae_lambda=0.95))
    ),
}
config = dict(
    num_threads=1,  # 10 x 10 cells: more threads are slower
    env=dict(env_id="MinAtar/SpaceInvaders-v1", collector_env_num=16, n_evaluator_episode=32),
    policy=dict(
        model=dict(encoder=dict(type="minatar_cnn")),
        learn=dict(
            epoch_per_collect=3,
            batch_size=128,
            learning_rate=1e-3,
            lr_schedule="linear",
            entropy_weight=0.01,
            value_norm_std=1.0,
        ),
        collect=dict(gae_lambda=0.9),
        eval=dict(eval_freq=250_000),
    ),
)
