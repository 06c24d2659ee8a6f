"""The learning measurements: rows with a bar to reach, and comparisons between arms."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A config with its overrides, and the bars for the mean and the worst of its seeds."""

    config: str
    mean: float = float("-inf")
    worst: float = float("-inf")
    seeds: int = 5
    checkpoint: str = "last"
    overrides: tuple[str, ...] = ()


ROWS = {
    "cartpole_ppo": Row("cartpole_ppo", mean=475, worst=475),
    "cartpole_37details_ppo": Row("cartpole_37details_ppo", mean=475),
    "cartpole_recompute_ppo": Row("cartpole_recompute_ppo", mean=475),
    "acrobot_ppo": Row("acrobot_ppo", mean=-90),
    "pendulum_ppo": Row("pendulum_ppo", mean=-200),
    "mountaincar_continuous_ppo": Row("mountaincar_continuous_ppo", mean=90),
    "lunarlander_ppo": Row("lunarlander_ppo", mean=230, worst=200),
    "inverted_double_pendulum_tuned_ppo": Row(
        "inverted_double_pendulum_tuned_ppo", mean=9200, worst=9200, seeds=3, checkpoint="best"
    ),
    # The bars are the lower ends of CleanRL's results on the -v4 tasks, with one environment.
    "hopper_ppo": Row("hopper_ppo", mean=2110, seeds=3),
    "halfcheetah_ppo": Row("halfcheetah_ppo", mean=1400, seeds=3),
    "walker2d_ppo": Row("walker2d_ppo", mean=1720, seeds=3),
    "minatar_breakout_ppo": Row("minatar_breakout_ppo", mean=6),
    "cartpole_ppo_offpolicy": Row("cartpole_ppo_offpolicy", mean=475, worst=475),
    "cartpole_ppg": Row("cartpole_ppg", mean=475, worst=475),
    "cartpole_ppg_offpolicy": Row("cartpole_ppg_offpolicy", mean=475, worst=475),
    "pendulum_ppo_offpolicy": Row("pendulum_ppo_offpolicy", mean=-220),
    "pendulum_ppg": Row("pendulum_ppg", mean=-220),
    "pendulum_ppg_offpolicy": Row("pendulum_ppg_offpolicy", mean=-220),
}


@dataclass(frozen=True)
class Comparison:
    """Arms that differ only in the compared settings.

    Args:
        arms: rows by name; a row's name is "group.arm".
        measure: key of a seed's result, such as "mean" or "env_step".
        unit: of the measure, as the table shows it.
        baseline: the arm whose mean divides the others.
        curves: whether to draw the learning curves.
    """

    arms: dict[str, Row]
    measure: str
    unit: str
    baseline: str
    curves: bool = False


def _epochs(count: int) -> tuple[str, ...]:
    return tuple(f"policy.learn.{network}_epoch_per_collect={count}" for network in ("actor", "critic"))


FAST = ("policy.learn.compile=True",)  # equal to rounding, in half the time
# The authors' PPO: three epochs of both losses, and no auxiliary phase.
PPO = (*FAST, *_epochs(3), "policy.learn.aux_train_epoch=0")
PHASIC_ARMS = {
    "ppo_shared": (*PPO, "policy.model.arch=shared"),
    "ppo_separate": (*PPO, "policy.model.arch=dual"),
    "ppg_dual": (*FAST, "policy.model.arch=dual"),
    "ppg_detach": (*FAST, "policy.model.arch=detach"),
    # As many policy steps as PPO.
    "ppg_detach_3_epochs": (*FAST, *_epochs(3), "policy.model.arch=detach"),
}
GAMES = ("space_invaders", "asterix", "seaquest")

