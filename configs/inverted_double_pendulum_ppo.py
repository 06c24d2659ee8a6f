"""MuJoCo: InvertedDoublePendulum-v5 (extra mujoco).

Observations are scaled by the statistics of random steps. With running statistics, the scale shrinks as the
policy balances, until the start states exceed the clip range. Training episodes are truncated after 100
steps: in full episodes, a policy that balances sees few start states and forgets the difficult ones.
Evaluation episodes have full length.

pip install "ding_lite[mujoco]"
ding-lite train -c inverted_double_pendulum_ppo
"""

environments = {"InvertedDoublePendulum-v[45]": {}}  # `train --env` trains these with this config
config = dict(
    env=dict(
        env_id="InvertedDoublePendulum-v5",
        wrappers=[dict(type="time_limit", max_episode_steps=100, training_only=True)],
        n_evaluator_episode=64,
    ),
    policy=dict(
        recompute_adv=True,
        learn=dict(batch_size=256, lr_schedule="linear", target_kl=0.02, value_norm_std=1.0),
        normalize=dict(obs="initial", obs_samples=10_000, reward=True),
        eval=dict(eval_freq=50_000),
    ),
)
