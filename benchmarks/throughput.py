"""Speed, beside other libraries on the same work: whole processes, timed from outside, in interleaved rounds.

    python benchmarks/throughput.py                 every row that is not measured yet
    python benchmarks/throughput.py ROW ...         only these rows
    python benchmarks/throughput.py --rounds 1      number of rounds (by default 2 to 9, depending on the row)

    cartpole, halfcheetah, breakout, procgen_ppg    long-run env steps per second of training
    collect, collect_costs                          collecting alone
    everything_cartpole, _halfcheetah, _breakout    training with evaluations and checkpoints
    solve                                           from the command line until CartPole-v1 is solved
    start                                           importing, and the command line's first answer

Each measurement is a process of its own. A stopped benchmark continues: measurements are in
throughput/ROW.json (remove the file to measure again). The table names systems whose library is not
installed. RESULTS.md is rewritten between its markers. systems/ has the systems, speed_rows.py the rows.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import report
from solving import SolveRow
from speed_rows import SPEED_ROWS, SpeedRow
from starting import StartRow

STORE = Path(__file__).parent / "throughput"
Row = SpeedRow | SolveRow | StartRow
ROWS: dict[str, Row] = {**SPEED_ROWS, "solve": SolveRow(), "start": StartRow()}


def measure(row: Row, rounds: int, store: Path = STORE, document: Path = report.RESULTS) -> int:
    """Runs the missing rounds of a row, stores each, and writes the table.

    Returns:
        The number of systems that failed; the others continue.
    """
    file = store / f"{row.name}.json"
    stored: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"arms": {}}
    stored["skipped"], failed = {}, 0  # a missing library may be installed by now
    for number in range(rounds):
        for arm in row.arms:
            done = stored["arms"].setdefault(arm, [])
            if len(done) > number or arm in stored["skipped"]:
                continue
            try:
                result = row.measure(arm, number)
            except RuntimeError as error:
                print(error, file=sys.stderr, flush=True)
                failed += 1
                result = {"skipped": f"failed: {str(error).strip().splitlines()[-1]}"}
            if "skipped" in result:
                stored["skipped"][arm] = result["skipped"]
                print(f"{row.name}  {arm}: {result['skipped']}", flush=True)
                continue
            done.append(result)
            report.store(file, stored)
            print(f"{row.name}  round {number + 1}  {arm}: {row.say(result)}", flush=True)
    write_table(row, stored, document)
    return failed


def write_table(row: Row, stored: dict[str, Any], document: Path) -> None:
    """Writes the table of a row between its markers."""
    lines = row.lines(stored["arms"], stored["skipped"])
    if "commit" in stored:
        lines += ["", f"Commit {stored['commit']}, {stored['date']}, {stored['machine']}."]
    report.put(f"speed {row.name}", lines, document)
    print("\n".join(lines), flush=True)


def main() -> int:
    """Measures rows; returns 1 if a system failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--rounds", type=int, help="of each system")
    args = parser.parse_args()
    unknown = [name for name in args.rows if name not in ROWS]
    if unknown:
        parser.error(f"unknown row {unknown[0]!r}; there are {', '.join(ROWS)}")
    failed = [measure(ROWS[name], args.rounds or ROWS[name].rounds) for name in args.rows or ROWS]
    return 1 if any(failed) else 0


if __name__ == "__main__":
    sys.exit(main())
