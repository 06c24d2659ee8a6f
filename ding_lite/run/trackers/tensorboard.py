"""``tb/``: the course of a run as events for TensorBoard.

Each row is written at once, as one event. tensorboardX's own SummaryWriter passes every number to a thread
through a pipe, which costs fifteen times as much. If the disk is full, that thread ends, its queue fills up,
and training waits forever.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ding_lite.config.registry import TRACKER_REGISTRY
from ding_lite.run.trackers.tracker import BINS, TrackedRun, Tracker

FLUSH_SECONDS = 10.0  # rows become visible to a reader at this interval
MAX_FRAMES_PER_SECOND = 10  # of the GIF that TensorBoard shows in place of a video, which it cannot


@TRACKER_REGISTRY.register("tensorboard")
class TensorboardTracker(Tracker):
    """tb/ in the run's folder, for TensorBoard.

    A resumed run writes a new file, from which TensorBoard hides the rows of earlier sessions that are past
    the checkpoint.
    """

    def __init__(self, run: TrackedRun) -> None:
        from tensorboardX import summary
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        folder = run.folder / "tb"
        folder.mkdir(exist_ok=True)
        self._event = event_pb2.Event
        self._proto = summary_pb2.Summary
        self._summaries = summary
        suffix = f".{time.time_ns()}"  # the name itself holds seconds: two sessions may start within one
        self._writer = EventsWriter(str(folder / "events"), suffix)
        self._next_flush = 0.0
        if run.resume_at is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._writer.write_event(self._event(step=run.resume_at + 1, session_log=start))
        lines = json.dumps(run.config, indent=2).splitlines()
        self._write(run.resume_at or 0, summary.text("config", "\n".join(f"    {line}" for line in lines)))

    def scalars(self, env_step: int, values: Mapping[str, float]) -> None:
        row = [self._proto.Value(tag=name, simple_value=x) for name, x in values.items()]
        self._write(env_step, self._proto(value=row))

    def histogram(self, env_step: int, name: str, values: np.ndarray) -> None:
        self._write(env_step, self._summaries.histogram(name, values, BINS))

    def video(self, env_step: int, name: str, file: Path) -> None:
        from moviepy import VideoFileClip

        with VideoFileClip(str(file)) as clip, tempfile.TemporaryDirectory() as folder:
            gif = Path(folder) / "video.gif"
            clip.write_gif(str(gif), fps=min(clip.fps, MAX_FRAMES_PER_SECOND), logger=None)
            width, height = clip.size
            image = self._proto.Image(
                height=height, width=width, colorspace=3, encoded_image_string=gif.read_bytes()
            )
        self._write(env_step, self._proto(value=[self._proto.Value(tag=name, image=image)]))

    def _write(self, env_step: int, summary: Any) -> None:
        self._writer.write_event(self._event(wall_time=time.time(), step=env_step, summary=summary))
        if time.monotonic() >= self._next_flush:
            self._writer.flush()
            self._next_flush = time.monotonic() + FLUSH_SECONDS

    def close(self) -> None:
        """Writes the buffered rows and closes the file, even if writing fails."""
        try:
            self._writer.flush()
        finally:
            self._writer.close()
