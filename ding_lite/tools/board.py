"""What several runs show while they train: a bar for each in a terminal, lines of events anywhere else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TextIO

from ding_lite.run.display import Lines, score_text
from ding_lite.tools.several import Board, Training


class EventLines(Board):
    """Writes one plain line for each event, for logs and pipes.

    Args:
        stream: to write to.
    """

    def __init__(self, stream: TextIO) -> None:
        self._lines = Lines(stream)

    def say(self, text: str) -> None:
        """Writes a line."""
        self._lines.say(text)


class Bars(Board):
    """Draws a bar for each run that trains now, and writes the events above them."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskID, TextColumn

        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[steps]}  {task.fields[score]}"),
            console=Console(),
            refresh_per_second=5,
        )
        self._tasks: dict[str, TaskID] = {}

    def say(self, text: str) -> None:
        """Prints a line above the bars."""
        self.progress.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, running: Sequence[Training]) -> None:
        """Moves the bars; adds those of new runs, and removes those of runs that have ended."""
        for name in set(self._tasks) - {training.name for training in running}:
            self.progress.remove_task(self._tasks.pop(name))
        for training in running:
            if training.name not in self._tasks:
                task = self.progress.add_task(training.name, total=training.max_env_step, steps="", score="")
                self._tasks[training.name] = task
            recent = training.episode_return
            self.progress.update(
                self._tasks[training.name],
                completed=min(training.env_step, training.max_env_step),
                steps=f"{training.env_step:,} steps",
                score="" if recent is None else f"return {score_text(recent)}",
            )


@contextlib.contextmanager
def board_for(stream: TextIO, quiet: bool) -> Iterator[Board]:
    """Yields bars for a terminal, lines for any other stream, or nothing if ``quiet``."""
    if quiet:
        yield Board()
    elif stream.isatty():
        bars = Bars()
        with bars.progress:
            yield bars
    else:
        yield EventLines(stream)
