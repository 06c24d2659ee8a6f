"""Speed, beside other libraries on the same work: whole processes, timed from outside, by turns.

    python benchmarks/throughput.py                 every row that is not measured yet
    python benchmarks/throughput.py ROW ...         only these rows
    python benchmarks/throughput.py --rounds 1      number of rounds (by default 2 to 9, depending on the row)
    python benchmarks/throughput.py --write         measure nothing: the tables of what is stored

    cartpole, cartpole_lstm, halfcheetah, breakout  env steps per second of training
    sleeping                                        collecting from environments that sleep
    tensors, tensors_4096                           training 1,024 and 4,096 environments of tensors
    humanoid_64, humanoid_512, slow_humanoid_512    training on one and on two ranks
    solve                                           from the command line until CartPole-v1 is solved
    atari, procgen                                  training on a GPU: gpu.py

The speed of a system is (N2 - N1) / (t2 - t1) of two whole processes timed from outside, so that starting,
importing and compiling cancel; N are valid transitions. The systems of a row run by turns of a fifth of a
second, the shorter runs and then the longer ones. Each process says how many it made, with how many
optimiser steps and parameters; other work than asked for is an error. A stopped benchmark continues: each
measurement is a line of throughput.csv (delete those of a row to measure it again). A system whose library
is not installed is named and left out. throughput.toml has the rows, systems/ the systems.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import harness
from systems import Done, Skipped, Work, faults
from systems.tasks import SOLVED, TO_SOLVE

STORE = harness.HERE / "throughput.csv"
SPARE = 120.0  # seconds that a measurement may take
OURS, OWN_LOSS = "ding_lite", "ding_lite, a loss of the user"
IN_README = {
    "CartPole": ("cartpole", OURS),
    "CartPole, a loss of your own": ("cartpole", OWN_LOSS),
    "HalfCheetah": ("halfcheetah", OURS),
    "CartPole with an LSTM (RecurrentPPO)": ("cartpole_lstm", OURS),
    "Breakout on Atari": ("breakout", OURS),
}


@dataclass(frozen=True)
class Training:
    """A system on its work, in a process of its own, or in one for each of its ranks.

    Args:
        work: that it does.
        function: ``module:function`` in systems/.
        steps: of the shorter and of the longer run.
        ranks: how many processes share the work.
    """

    work: Work
    function: str
    steps: tuple[int, int]
    ranks: int = 1

    def words(self, steps: int) -> list[str]:
        """Returns the arguments of Python that run it."""
        words = ["-m", "systems", self.function, json.dumps(asdict(self.work)), str(steps)]
        if self.ranks > 1:
            words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}", *words]
        return words


def done_by(process: harness.Process | RuntimeError) -> Done:
    """Returns what a process has done.

    Raises:
        RuntimeError: if it failed.
        Skipped: if its library is not installed.
    """
    if isinstance(process, RuntimeError):
        raise process
    answer = json.loads(process.output.splitlines()[-1])
    if "skipped" in answer:
        raise Skipped(answer["skipped"])
    return Done(**answer)


def speed(system: Training, processes: Sequence[harness.Process | RuntimeError]) -> dict[str, float]:
    """Returns speed and memory of a system, by its shorter and its longer run.

    Raises:
        RuntimeError: if it failed, or did other work than asked for.
        Skipped: if its library is not installed.
    """
    done = [done_by(process) for process in processes]
    for steps, one in zip(system.steps, done, strict=True):
        if wrong := faults(system.work, steps, one):
            raise RuntimeError("; ".join(wrong))
    short, long = processes
    assert isinstance(short, harness.Process)
    assert isinstance(long, harness.Process)
    if long.seconds <= short.seconds:
        raise RuntimeError("the longer run took no longer; is the machine busy?")
    steps, cpu = done[1].env_steps - done[0].env_steps, long.cpu_seconds - short.cpu_seconds
    of_cpu = {"steps_per_cpu_second": steps / cpu} if cpu > 0 else {}
    return {"steps_per_second": steps / (long.seconds - short.seconds), **of_cpu, "peak_mib": long.peak_mib}


def speeds(systems: Mapping[str, Training]) -> dict[str, dict[str, float] | Exception]:
    """Runs systems by turns, and returns what each has measured, or why it has not."""
    lengths = [
        harness.by_turns([(one.words(one.steps[k]), one.work.threads) for one in systems.values()])
        for k in (0, 0, 1)  # after the first, not counted, files are in memory and compiled code on disk
    ]
    results: dict[str, dict[str, float] | Exception] = {}
    for (name, system), processes in zip(systems.items(), zip(*lengths[1:], strict=True), strict=True):
        try:
            results[name] = speed(system, processes)
        except (RuntimeError, Skipped) as error:
            results[name] = error
    return results


class Command(NamedTuple):
    """A process that is measured as a whole: arguments of Python, {seed} the round, {folder} a new folder."""

    words: list[str]

    def measure(self, number: int) -> dict[str, float]:
        """Returns seconds and memory, and env steps if the result.json of the process says that it solved."""
        for _ in range(2 if number == 0 else 1):  # the first process reads files from disk
            with tempfile.TemporaryDirectory() as parent:
                folder = Path(parent) / "run"
                process = harness.python([word.format(seed=number, folder=folder) for word in self.words])
                measured = {"seconds": process.seconds, "peak_mib": process.peak_mib}
                if (folder / "result.json").exists():
                    result = json.loads((folder / "result.json").read_text())
                    measured |= {"env_steps": result["env_step"]} if result["solved"] else {}
        return measured


class Row(NamedTuple):
    """Systems on one task, by their names in the table; ``base`` divides the others.

    They run ``alone``, one after the other, if they start processes, which cannot be stopped with them.
    """

    systems: Mapping[str, Training | Command]
    base: str
    rounds: int = 3
    alone: bool = False
    needs_gpu: bool = False


def _system(name: str, work: dict[str, Any], how: dict[str, Any]) -> Training:
    """Returns a system of throughput.toml."""
    keys = f"{work.get('keys', '')} {how.pop('keys', '')}"
    return Training(Work(name, **work | {"keys": keys}), **how)


def _row(name: str, systems: dict[str, Any], work: dict[str, Any], **fields: Any) -> Row:
    return Row({system: _system(name, work, how) for system, how in systems.items()}, **fields)


TABLE = tomllib.loads((harness.HERE / "throughput.toml").read_text())
EVALUATIONS = {
    "env.n_evaluator_episode": SOLVED["episodes"],
    "env.stop_value": SOLVED["value"],
    "env.evaluator_env_num": 8,
    "policy.eval.eval_freq": SOLVED["every"],
}
KEYS = [f"{key}={value}" for key, value in (TO_SOLVE.keys() | EVALUATIONS).items()]
TRAIN = [
    "-m",
    "ding_lite",
    "train",
    "-q",
    "--env",
    "CartPole-v1",
    "--plain",
    "-s",
    "{seed}",
    "--exp-name",
    "{folder}",
]
SOLVE = {
    "ding_lite": Command([*TRAIN, *KEYS]),
    "Stable-Baselines3": Command(["-c", "from systems.sb3 import solve; solve({seed}, '{folder}')"]),
}
ROWS = {"solve": Row(SOLVE, base="Stable-Baselines3", rounds=7)}
ROWS |= {name: _row(name, **fields) for name, fields in TABLE.items()}


def measure(name: str, rounds: int | None = None, deadline: float = float("inf")) -> bool:
    """Runs the missing rounds of a row on this machine, and stores each.

    Returns:
        Whether all of it is measured; a system that fails is named, and the others continue.
    """
    here, row, left_out, complete = harness.measured_here(), ROWS[name], set(), True
    for number in range(rounds or row.rounds):
        place = {"row": name, "machine": here["machine"]}
        stored = [line["system"] for line in harness.read(STORE) if place.items() <= line.items()]
        missing = {
            system: how
            for system, how in row.systems.items()
            if stored.count(system) <= number and system not in left_out
        }
        if missing and time.monotonic() > deadline - SPARE:
            return False
        trainings = {system: how for system, how in missing.items() if isinstance(how, Training)}
        groups = [{system: how} for system, how in trainings.items()] if row.alone else [trainings]
        results = {system: one for group in groups for system, one in speeds(group).items()}
        for system, how in missing.items():
            try:
                measured = how.measure(number) if isinstance(how, Command) else results[system]
                if isinstance(measured, Exception):
                    raise measured
            except (RuntimeError, Skipped) as error:
                left_out.add(system)
                complete &= isinstance(error, Skipped)
                print(f"{name}: {system}: {error}", file=sys.stderr, flush=True)
                continue
            rounded = {column: round(value, 4) for column, value in measured.items()}
            harness.append(STORE, [{**place, "system": system, "round": number, **rounded, **here}])
            print(f"{name}  round {number + 1}  {system}: {rounded}", flush=True)
    return complete


def sections() -> dict[str, list[str]]:
    """Returns the generated lines of RESULTS.md: speed and seconds, a table for each machine."""
    stored = harness.read(STORE)
    return {
        "speed": _tables(stored, "steps_per_second", "steps/s", 0),
        "seconds": _tables(stored, "seconds", "s", 2),
        "readme-speed": _short(stored),
    }


def _short(stored: list[dict[str, Any]]) -> list[str]:
    """Returns README's table: steps/s here and in the other library, on the CPU, and their ratio."""
    rows = [["task", "ding_lite", "Stable-Baselines3", "ratio (range of the rounds)"]]
    for title, (name, system) in IN_README.items():
        of_cpu = [line for line in stored if line["row"] == name and line["machine"].startswith("2 cores")]
        ours, peer = (
            [line for line in of_cpu if line["system"] == each] for each in (system, ROWS[name].base)
        )
        values = f"{median(line['steps_per_second'] for line in peer):,.0f}"
        cells = list(_cells(ours, peer, "steps_per_second", 0))
        rows.append([title, cells[0], values, cells[2]])
    return harness.table(*rows)


