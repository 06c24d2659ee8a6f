"""CliffWalking-v1, where the state is an index with an embedding. Reaches -13, the optimum.

The task itself has no limit of steps, and a fall off the cliff costs 100 and leads back to the start.

ding-lite train -c cliffwalking_ppo
"""

config = dict(
    exp_name="cliffwalking_ppo",
    seed=0,
    max_env_step=200_000,
    env=dict(
        env_id="CliffWalking-v1",
        wrappers=[dict(type="time_limit", max_episode_steps=200)],
        collector_env_num=16,
        evaluator_env_num=4,
        n_evaluator_episode=4,
    ),
    policy=dict(
        type="ppo",
        recompute_adv=False,
        learn=dict(
            epoch_per_collect=4,
            batch_size=256,
            learning_rate=1e-3,
            lr_schedule="linear",
            entropy_weight=0.01,
            entropy_schedule="linear",
        ),
        collect=dict(n_sample=2048, discount_factor=0.99, gae_lambda=0.95),
        eval=dict(eval_freq=20_000),
    ),
)
