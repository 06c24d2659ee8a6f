"""A policy with memory, on the T-maze in memory_env.py: the first of 21 observations decides the last action.

ding-lite train -c tmaze_ppo

Without memory the mean return stays near 1.95 of 4 (benchmarks/RESULTS.md, "Memory").
"""

config = dict(
    max_env_step=300_000,
    env=dict(
        type="memory_env:TMaze",
        collector_env_num=16,
        evaluator_env_num=10,
        n_evaluator_episode=50,
        stop_value=3.9,
    ),
    policy=dict(
        type="ppo",
        recompute_adv=True,
        model=dict(rnn="lstm", rnn_hidden_size=64, encoder_hidden_size_list=[64]),
        collect=dict(n_sample=2048),
        learn=dict(batch_size=512, learning_rate=1e-3, entropy_weight=0.03, value_norm=True),
        eval=dict(eval_freq=10_000),
    ),
)