def _tables(stored: list[dict[str, Any]], column: str, unit: str, digits: int) -> list[str]:
    lines: list[str] = []
    for machine in dict.fromkeys(line["machine"] for line in stored if column in line):
        names = [f"row, on {machine}", "system", f"{unit}, median", "range", "times (range)"]
        names += ["env steps, median"] if column == "seconds" else []
        rows = [[*names, "peak memory, MiB", "rounds", "commit"]]
        found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for line in stored:
            if line["machine"] == machine and column in line:
                found.setdefault((line["row"], line["system"]), []).append(line)
        for name, row in ROWS.items():
            base = found.get((name, row.base), [])
            for system in row.systems:
                if results := found.get((name, system)):
                    rows.append([name, system, *_cells(results, base, column, digits)])
        lines += [*([""] if lines else []), *harness.table(*rows)]
    return lines


def _cells(
    results: list[dict[str, Any]], base: list[dict[str, Any]], column: str, digits: int
) -> Iterator[str]:
    """Yields the cells of a system: "times" has the median of the ratios of each round at one commit."""
    values = [line[column] for line in results]
    yield f"**{median(values):,.{digits}f}**"
    yield " to ".join(dict.fromkeys(f"{edge:,.{digits}f}" for edge in (min(values), max(values))))
    at = {(line["commit"], line["round"]): line[column] for line in base}
    pairs = [(line[column], at.get((line["commit"], line["round"]))) for line in results]
    ratios = [value / other for value, other in pairs if other]
    of_rounds = "" if results is base or len(ratios) < 2 else f" ({min(ratios):.2f} to {max(ratios):.2f})"
    yield f"{median(ratios):.2f}{of_rounds}" if ratios else ""
    if column == "seconds":
        steps = [line["env_steps"] for line in results if "env_steps" in line]
        yield f"{median(steps):,.0f}" if steps else ""
    peaks = [line["peak_mib"] for line in results if "peak_mib" in line]
    yield f"{median(peaks):,.0f}" if peaks else ""
    yield str(len(values))
    yield ", ".join(dict.fromkeys(line["commit"] for line in results))


def main() -> int:
    """Measures rows; returns 1 if a system failed."""
    parser = harness.parser(__doc__, ROWS)
    parser.add_argument("--rounds", type=int, help="of each system")
    args = parser.parse_args()
    names = args.rows or [name for name, row in ROWS.items() if not row.needs_gpu]
    complete = [measure(name, args.rounds) for name in ([] if args.write else names)]
    harness.put(sections())
    return 0 if all(complete) else 1


if __name__ == "__main__":
    sys.exit(main())
