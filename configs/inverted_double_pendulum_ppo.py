"""The PPO of the TorchRL tutorial on InvertedDoublePendulum (extra mujoco), with all of its settings.

One environment, 1000 steps per rollout, 10 epochs with minibatches of 64; networks of 3 x 256 units with
tanh; a TanhNormal distribution whose mean and scale are outputs of the network; observations scaled by the
statistics of 1000 random steps; smooth-L1 value loss; advantages normalised over the whole rollout and
recomputed at every epoch; learning rate with a cosine schedule to 0.

    pip install "ding_lite[mujoco,plot]"
    ding-lite train -c inverted_double_pendulum_ppo
    ding-lite plot runs/inverted_double_pendulum_ppo -o curves.png
"""

config = dict(
    seed=0,
    max_env_step=1_000_000,
    env=dict(
        env_id="InvertedDoublePendulum-v5",
        collector_env_num=1,
        evaluator_env_num=1,
        n_evaluator_episode=1,
        max_eval_steps=1000,
    ),
    policy=dict(
        type="ppo",
        recompute_adv=True,
        model=dict(
            share_encoder=False,
            encoder_hidden_size_list=[256, 256, 256],
            activation="tanh",
            box_distribution="tanh_normal",
            sigma_type="conditioned",
            bound_type="soft",
            init="torch",
        ),
        learn=dict(
            epoch_per_collect=10,
            batch_size=64,
            learning_rate=3e-4,
            lr_schedule="cosine",
            value_weight=1.0,
            value_loss="smooth_l1",
            entropy_weight=1e-4,
            clip_ratio=0.2,
            adv_norm="batch",
            grad_clip_value=1.0,
        ),
        collect=dict(n_sample=1000, discount_factor=0.99, gae_lambda=0.95),
        normalize=dict(obs="initial", obs_samples=1000),
        eval=dict(eval_freq=10_000),
    ),
)
