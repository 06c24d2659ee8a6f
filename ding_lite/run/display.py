"""What a run shows while it trains: a live bar in a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

from ding_lite.data.episodes import SUCCESS, means_of
from ding_lite.run.progress import Progress
from ding_lite.run.score_text import score_text

SECONDS_BETWEEN_LINES = 5.0


class Display:
    """Shows the progress of a run, which it must never change or stop; this base class shows nothing."""

    def say(self, text: str) -> None:
        """Shows a line."""

    def show(self, progress: Progress, max_env_step: int) -> None:
        """Shows the progress after an iteration."""


class Lines(Display):
    """Writes plain lines, for logs and pipes: one every few seconds, and one at each evaluation.

    Args:
        stream: to write to.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._last_line_at = 0.0
        self._time_left = TimeLeft()

    def say(self, text: str) -> None:
        """Writes a line; a stream that is closed, as by ``| head``, does not end the training."""
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(text + "\n")
            self.stream.flush()

    def show(self, progress: Progress, max_env_step: int) -> None:
        """Writes the evaluation, or the key metrics if some seconds have passed since the last time."""
        now = time.monotonic()
        left = self._time_left.after(progress, max_env_step)
        if progress.evaluation is not None:
            self.say(evaluation_line(progress))
        elif now - self._last_line_at >= SECONDS_BETWEEN_LINES:
            self._last_line_at = now
            texts = [
                f"{progress.env_step:>9,}/{max_env_step:,} steps",
                *key_metrics(progress.metrics),
                f"left {left}",
            ]
            self.say("  ".join(texts))


class Bar(Display):
    """Draws a live bar: steps, return and length of the recent episodes, learning rate, speed, time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self.bar = RichProgress(
            TextColumn("[bold]{task.fields[steps]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[metrics]}"),
            TextColumn("[dim]left {task.fields[left]}"),
            console=Console(),
            refresh_per_second=5,
        )
        self._time_left = TimeLeft()
        self._task = self.bar.add_task("", total=None, steps="", metrics="", left="?")

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        self.bar.console.print(text, highlight=False, markup=False)

    def show(self, progress: Progress, max_env_step: int) -> None:
        """Updates the bar, and prints the evaluation if there was one."""
        if progress.evaluation is not None:
            self.say(evaluation_line(progress))
        self.bar.update(
            self._task,
            total=max_env_step,
            completed=min(progress.env_step, max_env_step),
            steps=f"{progress.env_step:,}",
            metrics="  ".join(key_metrics(progress.metrics)),
            left=self._time_left.after(progress, max_env_step),
        )


@contextlib.contextmanager
def display_for(stream: TextIO, quiet: bool = False) -> Iterator[Display]:
    """Yields a bar for a terminal, lines for any other stream, or nothing if ``quiet``."""
    if quiet:
        yield Display()
    elif stream.isatty():
        shown = Bar()
        with shown.bar:
            yield shown
    else:
        yield Lines(stream)


def key_metrics(metrics: Mapping[str, Any]) -> list[str]:
    """Returns the metrics that a line or a bar shows, as short texts; those that are missing are left out."""
    texts = []
    if "collect/episode_return" in metrics:
        length, longest = metrics["collect/episode_length"], metrics["collect/episode_length_max"]
        texts.append(f"return {score_text(metrics['collect/episode_return'])}")
        texts.append(f"length {length:.0f} (max {longest:.0f})")
    if f"collect/{SUCCESS}" in metrics:
        texts.append(f"success {metrics[f'collect/{SUCCESS}']:.0%}")
    if "learn/cur_lr" in metrics:
        texts.append(f"lr {metrics['learn/cur_lr']:.2g}")
    if "time/env_steps_per_second" in metrics:
        texts.append(f"{metrics['time/env_steps_per_second']:,.0f} steps/s")
    return texts


class TimeLeft:
    """The time that a run still takes, at its mean speed over the last iterations, with its evaluations.

    The first iteration does not count: it compiles. ``RECENT`` iterations have a whole phase of PPG in them.

    Args:
        clock: returns the time in seconds.
    """

    RECENT = 32

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._shown: deque[tuple[float, int]] = deque(maxlen=self.RECENT + 1)

    def after(self, progress: Progress, max_env_step: int) -> str:
        """Returns the time to ``max_env_step`` after an iteration, as [h:]mm:ss, or "?" after the first."""
        self._shown.append((self._clock(), progress.env_step))
        (began, first), (now, last) = self._shown[0], self._shown[-1]
        if last == first:
            return "?"
        seconds = int(max(0, max_env_step - last) * (now - began) / (last - first))
        hours, seconds = divmod(seconds, 3600)
        minutes, seconds = divmod(seconds, 60)
        return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def evaluation_line(progress: Progress) -> str:
    """Returns a line about the evaluation of the last iteration; there must have been one."""
    evaluation = progress.evaluation
    assert evaluation is not None, "called after an evaluation"
    episodes, confirming = len(evaluation.returns), progress.confirming
    line = (
        f"{progress.env_step:>9,} steps  evaluation {score_text(evaluation.mean, evaluation.std)} "
        f"over {episodes} episodes"
    )
    if confirming:
        line += f" ({episodes - confirming}, and {confirming} to confirm)"
    if SUCCESS in (means := means_of(evaluation.infos)):
        line += f"  success {means[SUCCESS]:.0%}"
    if evaluation.cut_short:
        line += f"  ({evaluation.cut_short} cut short)"
    return line + ("  solved" if progress.solved else "")
