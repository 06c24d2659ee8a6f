"""What a run does with its trackers: starts them, sends to them at intervals, and drops one that fails."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ding_lite.config.registry import TRACKER_REGISTRY, as_choice, name_of, numbered
from ding_lite.envs.transition import Episode
from ding_lite.errors import FOREIGN, ConfigError, error_text
from ding_lite.run.atomic_files import replacing
from ding_lite.run.trackers.tracker import TrackedRun, Tracker
from ding_lite.trees import Tree, named_leaves

IDENTITIES = "trackers.json"  # file in the run's folder: the identity of each tracker, by its name


def check_trackers(items: Sequence[Any]) -> None:
    """Checks that the trackers of ``logger.trackers`` exist and that their packages are installed.

    Raises:
        RegistryError: if an item names no tracker.
        ConfigError: if a package is missing; the message has the install line.
    """
    for item in items:
        kind = as_choice(item)["type"]
        cls = TRACKER_REGISTRY.get_class(kind)
        requires = cls.requires
        if requires is not None and importlib.util.find_spec(requires[0]) is None:
            module, extra = requires
            raise ConfigError(
                f"logger.trackers: {name_of(kind)!r} needs the package {module}, which is not installed: "
                f'pip install "ding_lite[{extra}]"'
            )


class Tracking:
    """The trackers of one run. An error of a tracker ends the tracker with a warning, never the run.

    Args:
        items: value of ``logger.trackers``.
        freq: env steps between rows.
        run: folder, config and resume step of the run; the identities are read from the folder.
        say: writes a line to the log and shows it.
    """

    def __init__(self, items: Sequence[Any], freq: int, run: TrackedRun, say: Callable[[str], None]) -> None:
        self.freq = freq
        self.say = say
        self._next_row = 0
        self._episodes: list[Episode] = []  # since the last row
        self._trackers: dict[str, Tracker] = {}
        identities = self._saved_identities(run)
        choices = [as_choice(item) for item in items]
        for name, choice in zip(numbered([name_of(c["type"]) for c in choices]), choices, strict=True):
            cls = TRACKER_REGISTRY.get_class(choice.pop("type"))
            known = identities.get(name, {})
            try:
                self._trackers[name] = cls(run._replace(identity=known), **choice)
            except FOREIGN as error:
                self._warn(name, "cannot be started", error)
        for name, tracker in self._trackers.items():
            if tracker.place:
                self.say(f"{name}: {tracker.place}")
        self._save_identities(run.folder, identities)

    def write(
        self,
        env_step: int,
        metrics: Mapping[str, float],
        episodes: Iterable[Episode],
        actions: Callable[[], Tree],
    ) -> None:
        """Sends the metrics of an iteration if a row is due, as it is after every evaluation.

        Args:
            env_step: of the run.
            metrics: of the iteration.
            episodes: that ended in it.
            actions: returns the tree of actions (N, ...) of the iteration; called where a tracker shows
                histograms.
        """
        shows_histograms = any(type(t).histogram is not Tracker.histogram for t in self._trackers.values())
        if shows_histograms:
            self._episodes += episodes
        has_evaluation = any(name.startswith("eval/") for name in metrics)
        if not self._trackers or not (has_evaluation or env_step >= self._next_row):
            return
        self._next_row = env_step + self.freq
        row = {name: value for name, value in metrics.items() if "/" in name}
        self._send("scalars", env_step, row)
        if shows_histograms:
            for name, values in self._histograms(actions()):
                self._send("histogram", env_step, name, values)
            self._episodes = []

    def _histograms(self, actions: Tree) -> Iterator[tuple[str, np.ndarray]]:
        """Yields names and finite values; the dimensions of a vector of actions are taken together."""
        values = {
            "collect/episode_return": np.array([episode.episode_return for episode in self._episodes]),
            "collect/episode_length": np.array([episode.length for episode in self._episodes]),
            **{"/".join(("collect/action", *path)): leaf.reshape(-1) for path, leaf in named_leaves(actions)},
        }
        for name, array in values.items():
            finite = array[np.isfinite(array)]
            if finite.size:
                yield name, finite

    def video(self, env_step: int, name: str, file: Path) -> None:
        """Sends a video."""
        self._send("video", env_step, name, file)

    def result(self, values: Mapping[str, Any]) -> None:
        """Sends the result of the run."""
        self._send("result", values)

    def close(self) -> None:
        """Closes all trackers; a second call has no effect."""
        self._send("close")
        self._trackers.clear()

    def _send(self, method: str, *arguments: Any) -> None:
        """Calls a method of each tracker; one that raises is closed and left out from here on."""
        for name, tracker in list(self._trackers.items()):
            try:
                getattr(tracker, method)(*arguments)
            except FOREIGN as error:
                del self._trackers[name]
                self._warn(name, f"failed in {method}", error)
                with contextlib.suppress(*FOREIGN):  # the fault is known
                    tracker.close()

    def _warn(self, name: str, fault: str, error: BaseException) -> None:
        self.say(f"WARNING: tracker {name} {fault}: {error_text(error)}; the run goes on without it")

    def _saved_identities(self, run: TrackedRun) -> dict[str, dict[str, str]]:
        """Returns the identities in the folder of a resumed run, by the names of the trackers."""
        file = run.folder / IDENTITIES
        if run.resume_at is None or not file.exists():
            return {}
        try:
            saved = json.loads(file.read_text())
            return {name: {key: str(x) for key, x in identity.items()} for name, identity in saved.items()}
        except (OSError, ValueError, AttributeError) as error:
            self.say(f"WARNING: {file} cannot be read: {error}; the trackers begin new runs")
            return {}

    def _save_identities(self, folder: Path, before: Mapping[str, Mapping[str, str]]) -> None:
        """Saves the identities; that of a tracker that is not used now is kept."""
        named = {name: dict(t.identity) for name, t in self._trackers.items() if t.identity}
        if not named:
            return
        try:
            with replacing(folder / IDENTITIES) as temporary:
                temporary.write_text(json.dumps({**before, **named}, indent=2) + "\n")
        except OSError as error:
            self.say(
                f"WARNING: {folder / IDENTITIES} cannot be written: {error}; a resumed run is a new run there"
            )
