"""Speed, beside other libraries on the same work: whole processes, timed from outside, in interleaved rounds.

    python benchmarks/throughput.py                 every row that is not there yet
    python benchmarks/throughput.py ROW ...         these rows only
    python benchmarks/throughput.py --rounds 1      so many rounds of each (by default 2 to 9, by the row)

    cartpole, halfcheetah, breakout, procgen_ppg    long-run env steps per second of training
    collect, collect_costs                          collecting alone
    solve                                           from the command line until CartPole-v1 is solved
    start                                           importing, and the command line's first answer

Each measurement is a process of its own. Stopped, it goes on where it was: what is measured is in
throughput/ROW.json (remove it to measure anew). Systems whose library is not installed are named so.
RESULTS.md is rewritten between its markers. The systems are in systems/, the rows in speed_rows.py.
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
    """Runs the rounds of a row that are missing, stores each, and writes the table.

    Returns:
        how many systems failed; the others go on without them.
    """
    file = store / f"{row.name}.json"
    stored: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"arms": {}}
    stored["skipped"], failed = {}, 0  # what was missing may be installed by now
    for number in range(rounds):
        for arm in row.arms:
            done = stored["arms"].setdefault(arm, [])
            if len(done) > number or arm in stored["skipped"]:
                continue
            try:
                found = row.measure(arm, number)
            except RuntimeError as error:
                print(error, file=sys.stderr, flush=True)
                failed += 1
                found = {"skipped": f"failed: {str(error).strip().splitlines()[-1]}"}
            if "skipped" in found:
                stored["skipped"][arm] = found["skipped"]
                print(f"{row.name}  {arm}: {found['skipped']}", flush=True)
                continue
            done.append(found)
            report.store(file, stored)
            print(f"{row.name}  round {number + 1}  {arm}: {row.say(found)}", flush=True)
    write_table(row, stored, document)
    return failed


def write_table(row: Row, stored: dict[str, Any], document: Path) -> None:
    """Writes what is stored of a row between its markers."""
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
