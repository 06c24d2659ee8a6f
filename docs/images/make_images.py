"""Makes the pictures of README.md from real runs on this machine; takes about a minute.

python docs/images/make_images.py

terminal.svg    what `ding-lite train -c cartpole_ppo` and `ding-lite eval` print in a terminal
cartpole.svg    `ding-lite plot` of five seeds of cartpole_ppo, without early stopping
"""

import io
import os
import pty
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
COLUMNS = 96
SEEDS = range(5)
CURVE = ["--max-env-step", "40000", "env.stop_value=null", "policy.eval.eval_freq=2500"]
COMMAND = [sys.executable, "-m", "ding_lite"]


def terminal_output(arguments: str, folder: str) -> str:
    """Returns what a command shows in a terminal when it has ended; colours are kept as ANSI codes."""
    read, write = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "LINES": "40", "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [*COMMAND, *arguments.split()], cwd=folder, env=environment, stdin=write, stdout=write, stderr=write
    )
    os.close(write)
    chunks = []
    while True:
        try:
            chunk = os.read(read, 65_536)
        except OSError:  # the process has closed the terminal
            break
        if not chunk:
            break
        chunks.append(chunk)
    if process.wait():
        raise RuntimeError(f"ding-lite {arguments} failed:\n{b''.join(chunks).decode()}")
    kept: list[str] = []
    for line in b"".join(chunks).decode().replace("\r\n", "\n").split("\n"):
        if "\x1b[1A" in line:  # the line above is erased
            kept.pop()
        # Every frame of the live bar begins by erasing the line: only the last one of each line stays.
        kept.append(line.split("\x1b[2K")[-1].lstrip("\r"))
    return "\n".join(kept)


def make_terminal(folder: str) -> None:
    """Writes terminal.svg."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    for arguments in ("train -c cartpole_ppo", "eval runs/cartpole_ppo -n 100"):
        console.print(f"[bold green]$[/] [bold]ding-lite {arguments}[/]", highlight=False)
        console.print(Text.from_ansi(terminal_output(arguments, folder).rstrip()))
    console.save_svg(str(HERE / "terminal.svg"), title="ding-lite")


def make_curves(folder: str) -> None:
    """Writes cartpole.svg."""
    runs = [f"runs/seed_{seed}" for seed in SEEDS]
    for seed, run in zip(SEEDS, runs, strict=True):
        train = ["train", "-q", "-c", "cartpole_ppo", "-s", str(seed), "--exp-name", run, *CURVE]
        subprocess.run([*COMMAND, *train], cwd=folder, check=True)
    subprocess.run([*COMMAND, "plot", *runs, "-o", str(HERE / "cartpole.svg")], cwd=folder, check=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        make_terminal(folder)
        make_curves(folder)
