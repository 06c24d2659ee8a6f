"""PPO on CartPole-v1, with the keys that matter most.

ding-lite train -c my_config.py

`ding-lite config -c my_config.py` prints all other keys with their defaults.
"""

config = dict(
    exp_name="my_config",  # the run's folder is runs/my_config
    seed=0,
    max_env_step=100_000,  # ends the run; lr_schedule, if there is one, runs over them
    env=dict(
        env_id="CartPole-v1",  # a gymnasium id; of your own: type="my_module:MyEnv", kwargs=dict(...)
        collector_env_num=8,
        n_evaluator_episode=16,
        stop_value=475,  # ends the run when two evaluations reach this return; None: never
    ),
    policy=dict(
        type="ppo",  # or ppg, ppo_offpolicy, ppg_offpolicy, or "my_module:MyPolicy"
        model=dict(
            encoder_hidden_size_list=[64, 64],
            rnn=None,  # "lstm" or "gru": a memory, if one observation does not tell enough
        ),
        normalize=dict(
            obs=False,  # True if the scales of observations differ much, as in MuJoCo
            reward=False,  # True if returns are far from 1 .. 100
        ),
        collect=dict(
            n_sample=1024,  # transitions of one iteration, over all environments; more: steadier and slower
            discount_factor=0.99,  # 1 / (1 - discount_factor) is the number of steps that count
            gae_lambda=0.95,
        ),
        learn=dict(
            learning_rate=1e-3,
            lr_schedule="constant",  # or "linear", to 0
            epoch_per_collect=4,  # passes over each rollout; fewer if learn/approx_kl exceeds about 0.02
            batch_size=256,
            clip_ratio=0.2,
            entropy_weight=0.01,  # more if the policy stops exploring early
        ),
        eval=dict(eval_freq=10_000),  # env steps between evaluations
    ),
)
