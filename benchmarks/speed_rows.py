"""The rows of long-run speed: the work, the systems that do it, and their table.

The speed of a row is (N2 - N1) / (t2 - t1) of two whole processes timed from outside, so that starting,
importing and compiling cancel; N are valid transitions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from timing import run_system
from work import System, Work, faults

SB3 = "Stable-Baselines3"
RECURRENT_SB3 = "sb3-contrib, RecurrentPPO"
COMPILED = "ding_lite, compiled"
ALONE = "training alone"
Stored = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class SpeedRow:
    """Systems on one task.

    Args:
        name: of the row.
        systems: by their name in the table.
        base: the system whose speed divides the others; with "" the table shows the cost of a step.
        limit: systems that are parts of the task; run one after the other they are its limit.
        rounds: default number of measurements of each system.
    """

    name: str
    systems: dict[str, System]
    base: str = ""
    limit: tuple[str, ...] = ()
    rounds: int = 3

    @property
    def arms(self) -> list[str]:
        """The systems' names."""
        return list(self.systems)

    def measure(self, arm: str, number: int) -> dict[str, Any]:
        """Returns speed and memory of one system, or ``{"skipped": reason}``.

        Raises:
            RuntimeError: if it fails, or does other work than asked for.
        """
        system, runs = self.systems[arm], []
        # This run is not counted: after it both lengths find their files in memory, and compiled code in
        # torch's cache on disk.
        compiles = arm.endswith(", compiled")
        before = system.lengths[0] if compiles and number == 0 else system.work.samples
        process, done = run_system(self.name, arm, before, system.work.threads)
        if done is None:
            return {"skipped": process.skipped}
        for steps in system.lengths:
            process, done = run_system(self.name, arm, steps, system.work.threads)
            assert done is not None
            wrong = faults(system.work, steps, done)
            if wrong:
                raise RuntimeError(f"{self.name}: {arm}: {'; '.join(wrong)}")
            runs.append((process, done))
        (short, first), (long, second) = runs
        if long.seconds <= short.seconds:
            raise RuntimeError(f"{self.name}: {arm}: the longer run took no longer; is the machine busy?")
        return {
            "speed": (second.env_steps - first.env_steps) / (long.seconds - short.seconds),
            "peak_mib": long.peak_mib,
            "seconds": [short.seconds, long.seconds],
            "env_steps": [first.env_steps, second.env_steps],
            "updates": second.updates,
            "parameters": second.parameters,
        }

    def say(self, result: dict[str, Any]) -> str:
        """Returns one measurement as text."""
        return f"{result['speed']:,.0f} steps/s, {result['peak_mib']:,.0f} MiB"

    def lines(self, stored: Stored, skipped: dict[str, str]) -> list[str]:
        """Returns the table."""
        last = f"x {self.base}" if self.base else "µs a step"
        lines = [
            f"| system | steps/s, median of {self._rounds(stored)} | spread | {last} | peak memory, MiB |",
            "|---|---|---|---|---|",
        ]
        medians = {arm: median(r["speed"] for r in results) for arm, results in stored.items() if results}
        for arm in self.systems:
            if arm not in medians:
                lines.append(f"| {arm} | {skipped.get(arm, 'not measured')} | | | |")
                continue
            speeds = [result["speed"] for result in stored[arm]]
            spread = f"{min(speeds):,.0f} to {max(speeds):,.0f}"
            peak = median(result["peak_mib"] for result in stored[arm])
            lines.append(
                f"| {arm} | **{medians[arm]:,.0f}** | {spread} | {self._last(medians[arm], medians)} "
                f"| {peak:,.0f} |"
            )
        if self.limit and all(part in medians for part in self.limit):
            limit = 1 / sum(1 / medians[part] for part in self.limit)
            lines.append(
                f"| limit: {', then '.join(self.limit)} | {limit:,.0f} | | {self._last(limit, medians)} | |"
            )
        return lines

    def _rounds(self, stored: Stored) -> str:
        counts = sorted({len(results) for results in stored.values() if results} or {0})
        return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"

    def _last(self, speed: float, medians: dict[str, float]) -> str:
        if not self.base:
            return f"{1e6 / speed:.2f}"
        return f"{speed / medians[self.base]:.2f}" if self.base in medians else ""


