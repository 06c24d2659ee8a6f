r"""The interface of trackers.

A tracker of your own::

    @TRACKER_REGISTRY.register("jsonl")
    class JsonLines(Tracker):
        def __init__(self, run: TrackedRun, file: str = "metrics.jsonl") -> None:
            self.stream = (run.folder / file).open("a")

        def scalars(self, env_step, values):
            self.stream.write(json.dumps({"env_step": env_step, **values}) + "\n")

        def close(self):
            self.stream.close()

A config names it as ``logger.trackers=["jsonl"]``, as ``{"type": "jsonl", "file": "m.jsonl"}``, or without
registering it as ``"my_module:JsonLines"``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ding_lite.config.registry import TRACKER_REGISTRY

BINS = 32  # of a histogram, about as many as TensorBoard draws


class TrackedRun(NamedTuple):
    """What a tracker knows about the run that it is made for."""

    folder: Path
    config: Mapping[str, Any]  # complete, as plain data
    resume_at: int | None  # env step that a resumed run continues from; None for a new run
    identity: Mapping[str, str]  # ``identity`` of the tracker in the earlier session; empty if there is none


class Tracker:
    """Shows the course of a run somewhere. A subclass overrides what it can show; each method does nothing.

    The constructor is ``Tracker(run, **arguments)``, with the arguments in the config. Whatever a tracker
    raises, here or later, the run warns once and trains on without it.

    Attributes:
        requires: the module that the tracker imports, and the extra of ding_lite that installs it. A run that
            asks for a tracker without its module does not begin.
        identity: what finds the same run of the tracker again, such as its id. It is saved in the run's
            folder and given back when the run is resumed. Rows that are stored there already are then not
            sent again.
        seconds_to_store: how long a row may be lost after it was sent, if the process is killed. A tracker
            that is closed has stored all rows.
        place: where the user finds what is sent, such as a URL; "" if there is nothing to say.
    """

    requires: ClassVar[tuple[str, str] | None] = None
    identity: Mapping[str, str] = {}
    seconds_to_store: ClassVar[float] = 0.0
    place: str = ""

    def __init__(self, run: TrackedRun) -> None:
        pass

    def scalars(self, env_step: int, values: Mapping[str, float]) -> None:
        """Receives a row of metrics by their names, such as "learn/policy_loss"; values may be nan."""

    def histogram(self, env_step: int, name: str, values: np.ndarray) -> None:
        """Receives finite numbers (N,), N > 0, such as the actions of an iteration."""

    def video(self, env_step: int, name: str, file: Path) -> None:
        """Receives an mp4 file in the run's folder."""

    def result(self, values: Mapping[str, Any]) -> None:
        """Receives the contents of result.json; again, if the run is continued in the same process."""

    def close(self) -> None:
        """Ends the session; called once, and last."""


@TRACKER_REGISTRY.register("csv")
class CsvTracker(Tracker):
    """metrics.csv and episodes.csv in the run's folder, which every run writes (run.folder)."""
