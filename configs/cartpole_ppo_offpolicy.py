"""CartPole-v1 with off-policy PPO: a transition is used in several iterations.

ding-lite train -c cartpole_ppo_offpolicy
"""

config = dict(
    seed=0,
    max_env_step=200_000,
    env=dict(
        env_id="CartPole-v1",
        collector_env_num=8,
        evaluator_env_num=8,
        n_evaluator_episode=16,
        stop_value=475,
    ),
    policy=dict(
        type="ppo_offpolicy",
        recompute_adv=True,
        learn=dict(reuse=3, batch_size=256, learning_rate=1e-3, entropy_weight=0.01, value_norm=True),
        collect=dict(n_sample=512, discount_factor=0.99, gae_lambda=0.95),
        other=dict(replay_buffer=dict(replay_buffer_size=4096, max_use=6, max_staleness=4)),
        eval=dict(eval_freq=10_000),
    ),
)