CARTPOLE = Work("cartpole", "CartPole-v1", 8, 128, 4, 256, 1e-3, parameters=9_155)
RECURRENT = Work("cartpole_lstm", "CartPole-v1", 8, 128, 4, 256, 1e-3, parameters=52_675, lstm=64)
HALFCHEETAH = Work("halfcheetah", "HalfCheetah-v5", 8, 256, 10, 64, 3e-4, parameters=11_085)
BREAKOUT = Work(
    "breakout", "BreakoutNoFrameskip-v4", 8, 128, 4, 256, 2.5e-4, parameters=1_686_693, all_cores=True
)
PROCGEN = Work(
    "procgen_ppg", "StarpilotEasy-v0", 32, 128, 1, 512, 5e-4, parameters=626_513,
    aux_freq=2, aux_epochs=2, aux_batch=512, all_cores=True,
)  # fmt: skip
COLLECT = Work("collect", "CartPole-v1", 256, 32)
# On a GPU: LeanRL's settings of PPO on Atari, and one of the four workers of PPG's authors.
ATARI = Work("envpool_breakout", "Breakout-v5", 8, 128, 4, 256, 2.5e-4, parameters=1_686_693, all_cores=True)
BIGFISH = Work(
    "envpool_bigfish", "BigfishEasy-v0", 64, 256, 1, 2048, 5e-4,
    aux_freq=2, aux_epochs=2, aux_batch=1024, all_cores=True,
)  # fmt: skip


def _systems(
    work: Work, lengths: tuple[int, int], functions: dict[str, tuple[str, dict[str, Any]]]
) -> dict[str, System]:
    # Loading compiled code takes two or three seconds, as long as the fastest runs: with four times the
    # steps, differences between two starts matter less.
    longer = (lengths[0], 4 * lengths[1])
    few = [COMPILED] if work.all_cores else OURS
    return {
        name: System(function, work, longer if name in few else lengths, options)
        for name, (function, options) in functions.items()
    }


OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "ding_lite": ("ours:train", {}),
    COMPILED: ("ours:train", {"compiled": True}),
}
PEERS: dict[str, tuple[str, dict[str, Any]]] = {
    SB3: ("sb3:train", {}),
    "Tianshou": ("tianshou_ppo:train", {}),
    "TorchRL": ("torchrl_ppo:train", {}),
}


def _everything(work: Work, lengths: tuple[int, int], every: int) -> SpeedRow:
    """Returns a row of training alone and of training as users run it."""
    arms = {
        ALONE: ("ours:train", {}),
        f"evaluation and checkpoints every {every:,} steps": ("ours:train", {"every": every}),
    }
    return SpeedRow(f"everything_{work.name}", _systems(work, lengths, arms), base=ALONE)


def _costs() -> dict[str, System]:
    """Returns collecting by ding_lite, over environments, rollout lengths and network widths."""
    works = {
        f"{envs:,} env{'s' * (envs > 1)}": replace(COLLECT, envs=envs) for envs in (1, 4, 16, 64, 256, 1024)
    }
    works |= {f"rollouts of {steps:,} steps": replace(COLLECT, rollout=steps) for steps in (8, 128, 1024)}
    works |= {f"layers of {w} and {w}": replace(COLLECT, hidden=(w, w)) for w in (16, 256, 512)}
    return {
        name: System("ours:collect", work, (_seconds(work, 1), _seconds(work, 5)))
        for name, work in works.items()
    }


def _seconds(work: Work, seconds: float) -> int:
    """Returns about the number of env steps that ``seconds`` suffice for, in whole rollouts."""
    seconds_per_step = 60e-6 + work.envs * (0.6e-6 + 2e-11 * sum(work.hidden) ** 2)
    return work.samples * max(1, round(seconds / (seconds_per_step * work.rollout)))


