"""InvertedDoublePendulum-v5 (extra mujoco), tuned. The best checkpoint reaches more than 9,200.

Observations are scaled by the statistics of random steps. With running statistics, the scale shrinks as the
policy balances, until the start states exceed the clip range. Training episodes are truncated after 100
steps: in full episodes, a policy that balances sees few start states and forgets the difficult ones.
Evaluation episodes have full length.

pip install "ding_lite[mujoco]"
ding-lite train -c inverted_double_pendulum_tuned_ppo
"""

config = dict(
    seed=0,
    max_env_step=1_000_000,
    env=dict(
        env_id="InvertedDoublePendulum-v5",
        wrappers=[dict(type="time_limit", max_episode_steps=100, training_only=True)],
        collector_env_num=8,
        evaluator_env_num=16,
        n_evaluator_episode=64,
    ),
    policy=dict(
        type="ppo",
        recompute_adv=True,
        learn=dict(
            epoch_per_collect=10,
            batch_size=256,
            learning_rate=3e-4,
            lr_schedule="linear",
            target_kl=0.02,
            value_norm=True,
        ),
        collect=dict(n_sample=2048, discount_factor=0.99, gae_lambda=0.95),
        normalize=dict(obs="initial", obs_samples=10_000, reward=True),
        eval=dict(eval_freq=50_000),
    ),
)
