"""The rows of speed: the work, the systems that do it, and how one of them is measured once.

The speed of a system is (N2 - N1) / (t2 - t1) of two whole processes timed from outside, so that starting,
importing and compiling cancel; N are valid transitions.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
from systems import Done, Skipped, System, Work, faults
from zoo import keys_to_solve

SB3 = "Stable-Baselines3"
RECURRENT_SB3 = "sb3-contrib, RecurrentPPO"
SINGLE_FILE = "single file, CleanRL's manner"
COMPILED = "ding_lite, compiled"
ALONE = "training alone"
TORCH = "import torch"


@dataclass(frozen=True)
class SpeedRow:
    """Env steps per second of systems on one task.

    Args:
        name: of the row.
        systems: by their name in the table.
        base: the system whose speed divides the others.
        rounds: default number of measurements of each system.
        needs_gpu: whether it is measured by gpu.py.
    """

    name: str
    systems: Mapping[str, System]
    base: str
    rounds: int = 3
    needs_gpu: bool = False

    def measure(self, arm: str, number: int) -> dict[str, float]:
        """Returns speed and memory of one system.

        Raises:
            RuntimeError: if it fails, or does other work than asked for.
            Skipped: if its library is not installed.
        """
        system, runs = self.systems[arm], []
        # This run is not counted: after it both lengths find their files in memory, and compiled code in
        # torch's cache on disk.
        self.run(arm, system.lengths[0] if arm == COMPILED and number == 0 else system.work.samples)
        for steps in system.lengths:
            process, done = self.run(arm, steps)
            if wrong := faults(system.work, steps, done):
                raise RuntimeError(f"{self.name}: {arm}: {'; '.join(wrong)}")
            runs.append((process.seconds, done.env_steps))
        (short, first), (long, second) = runs
        if long <= short:
            raise RuntimeError(f"{self.name}: {arm}: the longer run took no longer; is the machine busy?")
        return {"steps_per_second": (second - first) / (long - short), "peak_mib": process.peak_mib}

    def run(self, arm: str, steps: int) -> tuple[harness.Process, Done]:
        """Runs a system once in a process of its own, or in one for each of its ranks."""
        system = self.systems[arm]
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={system.ranks}"]
        command = [*(launch if system.ranks > 1 else []), str(harness.HERE / "run_system.py")]
        process = harness.run([sys.executable, *command, self.name, arm, str(steps)], system.work.threads)
        answer = json.loads(process.output.splitlines()[-1])
        if "skipped" in answer:
            raise Skipped(answer["skipped"])
        return process, Done(**answer)


@dataclass(frozen=True)
class TimeRow:
    """Seconds of whole processes.

    Args:
        name: of the row.
        systems: the arguments of Python, in which {seed} is the round and {folder} a new folder.
        base: the system whose time divides the others.
        rounds: default number of measurements of each system.
    """

    name: str
    systems: Mapping[str, list[str]]
    base: str
    rounds: int
    needs_gpu: bool = False

    def measure(self, arm: str, number: int) -> dict[str, float]:
        """Returns seconds and memory, and env steps if the result.json of the process says that it solved."""
        for _ in range(2 if number == 0 else 1):  # the first process reads files from disk
            with tempfile.TemporaryDirectory() as parent:
                folder = Path(parent) / "run"
                words = (word.format(seed=number, folder=folder) for word in self.systems[arm])
                process = harness.run([sys.executable, *words])
                measured = {"seconds": process.seconds, "peak_mib": process.peak_mib}
                if (folder / "result.json").exists():
                    result = json.loads((folder / "result.json").read_text())
                    measured |= {"env_steps": result["env_step"]} if result["solved"] else {}
        return measured


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
# Humanoid and a slow simulator: 25 steps of its physics for each action, not 5.
HUMANOIDS = {
    "humanoid_64": Work("humanoid_64", "Humanoid-v5", 8, 256, 10, 64),
    "humanoid_512": Work("humanoid_512", "Humanoid-v5", 8, 256, 10, 512),
    "slow_humanoid_512": Work("slow_humanoid_512", "Humanoid-v5", 8, 256, 10, 512),
}
# On a GPU: LeanRL's settings of PPO on Atari, and one of the four workers of PPG's authors.
ATARI = Work("envpool_breakout", "Breakout-v5", 8, 128, 4, 256, 2.5e-4, parameters=1_686_693, all_cores=True)
BIGFISH = Work(
    "envpool_bigfish", "BigfishEasy-v0", 64, 256, 1, 2048, 5e-4,
    aux_freq=2, aux_epochs=2, aux_batch=1024, all_cores=True,
)  # fmt: skip

Arms = dict[str, tuple[str, dict[str, Any]]]
OURS: Arms = {"ding_lite": ("ours:train", {}), COMPILED: ("ours:train", {"compiled": True})}
PEERS: Arms = {
    SB3: ("sb3:train", {}),
    "Tianshou": ("tianshou_ppo:train", {}),
    "TorchRL": ("torchrl_ppo:train", {}),
}
BFLOAT16: Arms = {"ding_lite, encoders in bfloat16": ("ours:train", {"dtype": "bfloat16"})}
ON_GPU: Arms = {
    "ding_lite": ("ours:train", {}),
    "ding_lite, without CUDA graphs": ("ours:train", {"cuda_graph": False}),
    **BFLOAT16,
}


def _systems(work: Work, lengths: tuple[int, int], arms: Arms) -> dict[str, System]:
    # Loading compiled code takes two or three seconds, as long as the fastest runs: with four times the
    # steps, differences between two starts matter less.
    longer = (lengths[0], 4 * lengths[1])
    few = [COMPILED] if work.all_cores else OURS
    return {
        name: System(function, work, longer if name in few else lengths, options)
        for name, (function, options) in arms.items()
    }


def _everything(work: Work, lengths: tuple[int, int], every: int) -> SpeedRow:
    """Returns a row of training alone and of training as users run it."""
    arms: Arms = {
        ALONE: ("ours:train", {}),
        f"evaluation and checkpoints every {every:,} steps": ("ours:train", {"every": every}),
    }
    return SpeedRow(f"everything_{work.name}", _systems(work, lengths, arms), base=ALONE)


ROWS: tuple[SpeedRow | TimeRow, ...] = (
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
                SINGLE_FILE: ("single_file_ppo:train", {}),
            },
        ),
        base=SB3,
    ),
    SpeedRow(
        "cartpole_lstm",
        _systems(
            RECURRENT,
            (4_096, 20_480),
            {"ding_lite": ("ours:train", {}), RECURRENT_SB3: ("sb3:train_recurrent", {})},
        ),
        base=RECURRENT_SB3,
    ),
    SpeedRow("halfcheetah", _systems(HALFCHEETAH, (8_192, 40_960), OURS | PEERS), base=SB3),
    SpeedRow(
        "breakout",
        _systems(BREAKOUT, (2_048, 8_192), OURS | BFLOAT16 | {SB3: ("sb3:train", {})}),
        base=SB3,
    ),
    SpeedRow(
        "procgen_ppg",
        _systems(
            PROCGEN,
            (7_000, 15_000),  # at least one phase and two: rows that are resets do not count as steps
            {"ding_lite": ("ours:train", {}), SINGLE_FILE: ("single_file_ppg:train", {})},
        ),
        base=SINGLE_FILE,
        rounds=2,
    ),
    SpeedRow(
        "collect",
        {
            "ding_lite": System("ours:collect", COLLECT, (1_048_576, 5_242_880)),
            SB3: System("sb3:collect", COLLECT, (131_072, 655_360)),
        },
        base=SB3,
    ),
    _everything(CARTPOLE, (20_480, 409_600), 10_000),
    _everything(HALFCHEETAH, (20_480, 61_440), 10_000),
    _everything(BREAKOUT, (51_200, 102_400), 50_000),
    *(
        SpeedRow(
            name,
            {
                f"{ranks} rank{'s' * (ranks > 1)}": System("ours:train", work, (4_096, 20_480), ranks=ranks)
                for ranks in (1, 2)
            },
            base="1 rank",
        )
        for name, work in HUMANOIDS.items()
    ),
    TimeRow(
        "solve",
        {
            "ding_lite": ["-m", "ding_lite", *keys_to_solve("{seed}", "{folder}")],
            SB3: ["-c", "from systems.sb3 import solve; solve({seed}, '{folder}')"],
        },
        base=SB3,
        rounds=7,
    ),
    TimeRow(
        "start",
        {
            TORCH: ["-c", "import torch"],
            "import ding_lite": ["-c", "import ding_lite"],
            "from ding_lite import SerialPipeline": ["-c", "from ding_lite import SerialPipeline"],
            "import stable_baselines3": ["-c", "import stable_baselines3"],
            "ding-lite --help": ["-m", "ding_lite", "--help"],
        },
        base=TORCH,
        rounds=9,
    ),
    SpeedRow(
        "atari",
        _systems(ATARI, (10_240, 51_200), ON_GPU)
        | {"environments alone": System("single_file_ppg:environments", ATARI, (20_480, 102_400))},
        base="ding_lite",
        needs_gpu=True,
    ),
    SpeedRow(
        "procgen",
        _systems(BIGFISH, (32_768, 98_304), ON_GPU)
        | {"environments alone": System("single_file_ppg:environments", BIGFISH, (163_840, 819_200))},
        base="ding_lite",
        needs_gpu=True,
    ),
)
SPEED_ROWS = {row.name: row for row in ROWS}
