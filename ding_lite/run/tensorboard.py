"""``tb/``: the metrics of a run as events for TensorBoard.

Each row is written at once, as one event. tensorboardX's own SummaryWriter passes every number to a thread
through a pipe, which costs fifteen times as much. If the disk is full, that thread ends, its queue fills up,
and training waits forever.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FLUSH_SECONDS = 10.0  # rows become visible to a reader at this interval


class EventFile:
    """Adds rows of metrics to a new file of events.

    Args:
        folder: created if it is missing; may hold the files of earlier sessions of the run.
        purge_step: env step from which on TensorBoard hides the rows of earlier sessions; None hides none.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        folder.mkdir(exist_ok=True)
        self._event = event_pb2.Event
        self._summary = summary_pb2.Summary
        suffix = f".{time.time_ns()}"  # the name itself holds seconds: two sessions may start within one
        self._writer = EventsWriter(str(folder / "events"), suffix)
        self._next_flush = 0.0
        if purge_step is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._writer.write_event(self._event(step=purge_step, session_log=start))

    def write(self, env_step: int, row: Mapping[str, Any]) -> None:
        """Adds a row of numbers by their names."""
        values = [self._summary.Value(tag=name, simple_value=x) for name, x in row.items()]
        event = self._event(wall_time=time.time(), step=env_step, summary=self._summary(value=values))
        self._writer.write_event(event)
        if time.monotonic() >= self._next_flush:
            self._writer.flush()
            self._next_flush = time.monotonic() + FLUSH_SECONDS

    def close(self) -> None:
        """Writes the buffered rows and closes the file, even if writing fails."""
        try:
            self._writer.flush()
        finally:
            self._writer.close()
