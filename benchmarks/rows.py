"""The learning measurements: rows with a bar to reach, and comparisons between arms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class Published(NamedTuple):
    """A return to compare a row with.

    Attributes:
        value: as the source gives it, or the best return that the task allows.
        source: who measured it, the version of the task if it is another one, env steps, seeds, statistic.
    """

    value: float
    source: str


@dataclass(frozen=True)
class Row:
    """A config with its keys, and the bars for the mean and the worst of its seeds, if it has any.

    Attributes:
        keys: of the command line, such as "seed=3 env.env_id=Ant-v5".
        elsewhere: keys of a second evaluation, such as in levels that training did not have.
        sampled: whether the final evaluations sample the actions, and the curve is that of the returns in
            training, as they are published for Procgen; else both are of the greedy policy.
    """

    config: str
    keys: str = ""
    published: Published | None = None
    mean: float = float("-inf")
    worst: float = float("-inf")
    seeds: int = 5
    checkpoint: str = "last"
    elsewhere: str = ""
    sampled: bool = False


@dataclass(frozen=True)
class Comparison:
    """Arms that differ only in the compared settings.

    Args:
        arms: rows by name; a row's name is "group.arm".
        baseline: the arm whose mean divides the others.
        measure: column of learning.csv, such as "return" or "env_step".
        unit: of the measure, as the table shows it.
        games: whether the groups are games of one kind: their curves are drawn, and there is a mean over all.
        more_is_better: whether a higher measure is a better one.
    """

    arms: dict[str, Row]
    baseline: str
    measure: str = "return"
    unit: str = "return"
    games: bool = False
    more_is_better: bool = True


FAST = "policy.learn.compile=True"  # equal to rounding, in half the time


def _zoo(value: float, steps: str, task: str = "") -> Published:
    return Published(value, ", ".join(part for part in ("rl-zoo", task, steps, "1 run") if part))


def _tianshou(value: float, task: str) -> Published:
    return Published(value, f"Tianshou, {task}, 1M, 10 seeds, best over time")


def _gymnax(value: float) -> Published:
    return Published(value, "gymnax-blines, in JAX, 10M")


# Game, published return, and the bars at 1M and 5M steps. Seaquest has no published figure of PPO.
MINATAR = (
    ("asterix", _gymnax(15.0), 10, 15),
    ("breakout", _gymnax(28.0), 6, 28),
    ("freeway", _gymnax(58.0), 58, 58),
    ("seaquest", None, 3, 5),
    ("space_invaders", _gymnax(131.0), 100, 131),
)
# Of minatar_ppo and minatar_ppg.
MINATAR_GAMES = {
    "asterix": "env.env_id=MinAtar/Asterix-v1",
    "breakout": "env.env_id=MinAtar/Breakout-v1 policy.collect.discount_factor=0.999 "
    "policy.collect.gae_lambda=0.95 policy.learn.lr_schedule=constant",
    "freeway": "env.env_id=MinAtar/Freeway-v1",
    "seaquest": "env.env_id=MinAtar/Seaquest-v1 policy.model.encoder.channels=last",
    "space_invaders": "",
}
FIVE_MILLION = "max_env_step=5000000 policy.eval.eval_freq=500000 policy.learn.lr_schedule=linear"
# 2M frames of Atari, with what a config plans for 40M scaled to them. In one process, since two seeds run at
# a time.
TWO_MILLION_FRAMES = (
    "max_env_step=500000 policy.eval.eval_freq=50000 env.manager.type=base env.manager.double_buffer=False"
)
# CleanRL's, which has the other settings of atari_ppo.
PONG = (
    "env.env_id=PongNoFrameskip-v4 policy.model.encoder_hidden_size_list=None policy.model.activation=None "
    "policy.model.init=orthogonal policy.learn.adam_eps=1e-5 policy.learn.clip_schedule=constant"
)

CARTPOLE = _zoo(500.0, "100k")
PENDULUM = _zoo(-172.2, "100k")

# Each group is one picture. A published figure is the best one found of PPO for at most the row's env steps,
# or for the fewest. MuJoCo's tasks have published figures in older versions only. Where the state is an
# index, it is the best possible return, by dynamic programming over the steps of an episode.
GROUPS = {
    "classic_control": {
        "cartpole_ppo": Row("cartpole_ppo", "", CARTPOLE, mean=475, worst=475),
        "cartpole_37details_ppo": Row("cartpole_37details_ppo", "", CARTPOLE, mean=475),
        "cartpole_cleanrl_ppo": Row(
            "cartpole_37details_ppo",
            "max_env_step=500000 policy.learn.lr_schedule=linear policy.learn.entropy_weight=0.01 "
            "policy.eval.eval_freq=50000",
            Published(490.0, "CleanRL, 500k, 3 seeds"),
            mean=475,
        ),
        "cartpole_recompute_ppo": Row("cartpole_recompute_ppo", "", CARTPOLE, mean=475),
        "cartpole_ppo_offpolicy": Row("cartpole_ppo_offpolicy", "", CARTPOLE, mean=475, worst=475),
        "cartpole_ppg": Row("cartpole_ppg", "", CARTPOLE, mean=475, worst=475),
        "cartpole_ppg_offpolicy": Row("cartpole_ppg_offpolicy", "", CARTPOLE, mean=475, worst=475),
        "acrobot_ppo": Row("acrobot_ppo", "", Published(-81.3, "SLM-Lab, 300k, 4 runs"), mean=-90),
        "mountaincar_ppo": Row("mountaincar_ppo", "", _zoo(-110.4, "1M"), mean=-110),
        "mountaincar_continuous_ppo": Row("mountaincar_continuous_ppo", "", _zoo(88.3, "20k"), mean=90),
        "pendulum_ppo": Row("pendulum_ppo", "", PENDULUM, mean=-200),
        "pendulum_ppo_offpolicy": Row("pendulum_ppo_offpolicy", "", PENDULUM, mean=-220),
        "pendulum_ppg": Row("pendulum_ppg", "", PENDULUM, mean=-220),
        "pendulum_ppg_offpolicy": Row("pendulum_ppg_offpolicy", "", PENDULUM, mean=-220),
    },
    "toy_text": {
        "frozenlake8x8_ppo": Row("frozenlake8x8_ppo", "", Published(0.913, "the optimum"), mean=0.85),
        "taxi_ppo": Row("taxi_ppo", "", Published(7.93, "the optimum"), mean=7.5),
        "cliffwalking_ppo": Row("cliffwalking_ppo", "", Published(-13.0, "the optimum"), mean=-17, worst=-17),
    },
    "box2d": {
        "lunarlander_ppo": Row("lunarlander_ppo", "", _zoo(242.1, "1M", "-v2"), mean=230, worst=200),
        "lunarlander_continuous_ppo": Row(
            "lunarlander_ppo",
            "env.env_id=LunarLanderContinuous-v3 policy.learn.epoch_per_collect=10 "
            "policy.learn.entropy_weight=None policy.learn.entropy_schedule=constant",
            _zoo(270.9, "1M", "-v2"),
            mean=270,
        ),
        "bipedalwalker_ppo": Row("bipedalwalker_ppo", FAST, _zoo(287.9, "5M"), mean=285),
    },
    "mujoco": {
        "inverted_double_pendulum_ppo": Row(
            "inverted_double_pendulum_ppo",
            "",
            _tianshou(9231.3, "-v2"),
            mean=9200,
            worst=9200,
            seeds=3,
            checkpoint="best",
        ),
        "inverted_double_pendulum_final": Row(
            "inverted_double_pendulum_ppo", "", _tianshou(9231.3, "-v2"), mean=9300
        ),
        # As many steps as the tutorial's short run.
        "torchrl_tutorial_50k": Row("torchrl_tutorial_ppo", "max_env_step=50000", seeds=2),
        "reacher_ppo": Row("mujoco_ppo", "env.env_id=Reacher-v5", _tianshou(-4.1, "-v2"), mean=-4.1),
        "swimmer_ppo": Row("swimmer_ppo", "", _zoo(281.6, "1M", "-v3"), mean=280),
        "hopper_ppo": Row("mujoco_ppo", "", _tianshou(2609.3, "-v3"), mean=2600),
        "walker2d_ppo": Row("mujoco_ppo", "env.env_id=Walker2d-v5", _tianshou(3588.5, "-v3"), mean=3600),
        "halfcheetah_8_envs": Row(
            "mujoco_ppo", "env.env_id=HalfCheetah-v5", _zoo(5819.0, "1M", "-v3"), mean=1400
        ),
        "halfcheetah_ppo": Row("halfcheetah_ppo", "", _zoo(5819.0, "1M", "-v3"), mean=5800),
        "ant_ppo": Row(
            "halfcheetah_ppo",
            "env.env_id=Ant-v5 env.kwargs.include_cfrc_ext_in_observation=False",
            _tianshou(3258.4, "-v3"),
            mean=3250,
        ),
    },
    "grids": {
        "minigrid_empty_ppo": Row(
            "minigrid_ppo",
            "env.env_id=MiniGrid-Empty-Random-5x5-v0 policy.learn.epoch_per_collect=4 "
            "policy.learn.batch_size=256 policy.learn.learning_rate=1e-3 policy.learn.lr_schedule=constant "
            "policy.learn.entropy_weight=0.01 policy.learn.entropy_schedule=constant",
            _zoo(0.968, "100k"),
            mean=0.95,
        ),
        "minigrid_doorkey_ppo": Row("minigrid_ppo", "", _zoo(0.964, "100k"), mean=0.95),
        "minigrid_fourrooms_ppo": Row(
            "minigrid_ppo",
            "max_env_step=2000000 env.env_id=MiniGrid-FourRooms-v0 env.collector_env_num=16 "
            "env.evaluator_env_num=16 policy.learn.epoch_per_collect=4 policy.learn.batch_size=256 "
            "policy.learn.learning_rate=1e-3 policy.learn.entropy_weight=0.01 policy.collect.n_sample=4096 "
            "policy.eval.eval_freq=100000",
            _zoo(0.573, "5M"),
            mean=0.57,
        ),
    },
    "minatar": {
        **{
            f"minatar_{game}_ppo": Row("minatar_ppo", MINATAR_GAMES[game], published, mean=bar)
            for game, published, bar, _ in MINATAR
        },
        **{
            f"minatar_{game}_5m": Row(
                "minatar_ppo", f"{MINATAR_GAMES[game]} {FIVE_MILLION}", published, mean=bar
            )
            for game, published, _, bar in MINATAR
        },
    },
    # No figures are published for as few frames.
    "atari": {
        "breakout_2m_frames": Row("atari_ppo", TWO_MILLION_FRAMES, seeds=3),
        "pong_2m_frames": Row("atari_ppo", f"{PONG} {TWO_MILLION_FRAMES}", seeds=3),
    },
}
ROWS = {name: row for group in GROUPS.values() for name, row in group.items()}


def _epochs(count: int) -> str:
    return " ".join(f"policy.learn.{network}_epoch_per_collect={count}" for network in ("actor", "critic"))


# The authors' PPO: three epochs of both losses, and no auxiliary phase.
PPO = f"{_epochs(3)} policy.learn.aux_train_epoch=0"
LONG_ROLLOUTS = (
    f"{FAST} env.collector_env_num=32 policy.collect.n_sample=4096 policy.collect.gae_lambda=0.95 "
    "policy.learn.batch_size=256 policy.learn.aux_freq=16"
)
PHASIC_ARMS = {
    "ppo_shared": f"{LONG_ROLLOUTS} {PPO} policy.model.arch=shared",
    "ppo_separate": f"{LONG_ROLLOUTS} {PPO} policy.model.arch=dual",
    "ppg_dual": f"{LONG_ROLLOUTS} {_epochs(1)} policy.model.arch=dual",
    "ppg_detach": f"{LONG_ROLLOUTS} {_epochs(1)} policy.model.arch=detach",
    # As many policy steps as PPO.
    "ppg_detach_3_epochs": f"{LONG_ROLLOUTS} {_epochs(3)} policy.model.arch=detach",
}
# The rollouts and minibatches of minatar_ppo, which were tuned for PPO: half as long, a discounted trace.
SHORT_ROLLOUTS = (
    f"{FAST} env.collector_env_num=16 policy.collect.n_sample=2048 policy.collect.gae_lambda=0.9 "
    "policy.learn.batch_size=128 policy.learn.aux_freq=32"
)
TUNED_ARMS = {
    "ppo_tuned": f"{SHORT_ROLLOUTS} {PPO} policy.model.arch=shared",
    "ppg_tuned": f"{SHORT_ROLLOUTS} {_epochs(3)} policy.model.arch=detach",
}
GAMES = ("space_invaders", "asterix", "seaquest")

# Only the reuse of samples differs: the rollouts of ppo are like those of the others, and the keys of the
# replay, which only the others use, have their defaults.
REUSE = "policy.learn.learning_rate=3e-4 policy.eval.eval_freq=2000"
FRESH = (
    "policy.type=ppo policy.learn.reuse=3 policy.other.replay_buffer.replay_buffer_size=10000 "
    "policy.other.replay_buffer.max_use=3 policy.other.replay_buffer.max_staleness=4"
)
REUSE_ARMS = {
    "ppo_reuse_1": f"{FRESH} policy.learn.epoch_per_collect=1",
    "ppo_reuse_3": f"{FRESH} policy.learn.epoch_per_collect=3",
    **{
        f"{proximal}_reuse_{reuse}": f"policy.learn.proximal={proximal} policy.learn.reuse={reuse} "
        f"policy.other.replay_buffer.max_use={2 * reuse}"
        for proximal in ("decoupled", "behaviour")
        for reuse in (1, 3, 6)
    },
}

# Pendulum with the usual discount: the first returns are far below those of a trained policy.
FAR_RETURNS = "max_env_step=60000 policy.collect.discount_factor=0.99 policy.eval.eval_freq=0"
REWARD = "policy.normalize.reward=True"
SCALE_ARMS = {
    "reward_and_value": REWARD,
    "reward": f"{REWARD} policy.learn.value_norm=False",
    "value": "",
    "neither": "policy.learn.value_norm=False",
    **{
        f"reward_and_value_decay_{100 * decay:.0f}": f"{REWARD} policy.learn.value_norm_decay={decay}"
        for decay in (0.9, 0.99, 1.0)
    },
}

# Solved only by remembering the first of 20 observations, and CartPole without velocities; the same
# rollouts and epochs in all arms of a task.
MEMORY_TASKS = {
    "repeat_first": "env.type=memory_env:RepeatFirst env.stop_value=0.96",
    "tmaze": "",
    "hidden_velocities": "max_env_step=200000 env.type=memory_env:cartpole_without_velocities "
    "env.collector_env_num=8 env.stop_value=475 policy.learn.batch_size=256 policy.learn.entropy_weight=None "
    "policy.learn.sequence_length=32 policy.eval.eval_freq=20000",
}
MEMORY_ARMS = {
    "ppo_none": "policy.model.rnn=None",
    **{
        f"{kind}_{rnn}": f"policy.type={kind} policy.model.rnn={rnn} {epochs}"
        for kind, epochs in {"ppo": "", "ppg": _epochs(10)}.items()
        for rnn in ("lstm", "gru")
    },
}

# Procgen's easy games on 200 levels, and all levels (0) for the second evaluation (arXiv:1912.01588).
PROCGEN_GAMES = {
    game: f"env.env_id={game.capitalize()}Easy-v0 env.kwargs.num_levels=200"
    for game in ("starpilot", "bigfish", "coinrun", "fruitbot")
}
PROCGEN_ARMS = {
    "ppo": f"{PPO} policy.model.arch=shared",
    "ppg": _epochs(1),
    "ppg_3_epochs": _epochs(3),  # as many policy steps as PPO
}


def _arms(config: str, groups: dict[str, str], arms: dict[str, str], **others: Any) -> dict[str, Row]:
    """Returns a row for each arm of each group, with the keys of both."""
    return {
        f"{group}.{arm}": Row(config, f"{of_group} {of_arm}", **others)
        for group, of_group in groups.items()
        for arm, of_arm in arms.items()
    }


COMPARISONS = {
    "memory": Comparison(_arms("memory_ppo", MEMORY_TASKS, MEMORY_ARMS), baseline="ppo_none"),
    "exploration": Comparison(
        {
            "deepsea.ppo": Row("deepsea_rnd_ppo", "policy.intrinsic.type=None"),
            "deepsea.ppo_rnd": Row("deepsea_rnd_ppo"),
            "deepsea.ppg_rnd": Row("deepsea_rnd_ppo", f"policy.type=ppg {_epochs(4)}"),
        },
        baseline="ppo",
    ),
    "scales": Comparison(_arms("pendulum_ppo", {"pendulum": FAR_RETURNS}, SCALE_ARMS), baseline="value"),
    "ppg_against_ppo": Comparison(
        _arms("minatar_ppg", {game: MINATAR_GAMES[game] for game in GAMES}, PHASIC_ARMS),
        baseline="ppo_shared",
        games=True,
    ),
    **{
        f"ppg_tuned_{millions}m": Comparison(
            _arms(
                "minatar_ppg",
                {
                    f"{game}_{millions}m": f"{MINATAR_GAMES[game]} max_env_step={millions}000000"
                    for game in GAMES
                },
                TUNED_ARMS,
            ),
            baseline="ppo_tuned",
            games=True,
        )
        for millions in (1, 3)
    },
    "procgen": Comparison(
        _arms(
            "procgen_ppg",
            PROCGEN_GAMES,
            PROCGEN_ARMS,
            seeds=3,
            elsewhere="env.kwargs.num_levels=0",
            sampled=True,
        ),
        measure="train_return",
        baseline="ppo",
        games=True,
    ),
    "reuse": Comparison(
        _arms("cartpole_ppo_offpolicy", {"cartpole": REUSE}, REUSE_ARMS, seeds=10),
        measure="env_step",
        unit="env steps until solved",
        baseline="ppo_reuse_1",
        more_is_better=False,
    ),
}
