"""What a run shows while it trains: a live line in a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import math
import time
from datetime import timedelta
from typing import Any, TextIO

from ding_lite.run.hooks import Hook

DETAILS = ("acting: ", "gradients: ")  # lines that begin with these are only in log.txt
RETURN = "collect/episode_return"
SHOWN = {  # the metrics in a line, and their formats; a terminal that is too narrow cuts the last ones
    RETURN: "  return {}",
    "collect/is_success": "  success {:.0%}",
    "time/env_steps_per_second": "  {:,.0f} steps/s",
    "collect/episode_length": "  length {:.0f}",
    "collect/episode_length_max": " (max {:.0f})",
    "learn/cur_lr": "  lr {:.2g}",
}


def score_text(value: float | None, spread: float | None = None) -> str:
    """Returns the text of a return, with its standard deviation if there is one; "-" for None.

    It has 1 decimal, or 3 if it is below 10, as a return from 0 to 1.
    """
    if value is None:
        return "-"
    digits = 1 if max(abs(value), spread or 0.0) >= 9.9995 else 3
    return f"{value:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")


class Display(Hook):
    """Shows a run in plain lines, for logs and pipes: one every few seconds, and one at each evaluation.

    Args:
        stream: to write to.
    """

    seconds_between = 5.0

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._last_line_at = 0.0

    def say(self, line: str) -> None:
        if not line.startswith(DETAILS):
            self.write(line)

    def write(self, line: str) -> None:
        """Writes a line; a closed stream, as with ``| head``, does not end the training."""
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(line + "\n")
            self.stream.flush()

    def after_iter(self, pipeline: Any) -> None:
        """Writes the key metrics, if some seconds have passed since the last time."""
        now = time.monotonic()
        if now - self._last_line_at >= self.seconds_between:
            self._last_line_at = now
            self.write(self.line(pipeline))

    def line(self, pipeline: Any) -> str:
        """Returns how far the nearest limit is, the time left, and the metrics; before any, the phase."""
        progress, cfg = pipeline.progress, pipeline.cfg
        done, limit, unit = progress.env_step, cfg.max_env_step, "steps"
        if cfg.max_train_iter and progress.train_iter / cfg.max_train_iter > done / limit:
            done, limit, unit = progress.train_iter, cfg.max_train_iter, "updates"
        share = min(1.0, done / limit)
        left = timedelta(seconds=round(progress.wall_time * (1 / share - 1))) if share else "?"
        text = f"{done:>9,}/{limit:,} {unit}  {share:.0%}  left {left}"
        metrics = {name: progress.metrics[name] for name in SHOWN if name in progress.metrics}
        if not metrics:
            return f"{text}  {pipeline.policy.timer.phase or 'starting'}"
        if RETURN in metrics:
            metrics[RETURN] = score_text(metrics[RETURN])
        return text + "".join(SHOWN[name].format(value) for name, value in metrics.items())


class LiveDisplay(Display):
    """Shows a run in a terminal: a line that changes, below the lines that stay.

    Until the first iteration ends, the line shows its phase. The line disappears when the run ends.
    """

    seconds_between = math.inf  # a thread draws the line

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        from rich.console import Console

        self._console = Console(file=stream)
        self._drawing = contextlib.ExitStack()

    def write(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False)

    def before_run(self, pipeline: Any) -> None:
        from rich.live import Live
        from rich.text import Text

        def last_line() -> Text:
            return Text(self.line(pipeline), no_wrap=True, overflow="ellipsis")

        live = Live(get_renderable=last_line, console=self._console, refresh_per_second=5, transient=True)
        self._drawing.enter_context(live)

    def after_run(self, pipeline: Any) -> None:
        self._drawing.close()


def display_for(stream: TextIO) -> Display:
    """Returns a live display for a terminal, and lines for any other stream."""
    return (LiveDisplay if stream.isatty() else Display)(stream)
