"""Makes terminal.svg: what `ding-lite train -c cartpole_ppo` and `ding-lite eval` print in a terminal.

python docs/images/make_terminal.py
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

COLUMNS = 80
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


if __name__ == "__main__":
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory() as folder:
        for arguments in ("train -c cartpole_ppo", "eval runs/cartpole_ppo -n 100"):
            console.print(f"[bold green]$[/] [bold]ding-lite {arguments}[/]", highlight=False)
            console.print(Text.from_ansi(terminal_output(arguments, folder).rstrip()))
    console.save_svg(str(Path(__file__).with_name("terminal.svg")), title="ding-lite")
