"""Speed, beside other libraries on the same work: whole processes, timed from outside, in interleaved rounds.

    python benchmarks/throughput.py                 every row that is not measured yet
    python benchmarks/throughput.py ROW ...         only these rows
    python benchmarks/throughput.py --rounds 1      number of rounds (by default 2 to 9, depending on the row)
    python benchmarks/throughput.py --write         measure nothing: the tables of what is stored

    cartpole, cartpole_lstm, halfcheetah, breakout, procgen_ppg    env steps per second of training
    collect                                         collecting alone
    everything_cartpole, _halfcheetah, _breakout    training with evaluations and checkpoints
    humanoid_64, humanoid_512, slow_humanoid_512    training on one and on two ranks
    solve                                           from the command line until CartPole-v1 is solved
    start                                           importing, and the command line's first answer

A stopped benchmark continues: each measurement is a line of throughput.csv (delete the lines of a row to
measure it again). A system whose library is not installed is named and left out. systems/ has the systems,
speed_rows.py the rows.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import harness
from speed_rows import SPEED_ROWS, SpeedRow, TimeRow
from systems import Skipped

STORE = harness.HERE / "throughput.csv"
SPARE = 120.0  # seconds that a measurement may take


def measure(
    row: SpeedRow | TimeRow, rounds: int, deadline: float = float("inf"), store: Path = STORE
) -> bool:
    """Runs the missing rounds of a row on this machine, and stores each.

    Returns:
        Whether all of it is measured; a system that fails is named, and the others continue.
    """
    here, left_out, complete = harness.measured_here(), set(), True
    for number in range(rounds):
        for arm in row.systems:
            place = {"row": row.name, "system": arm, "machine": here["machine"]}
            done = sum(place.items() <= line.items() for line in harness.read(store))
            if done > number or arm in left_out:
                continue
            if time.monotonic() > deadline - SPARE:
                return False
            try:
                measured = row.measure(arm, number)
            except (RuntimeError, Skipped) as error:
                left_out.add(arm)
                complete &= isinstance(error, Skipped)
                print(f"{row.name}: {arm}: {error}", file=sys.stderr, flush=True)
                continue
            rounded = {name: round(value, 4) for name, value in measured.items()}
            harness.append(store, [{**place, "round": number, **rounded, **here}])
            print(f"{row.name}  round {number + 1}  {arm}: {rounded}", flush=True)
    return complete


def sections(store: Path = STORE) -> dict[str, list[str]]:
    """Returns the generated lines of RESULTS.md: speed and seconds, a table for each machine."""
    stored = harness.read(store)
    return {
        "speed": _tables(stored, "steps_per_second", "steps/s", 0),
        "seconds": _tables(stored, "seconds", "s", 2),
    }


def _tables(stored: list[dict[str, Any]], column: str, unit: str, digits: int) -> list[str]:
    lines: list[str] = []
    for machine in dict.fromkeys(line["machine"] for line in stored if column in line):
        names = [f"row, on {machine}", "system", f"{unit}, median", "range", "times (range)"]
        names += ["env steps, median"] if column == "seconds" else []
        names += ["peak memory, MiB", "rounds", "commit"]
        lines += [*([""] if lines else []), f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
        here = [line for line in stored if line["machine"] == machine and column in line]
        for name, row in SPEED_ROWS.items():
            arms = {
                arm: [line for line in here if (line["row"], line["system"]) == (name, arm)]
                for arm in row.systems
            }
            for arm, results in arms.items():
                if results:
                    cells = _cells(results, arms[row.base], column, digits)
                    lines.append(f"| {' | '.join([name, arm, *cells])} |")
    return lines


def _cells(
    results: list[dict[str, Any]], base: list[dict[str, Any]], column: str, digits: int
) -> Iterator[str]:
    """Yields the cells of a system: "times" has the medians' ratio, and the range of those of each round."""
    values, others = ([line[column] for line in lines] for lines in (results, base))
    yield f"**{median(values):,.{digits}f}**"
    yield f"{min(values):,.{digits}f} to {max(values):,.{digits}f}"
    ratios = [value / other for value, other in zip(values, others, strict=False)]
    of_rounds = "" if results is base or len(ratios) < 2 else f" ({min(ratios):.2f} to {max(ratios):.2f})"
    yield f"{median(values) / median(others):.2f}{of_rounds}" if others else ""
    if column == "seconds":
        steps = [line["env_steps"] for line in results if "env_steps" in line]
        yield f"{median(steps):,.0f}" if steps else ""
    peaks = [line["peak_mib"] for line in results if "peak_mib" in line]
    yield f"{median(peaks):,.0f}" if peaks else ""
    yield str(len(values))
    yield ", ".join(dict.fromkeys(line["commit"] for line in results))


def write() -> None:
    """Writes the tables of RESULTS.md."""
    for name, lines in sections().items():
        harness.put(name, lines)


def main() -> int:
    """Measures rows; returns 1 if a system failed."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(SPEED_ROWS)}")
    parser.add_argument("--rounds", type=int, help="of each system")
    parser.add_argument("--write", action="store_true", help="only write what is stored")
    args = parser.parse_args()
    if unknown := [name for name in args.rows if name not in SPEED_ROWS]:
        parser.error(f"unknown row {unknown[0]!r}; there are {', '.join(SPEED_ROWS)}")
    names = args.rows or [name for name, row in SPEED_ROWS.items() if not row.needs_gpu]
    complete = True
    for name in [] if args.write else names:
        complete &= measure(SPEED_ROWS[name], args.rounds or SPEED_ROWS[name].rounds)
    write()
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
