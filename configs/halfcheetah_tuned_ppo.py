"""HalfCheetah-v5 (extra mujoco) with rl-zoo's settings: many small steps, and little noise in the actions.

pip install "ding_lite[mujoco]"
ding-lite train -c halfcheetah_tuned_ppo
"""

config = dict(
    exp_name="halfcheetah_tuned_ppo",
    seed=0,
    max_env_step=1_000_000,
    env=dict(env_id="HalfCheetah-v5", collector_env_num=4, evaluator_env_num=8, n_evaluator_episode=16),
    policy=dict(
        type="ppo",
        recompute_adv=False,
        model=dict(
            encoder_hidden_size_list=[256, 256],
            activation="relu",
            initial_sigma_value=0.135,
            init="torch",
        ),
        learn=dict(
            epoch_per_collect=20,
            batch_size=64,
            learning_rate=2.0633e-5,
            clip_ratio=0.1,
            entropy_weight=4e-4,
            value_weight=0.58,
            grad_clip_value=0.8,
        ),
        collect=dict(n_sample=512, discount_factor=0.98, gae_lambda=0.92),
        normalize=dict(obs=True, reward=True),
        eval=dict(eval_freq=50_000),
    ),
)