SPEED_ROWS = {
    row.name: row
    for row in (
        SpeedRow(
            "cartpole",
            _systems(
                CARTPOLE,
                (20_480, 163_840),
                {
                    **OURS,
                    "ding_lite, a loss of the user": ("ours:train", {"own_loss": True}),
                    **PEERS,
                    "DI-engine": ("di_engine_ppo:train", {}),
                    "single file, CleanRL's manner": ("single_file_ppo:train", {}),
                },
            ),
            base=SB3,
        ),
        SpeedRow(
            "cartpole_lstm",
            _systems(
                RECURRENT,
                (4_096, 20_480),
                {"ding_lite": ("ours:train", {}), RECURRENT_SB3: ("sb3_recurrent:train", {})},
            ),
            base=RECURRENT_SB3,
        ),
        SpeedRow("halfcheetah", _systems(HALFCHEETAH, (8_192, 40_960), OURS | PEERS), base=SB3),
        SpeedRow(
            "breakout",
            _systems(
                BREAKOUT,
                (2_048, 8_192),
                {
                    **OURS,
                    "ding_lite, encoders in bfloat16": ("ours:train", {"dtype": "bfloat16"}),
                    SB3: ("sb3:train", {}),
                    f"{SB3}, ding_lite's wrappers in worker processes": ("sb3:train", {"our_envs": True}),
                },
            )
            | _systems(BREAKOUT, (8_192, 65_536), {"environments alone": ("alone:atari_envs", {})})
            | _systems(BREAKOUT, (2_048, 8_192), {"network alone": ("alone:nature_cnn", {})}),
            base=SB3,
            limit=("environments alone", "network alone"),
        ),
        SpeedRow(
            "procgen_ppg",
            _systems(
                PROCGEN,
                (7_000, 15_000),  # at least one phase and two: rows that are resets do not count as steps
                {
                    "ding_lite": ("ours:train", {}),
                    "single file, CleanRL's manner": ("single_file_ppg:train", {}),
                },
            )
            | _systems(PROCGEN, (70_000, 350_000), {"environments alone": ("alone:pool_envs", {})})
            | _systems(PROCGEN, (7_000, 15_000), {"network alone": ("alone:impala_cnn", {})}),
            base="single file, CleanRL's manner",
            limit=("environments alone", "network alone"),
            rounds=2,
        ),
        SpeedRow(
            "collect",
            {
                "ding_lite": System("ours:collect", COLLECT, (1_048_576, 5_242_880)),
                SB3: System("sb3:collect", COLLECT, (131_072, 655_360)),
                "environments alone": System("alone:vector_envs", COLLECT, (1_048_576, 5_242_880)),
            },
            base=SB3,
        ),
        SpeedRow("collect_costs", _costs()),
        _everything(CARTPOLE, (20_480, 409_600), 10_000),
        _everything(HALFCHEETAH, (20_480, 61_440), 10_000),
        _everything(BREAKOUT, (51_200, 102_400), 50_000),
    )
}

BFLOAT16 = "ding_lite, encoders in bfloat16"
ON_GPU: dict[str, tuple[str, dict[str, Any]]] = {
    "ding_lite": ("ours:train", {}),
    "ding_lite, without CUDA graphs": ("ours:train", {"cuda_graph": False}),
    BFLOAT16: ("ours:train", {"dtype": "bfloat16"}),
}
GPU_ROWS = {  # measured by gpu.py
    row.name: row
    for row in (
        SpeedRow(
            "atari",
            {
                name: System(function, ATARI, (10_240, 51_200), options)
                for name, (function, options) in ON_GPU.items()
            }
            | {"environments alone": System("alone:pool_envs", ATARI, (20_480, 102_400))},
            base="ding_lite",
        ),
        SpeedRow(
            "procgen",
            {
                name: System(function, BIGFISH, (32_768, 98_304), options)
                for name, (function, options) in ON_GPU.items()
            }
            | {"environments alone": System("alone:pool_envs", BIGFISH, (163_840, 819_200))},
            base="ding_lite",
        ),
    )
}
