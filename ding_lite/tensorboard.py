"""``tb/``: the metrics of a run as TensorBoard shows them.

Events are written here and now, a row in one. tensorboardX's own SummaryWriter hands each number to a thread
by a pipe, which costs fifteen times as much; a full disk ends that thread, its queue fills up, and training
waits for ever.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FLUSH_SECONDS = 10.0  # between what a reader can see


class EventFile:
    """One file of events, to which rows are added.

    Args:
        folder: is made where it is missing; may hold the files of earlier sessions of the run.
        purge_step: rows of earlier sessions from this step on are not shown.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        folder.mkdir(exist_ok=True)
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._writer = EventsWriter(str(folder / "events"), f".{time.time_ns()}")  # two within a second
        self._next_flush = 0.0
        if purge_step is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._writer.write_event(self._event(step=purge_step, session_log=start))

    def write(self, env_step: int, row: Mapping[str, Any]) -> None:
        """Adds the numbers of one row."""
        values = [self._summary.Value(tag=name, simple_value=x) for name, x in row.items()]
        event = self._event(wall_time=time.time(), step=env_step, summary=self._summary(value=values))
        self._writer.write_event(event)
        if time.monotonic() >= self._next_flush:
            self._writer.flush()
            self._next_flush = time.monotonic() + FLUSH_SECONDS

    def close(self) -> None:
        """Writes what is left, and closes the file; it is closed where that fails, too."""
        try:
            self._writer.flush()
        finally:
            self._writer.close()
