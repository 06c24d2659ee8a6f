"""Which rows the trackers have stored, so that a resumed run does not send them again."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from ding_lite.run.atomic_files import read_bounded, regular
from ding_lite.run.trackers.tracker import Tracker

FILE = "trackers_stored.json"  # in the run's folder: env step of the last stored row, by the tracker's name


class StoredRows:
    """The env steps up to which the trackers with an identity have stored the rows of a run.

    They are kept in the run's folder. If the file is lost or not writable, a resumed run sends rows again.

    Args:
        folder: of the run.
        names: of the trackers that go on in their earlier runs.
        repeats: whether the run first repeats what an earlier session did; otherwise its rows replace those.

    Attributes:
        before: env steps of the rows that earlier sessions have stored, by the names of the trackers.
    """

    def __init__(self, folder: Path, names: Iterable[str], repeats: bool) -> None:
        self._file = folder / FILE
        if not repeats:
            with contextlib.suppress(OSError):  # mostly since there is none
                self._file.unlink()
        saved = self._saved()
        self.before = {name: saved[name] for name in names if name in saved}
        self._last = dict(self.before)
        self._recent: list[tuple[float, int]] = []  # time and env step of rows that a kill may lose

    def has(self, name: str, env_step: int) -> bool:
        """Returns whether an earlier session has stored the row of this env step."""
        return env_step <= self.before.get(name, 0)

    def add(self, env_step: int, trackers: Mapping[str, Tracker]) -> None:
        """Notes that a row was sent to the trackers."""
        now = time.monotonic()
        self._recent.append((now, env_step))
        self._save(
            now, {name: tracker.seconds_to_store for name, tracker in trackers.items() if tracker.identity}
        )

    def close(self, trackers: Mapping[str, Tracker]) -> None:
        """Notes that the trackers are closed, and have stored all rows."""
        self._save(time.monotonic(), {name: 0.0 for name, tracker in trackers.items() if tracker.identity})

    def _save(self, now: float, delays: Mapping[str, float]) -> None:
        for name, delay in delays.items():
            stored = [env_step for sent_at, env_step in self._recent if now - sent_at >= delay]
            self._last[name] = max([self._last.get(name, 0), *stored])
        longest = max(delays.values(), default=0.0)
        self._recent = [row for row in self._recent if now - row[0] < longest]
        if delays:
            with contextlib.suppress(OSError), open(self._file, "w", opener=regular) as stream:
                stream.write(json.dumps(self._last) + "\n")

    def _saved(self) -> dict[str, int]:
        try:
            return {name: int(env_step) for name, env_step in json.loads(read_bounded(self._file)).items()}
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return {}
