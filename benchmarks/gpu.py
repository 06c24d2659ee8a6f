"""Everything that waits for a GPU, step by step; a stopped measurement continues.

    python benchmarks/gpu.py                 every step that is not done
    python benchmarks/gpu.py STEP ...        only these steps
    python benchmarks/gpu.py --minutes 9     start nothing in the last two of nine minutes

    tests        the tests that need a GPU; runs/gpu/tests.txt has what they print
    atari        steps per second with LeanRL's settings of PPO on Atari
    tensors_gpu  steps per second with 4,096 torch Pendulums on the GPU; tensors_gpu_16384: with 16,384
    procgen      steps per second of PPG with the network of arXiv:2009.04416

Speed is stored in throughput.csv after each measurement. Learning on a GPU: learning.py --device cuda.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import harness
import throughput
import torch

TESTS = Path("runs") / "gpu" / "tests.txt"
STEPS = ["tests", *(name for name, row in throughput.ROWS.items() if row.needs_gpu)]


def tests() -> bool:
    """Runs the tests that need a GPU, unless they have run; returns whether all of them pass."""
    if not TESTS.exists():
        # A file that needs a package that is not installed counts as an error, and the others run.
        options = ["-m", "gpu", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
        command = [sys.executable, "-m", "pytest", "-q", *options]
        process = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=harness.HERE.parent)
        TESTS.parent.mkdir(parents=True, exist_ok=True)
        TESTS.write_text(f"{harness.measured_here()}\n{process.stdout}")
    text = TESTS.read_text()
    print(text[-2000:], flush=True)
    return " passed" in text and " failed" not in text


def main() -> int:
    """Runs the steps; returns 1 if a step is not done yet."""
    parser = harness.parser(__doc__, STEPS)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so many minutes")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no GPU that torch can use")
    deadline, left = time.monotonic() + 60 * args.minutes, []
    for name in args.rows or STEPS:
        if not (tests() if name == "tests" else throughput.measure(name, deadline=deadline)):
            left.append(name)
    harness.put(throughput.sections())
    print(f"not done yet: {', '.join(left)}" if left else "all of it is done")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
