"""A policy with memory, on MiniGrid-MemoryS7-v0 (extra minigrid): find the object that was seen first.

pip install "ding_lite[minigrid]"
ding-lite train -c minigrid_memory_ppo

The agent sees an object in the first room and must choose the same one of two at the end of the corridor.
A policy without memory guesses: its mean return is about 0.5.
"""

config = dict(
    max_env_step=600_000,
    num_threads=1,
    env=dict(
        env_id="MiniGrid-MemoryS7-v0",
        wrappers=["minigrid.wrappers:OneHotPartialObsWrapper", "minigrid_image"],
        collector_env_num=16,
        evaluator_env_num=10,
        n_evaluator_episode=50,
        stop_value=0.95,
    ),
    policy=dict(
        type="ppo",
        recompute_adv=True,
        # Cells are one-hot vectors of objects, not brightness, so they are neither scaled nor convolved.
        model=dict(
            rnn="lstm",
            rnn_hidden_size=64,
            encoder=dict(type="mlp"),
            encoder_hidden_size_list=[64],
        ),
        learn=dict(batch_size=512, learning_rate=1e-3, entropy_weight=0.03, value_norm=True),
        collect=dict(n_sample=2048),
        eval=dict(eval_freq=20_000),
    ),
)
