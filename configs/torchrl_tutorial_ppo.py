"""MuJoCo: InvertedDoublePendulum-v5 as in TorchRL's tutorial (extra mujoco).

One environment, 1000 steps per rollout, 10 epochs with minibatches of 64; networks of 3 x 256 units with
tanh; a TanhNormal distribution whose mean and scale are outputs of the network; observations scaled by the
statistics of 1000 random steps; smooth-L1 value loss; advantages normalised over the whole rollout and
recomputed at every epoch; learning rate with a cosine schedule to 0. With max_env_step=50000 two seeds
returned 9,003 and 713 (benchmarks/RESULTS.md).

    pip install "ding_lite[mujoco,plot]"
    ding-lite train -c torchrl_tutorial_ppo
    ding-lite plot runs/torchrl_tutorial_ppo -o curves.png
"""

config = dict(
    env=dict(
        env_id="InvertedDoublePendulum-v5",
        collector_env_num=1,
        evaluator_env_num=1,
        n_evaluator_episode=1,
        max_eval_steps=1000,
    ),
    policy=dict(
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
            lr_schedule="cosine",
            value_weight=1.0,
            value_loss="smooth_l1",
            entropy_weight=1e-4,
            adv_norm="batch",
            grad_clip_value=1.0,
            value_norm=False,
        ),
        collect=dict(n_sample=1000),
        normalize=dict(obs="initial"),
    ),
)
