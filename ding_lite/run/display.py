"""What a run shows while it trains: a live line in a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import math
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TextIO

from ding_lite.run.hooks import Hook

DETAILS = ("acting: ", "gradients: ")  # lines that begin with these are only in log.txt
# The metrics that a line shows, and their formats, by short names.
SHOWN = {
    "return": ("collect/episode_return", "  return {}"),
    "success": ("collect/is_success", "  success {:.0%}"),
    "length": ("collect/episode_length", "  length {:.0f}"),
    "longest": ("collect/episode_length_max", " (max {:.0f})"),
    "rate": ("learn/cur_lr", "  lr {:.2g}"),
    "speed": ("time/env_steps_per_second", "  {:,.0f} steps/s"),
}
FIRST_TO_GO = ("longest", "length", "success", "limit", "share")  # in this order, if the line is too long
STEPS = re.compile(r" *([\d,]+)(?:/[\d,]+)? steps  ")  # begins the lines about an iteration
ENDED = re.compile(r"(?:solved|finished|interrupted|failed)\b.* env steps and |ding-lite train: error: ")


def score_digits(*scores: float) -> int:
    """Returns the number of decimals for some returns: 1, or 3 if all are below 10, as from 0 to 1."""
    return 1 if max(map(abs, scores)) >= 9.9995 else 3


def score_text(value: float | None, spread: float | None = None) -> str:
    """Returns the text of a return, with its standard deviation if there is one; "-" for None."""
    if value is None:
        return "-"
    digits = score_digits(value, spread or 0.0)
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
            self.write(self.line(pipeline, shutil.get_terminal_size((10_000, 0)).columns))

    def line(self, pipeline: Any, width: int) -> str:
        """Returns steps, share done, time left, and the metrics that fit; before there are any, the phase."""
        progress, limit = pipeline.progress, pipeline.cfg.max_env_step
        steps, to_do = progress.env_step, max(0, limit - progress.env_step)
        texts = {
            "steps": f"{steps:>9,}",
            "limit": f"/{limit:,}",
            "unit": " steps",
            "share": f"  {min(1.0, steps / limit):.0%}",
            "left": f"  left {timedelta(seconds=to_do * progress.wall_time // steps) if steps else '?'}",
        }
        metrics = {name: progress.metrics[name] for name, _ in SHOWN.values() if name in progress.metrics}
        if "collect/episode_return" in metrics:
            metrics["collect/episode_return"] = score_text(metrics["collect/episode_return"])
        texts |= {key: text.format(metrics[name]) for key, (name, text) in SHOWN.items() if name in metrics}
        if not metrics:
            texts["phase"] = f"  {pipeline.policy.timer.phase or 'starting'}"
        for name in FIRST_TO_GO:
            if sum(map(len, texts.values())) > width:
                texts.pop(name, None)
        return "".join(texts.values())


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
            return Text(self.line(pipeline, self._console.width), no_wrap=True, overflow="ellipsis")

        live = Live(get_renderable=last_line, console=self._console, refresh_per_second=5, transient=True)
        self._drawing.enter_context(live)

    def after_run(self, pipeline: Any) -> None:
        self._drawing.close()


@contextlib.contextmanager
def lines_of_seeds(stream: TextIO, names: Sequence[str], limit: int) -> Iterator[Callable[[str], None]]:
    """Yields a function that writes the lines of several runs; a terminal also shows a bar for all runs.

    Args:
        stream: to write to.
        names: of the runs; each line begins with the name of its run: "seed 0: ...".
        limit: env steps of each run.
    """
    if not stream.isatty():
        yield Display(stream).write
        return
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TaskProgressColumn, TimeRemainingColumn

    columns = f"{len(names)} seeds", TaskProgressColumn(), "left", TimeRemainingColumn(), "for all"
    steps = dict.fromkeys(names, 0)
    limits = dict.fromkeys(names, limit)  # for a run that has ended: its last step
    with Bar(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task("", total=limit * len(names))

        def write(line: str) -> None:
            name, _, text = line.partition(": ")
            if match := STEPS.match(text):
                steps[name] = int(match[1].replace(",", ""))
            elif ENDED.match(text):
                limits[name] = steps[name]
            bar.console.print(line, highlight=False, markup=False)
            bar.update(task, completed=sum(steps.values()), total=sum(limits.values()), refresh=True)

        yield write


def display_for(stream: TextIO) -> Display:
    """Returns a live display for a terminal, and lines for any other stream."""
    return (LiveDisplay if stream.isatty() else Display)(stream)
