"""What a run shows while it trains: a live bar in a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from ding_lite.run.hooks import Hook

if TYPE_CHECKING:
    from ding_lite.run.progress import Progress

SECONDS_BETWEEN_LINES = 5.0


def score_digits(*scores: float) -> int:
    """Returns the decimals of returns in one line: one, or three where all are small, as from 0 to 1."""
    return 1 if max(map(abs, scores)) >= 9.9995 else 3


def score_text(value: float | None, spread: float | None = None) -> str:
    """Returns a return for the terminal, with its standard deviation if given; "-" for None."""
    if value is None:
        return "-"
    digits = score_digits(value, spread or 0.0)
    return f"{value:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")


class Lines(Hook):
    """Writes plain lines, for logs and pipes: one every few seconds, and one at each evaluation.

    Args:
        stream: to write to.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._last_line_at = 0.0
        self._time_left = TimeLeft()

    def say(self, line: str) -> None:
        """Writes a line; a stream that is closed, as by ``| head``, does not end the training."""
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(line + "\n")
            self.stream.flush()

    def after_iter(self, pipeline: Any) -> None:
        """Writes the evaluation, or the key metrics if some seconds have passed since the last time."""
        progress, limit, now = pipeline.progress, pipeline.cfg.max_env_step, time.monotonic()
        left = self._time_left.after(progress.env_step, limit)
        if progress.evaluation is not None:
            self.say(evaluation_line(progress))
        elif now - self._last_line_at >= SECONDS_BETWEEN_LINES:
            self._last_line_at = now
            steps = f"{progress.env_step:>9,}/{limit:,} steps"
            self.say("  ".join([steps, *key_metrics(progress.metrics), f"left {left}"]))

    def after_run(self, pipeline: Any) -> None:
        self.say(pipeline.summary())


class Bar(Hook):
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

    def say(self, line: str) -> None:
        """Prints a line above the bar."""
        self.bar.console.print(line, highlight=False, markup=False)

    def before_run(self, pipeline: Any) -> None:
        self.bar.start()

    def after_iter(self, pipeline: Any) -> None:
        """Updates the bar, and prints the evaluation if there was one."""
        progress, limit = pipeline.progress, pipeline.cfg.max_env_step
        if progress.evaluation is not None:
            self.say(evaluation_line(progress))
        self.bar.update(
            self._task,
            total=limit,
            completed=min(progress.env_step, limit),
            steps=f"{progress.env_step:,}",
            metrics="  ".join(key_metrics(progress.metrics)),
            left=self._time_left.after(progress.env_step, limit),
        )

    def after_run(self, pipeline: Any) -> None:
        self.bar.stop()
        self.say(pipeline.summary())


def display_for(stream: TextIO) -> Hook:
    """Returns a bar for a terminal, and lines for any other stream."""
    return Bar() if stream.isatty() else Lines(stream)


def key_metrics(metrics: Mapping[str, Any]) -> list[str]:
    """Returns the metrics that a line or a bar shows, as short texts; those that are missing are left out."""
    texts = []
    if "collect/episode_return" in metrics:
        length, longest = metrics["collect/episode_length"], metrics["collect/episode_length_max"]
        texts.append(f"return {score_text(metrics['collect/episode_return'])}")
        texts.append(f"length {length:.0f} (max {longest:.0f})")
    if "collect/is_success" in metrics:
        texts.append(f"success {metrics['collect/is_success']:.0%}")
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

    def after(self, env_step: int, max_env_step: int) -> str:
        """Returns the time to ``max_env_step`` after an iteration, as [h:]mm:ss, or "?" after the first."""
        self._shown.append((self._clock(), env_step))
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
    line = (
        f"{progress.env_step:>9,} steps  evaluation {score_text(evaluation.mean, evaluation.std)} "
        f"over {len(evaluation.returns)} episodes"
    )
    if "eval/is_success" in progress.metrics:
        line += f"  success {progress.metrics['eval/is_success']:.0%}"
    if evaluation.cut_short:
        line += f"  ({evaluation.cut_short} cut short)"
    return line + ("  solved" if progress.solved else "")
