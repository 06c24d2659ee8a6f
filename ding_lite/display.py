"""What a run shows while it trains: a live bar in a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TextIO

from ding_lite.types import Progress

SECONDS_BETWEEN_LINES = 5.0


class Display(Protocol):
    """Shows progress; nothing that it does may change or stop a run."""

    def say(self, text: str) -> None: ...

    def show(self, progress: Progress, max_env_step: int) -> None: ...


class Quiet:
    """Shows nothing."""

    def say(self, text: str) -> None:
        """Says nothing."""

    def show(self, progress: Progress, max_env_step: int) -> None:
        """Shows nothing."""


class Lines:
    """Plain lines for logs and pipes: one every few seconds, and one at each evaluation."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stdout
        self._last = 0.0

    def say(self, text: str) -> None:
        # A reader that went away (`| head`) must not end the training.
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(text + "\n")
            self.stream.flush()

    def show(self, progress: Progress, max_env_step: int) -> None:
        now = time.monotonic()
        if progress.evaluation is not None:
            self.say(evaluation_line(progress))
        elif now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            parts = [f"{progress.env_step:>9,}/{max_env_step:,} steps", *facts(progress.metrics)]
            self.say("  ".join([*parts, f"left {left(progress, max_env_step)}"]))


class Bar:
    """A live bar: steps, return and length of the last 100 episodes, learning rate, speed, time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self.console = Console()
        self._bar = RichProgress(
            TextColumn("[bold]{task.fields[steps]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[facts]}"),
            TextColumn("[dim]left {task.fields[left]}"),
            console=self.console,
            refresh_per_second=5,
        )
        self._task = self._bar.add_task("", total=None, steps="", facts="", left="?")

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False)

    def show(self, progress: Progress, max_env_step: int) -> None:
        if progress.evaluation is not None:
            self.say(evaluation_line(progress))
        self._bar.update(
            self._task,
            total=max_env_step,
            completed=min(progress.env_step, max_env_step),
            steps=f"{progress.env_step:,}",
            facts="  ".join(facts(progress.metrics)),
            left=left(progress, max_env_step),
        )

    @contextlib.contextmanager
    def live(self) -> Iterator[None]:
        with self._bar:
            yield


@contextlib.contextmanager
def display_for(stream: TextIO, quiet: bool = False) -> Iterator[Display]:
    """Yields the display that suits ``stream``."""
    if quiet:
        yield Quiet()
    elif stream.isatty():
        bar = Bar()
        with bar.live():
            yield bar
    else:
        yield Lines(stream)


def facts(metrics: Mapping[str, Any]) -> list[str]:
    """Returns the few numbers that people look at, as short texts."""
    told = []
    if "collect/episode_return" in metrics:
        told.append(f"return {metrics['collect/episode_return']:.1f}")
        longest = metrics["collect/episode_length_max"]
        told.append(f"length {metrics['collect/episode_length']:.0f} (max {longest:.0f})")
    if "learn/cur_lr" in metrics:
        told.append(f"lr {metrics['learn/cur_lr']:.2g}")
    if "time/env_steps_per_second" in metrics:
        told.append(f"{metrics['time/env_steps_per_second']:,.0f} steps/s")
    return told


def left(progress: Progress, max_env_step: int) -> str:
    """Returns the time to the step limit at the present speed, as minutes and seconds."""
    speed = progress.metrics.get("time/env_steps_per_second", 0.0)
    if not speed:
        return "?"
    seconds = int(max(0, max_env_step - progress.env_step) / speed)
    hours, rest = divmod(seconds, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def evaluation_line(progress: Progress) -> str:
    """Returns one line about the evaluation of this turn."""
    found = progress.evaluation
    assert found is not None, "called after an evaluation"
    line = (
        f"{progress.env_step:>9,} steps  evaluation {found.mean:.1f} ± {found.std:.1f} "
        f"over {len(found.returns)} episodes"
    )
    if found.cut_short:
        line += f"  ({found.cut_short} cut at env.max_eval_steps)"
    return line + ("  solved" if progress.solved else "")