# Only the reuse of samples differs: the rollouts of ppo are like those of the others.
FRESH = (  # the defaults of the replay keys, which only the other arms use
    "policy.type=ppo",
    "policy.learn.reuse=3",
    *(
        f"policy.other.replay_buffer.{key}"
        for key in ("replay_buffer_size=10000", "max_use=3", "max_staleness=4")
    ),
)
REUSE_ARMS = {
    "ppo_reuse_1": (*FRESH, "policy.learn.epoch_per_collect=1"),
    "ppo_reuse_3": (*FRESH, "policy.learn.epoch_per_collect=3"),
    **{
        f"{proximal}_reuse_{reuse}": (
            f"policy.learn.proximal={proximal}",
            f"policy.learn.reuse={reuse}",
            f"policy.other.replay_buffer.max_use={2 * reuse}",
        )
        for proximal in ("decoupled", "behaviour")
        for reuse in (1, 3, 6)
    },
}

# Pendulum with the usual discount: the first returns are far below those of a trained policy.
FAR_RETURNS = ("max_env_step=60000", "policy.collect.discount_factor=0.99", "policy.eval.eval_freq=0")
REWARD = "policy.normalize.reward=True"
SCALE_ARMS = {
    "reward_and_value": (REWARD,),
    "reward": (REWARD, "policy.learn.value_norm=False"),
    "value": (),
    "neither": ("policy.learn.value_norm=False",),
    **{
        f"reward_and_value_decay_{100 * decay:.0f}": (REWARD, f"policy.learn.value_norm_decay={decay}")
        for decay in (0.9, 0.99, 1.0)
    },
}

# Solved only by remembering the first of 20 observations, and CartPole without velocities; the same
# rollouts and epochs in all arms of a task.
MEMORY_TASKS = {
    "repeat_first": ("tmaze_ppo", ("env.type=memory_env:RepeatFirst", "env.stop_value=0.96")),
    "tmaze": ("tmaze_ppo", ()),
    "hidden_velocities": ("cartpole_memory_ppo", ()),
}
MEMORY_ARMS = {
    "ppo_none": ("policy.model.rnn=None",),
    **{
        f"{kind}_{rnn}": (f"policy.type={kind}", f"policy.model.rnn={rnn}", *epochs)
        for kind, epochs in {"ppo": (), "ppg": _epochs(10)}.items()
        for rnn in ("lstm", "gru")
    },
}

COMPARISONS = {
    "memory": Comparison(
        {
            f"{task}.{arm}": Row(config, overrides=(*overrides, *of_arm))
            for task, (config, overrides) in MEMORY_TASKS.items()
            for arm, of_arm in MEMORY_ARMS.items()
        },
        measure="mean",
        unit="return",
        baseline="ppo_none",
    ),
    "exploration": Comparison(
        {
            "deepsea.ppo": Row("deepsea_rnd_ppo", overrides=("policy.intrinsic.type=None",)),
            "deepsea.ppo_rnd": Row("deepsea_rnd_ppo"),
            "deepsea.ppg_rnd": Row("deepsea_rnd_ppo", overrides=("policy.type=ppg", *_epochs(4))),
        },
        measure="mean",
        unit="return",
        baseline="ppo",
    ),
    "scales": Comparison(
        {
            f"pendulum.{arm}": Row("pendulum_ppo", overrides=(*FAR_RETURNS, *overrides))
            for arm, overrides in SCALE_ARMS.items()
        },
        measure="mean",
        unit="return",
        baseline="value",
    ),
    "ppg_against_ppo": Comparison(
        {
            f"{game}.{arm}": Row(f"minatar_{game}_ppg", overrides=overrides)
            for game in GAMES
            for arm, overrides in PHASIC_ARMS.items()
        },
        measure="mean",
        unit="return",
        baseline="ppo_shared",
        curves=True,
    ),
    "reuse": Comparison(
        {
            f"cartpole.{arm}": Row(
                "cartpole_ppo_offpolicy",
                seeds=10,
                overrides=("policy.learn.learning_rate=3e-4", "policy.eval.eval_freq=2000", *overrides),
            )
            for arm, overrides in REUSE_ARMS.items()
        },
        measure="env_step",
        unit="env steps until solved",
        baseline="ppo_reuse_1",
    ),
}
