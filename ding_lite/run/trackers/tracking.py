"""What a run does with its trackers: starts them, sends to them at intervals, and drops one that fails."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ding_lite.config.registry import TRACKER_REGISTRY, as_choice, name_of
from ding_lite.config.schema import argument_faults
from ding_lite.envs.vector import Episode
from ding_lite.errors import FOREIGN, ConfigError, ContractError, error_text
from ding_lite.run.atomic_files import read_bounded, write_whole
from ding_lite.run.progress import Progress
from ding_lite.run.trackers.stored import StoredRows
from ding_lite.run.trackers.tracker import TrackedRun, Tracker
from ding_lite.trees import Tree, named_leaves

HISTOGRAM_VALUES = 4096  # in one histogram, at most
IDENTITIES = "trackers.json"  # file in the run's folder: the identity of each tracker, by its name


def check_trackers(items: Sequence[Any]) -> None:
    """Checks that the trackers of ``logger.trackers`` exist, take their arguments, and have their packages.

    Raises:
        RegistryError: if an item names no tracker.
        ConfigError: if an argument is unknown or missing, or a package, with its install line.
    """
    for i, item in enumerate(items):
        arguments = as_choice(item)
        kind = arguments.pop("type")
        cls = TRACKER_REGISTRY.get_class(kind)
        if faults := argument_faults(cls, arguments):
            raise ConfigError(f"logger.trackers[{i}]: {name_of(kind)!r}: {'; '.join(faults)}")
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
        repeats: whether a resumed run first repeats what an earlier session did after the checkpoint. The
            rows that a tracker has stored since are not sent to it again.
    """

    def __init__(
        self,
        items: Sequence[Any],
        freq: int,
        run: TrackedRun,
        say: Callable[[str], None],
        repeats: bool = False,
    ) -> None:
        self.freq = freq
        self.say = say
        self._folder = run.folder
        self._episodes: list[Episode] = []  # since the last row
        self._trackers: dict[str, Tracker] = {}
        identities = {} if run.resume_at is None else self._saved_identities()
        for name, cls, arguments in TRACKER_REGISTRY.named_choices(items):
            known = identities.get(name, {})
            try:
                tracker = cls(run._replace(identity=known), **arguments)
                if not isinstance(tracker.identity, Mapping):
                    raise ContractError(
                        f"its identity must be a dict of texts, got a {type(tracker.identity).__name__}"
                    )
                self._trackers[name] = tracker
            except FOREIGN as error:
                self._warn(name, "cannot be started", error)
        self._save_identities(identities)
        self._stored = StoredRows(run.folder, identities, repeats)
        for name, tracker in self._trackers.items():
            if tracker.place:
                self.say(f"{name}: {tracker.place}")
            if (last := self._stored.before.get(name, 0)) > (run.resume_at or 0):
                self.say(f"{name}: has the rows up to env step {last:,}, which are not sent again")

    def write(
        self,
        progress: Progress,
        metrics: Mapping[str, float],
        episodes: Iterable[Episode],
        actions: Callable[[], Tree],
    ) -> None:
        """Sends the metrics of an iteration if a row is due.

        That is when the iteration reaches or passes a multiple of ``freq`` env steps, or has an evaluation.

        Args:
            progress: of the run.
            metrics: of the iteration.
            episodes: that ended in it.
            actions: returns the tree of actions (N, ...) of the iteration; called where a tracker shows
                histograms.
        """
        shows_histograms = any(type(t).histogram is not Tracker.histogram for t in self._trackers.values())
        if shows_histograms:
            self._episodes += episodes
        is_due = progress.evaluation is not None or progress.crossed(self.freq)
        if not (self._trackers and is_due):
            return
        row = {name: value for name, value in metrics.items() if "/" in name}
        self._send_new("scalars", progress.env_step, row)
        if shows_histograms:
            for name, values in self._histograms(actions()):
                self._send_new("histogram", progress.env_step, name, values)
            self._episodes = []
        self._stored.add(progress.env_step, self._trackers)

    def _histograms(self, actions: Tree) -> Iterator[tuple[str, np.ndarray]]:
        """Yields names and finite values; the dimensions of a vector of actions are taken together.

        Of more than ``HISTOGRAM_VALUES`` values, so many are drawn, the same ones each time.
        """
        values = {
            "collect/episode_return": np.array([episode.episode_return for episode in self._episodes]),
            "collect/episode_length": np.array([episode.length for episode in self._episodes]),
            **{"/".join(("collect/action", *path)): leaf.reshape(-1) for path, leaf in named_leaves(actions)},
        }
        for name, array in values.items():
            if array.size > HISTOGRAM_VALUES:  # every k-th value may be one dimension of the actions alone
                array = np.random.default_rng(0).choice(array, HISTOGRAM_VALUES)
            finite = array[np.isfinite(array)]
            if finite.size:
                yield name, finite

    def video(self, env_step: int, name: str, file: Path) -> None:
        """Sends a video."""
        self._send_new("video", env_step, name, file)

    def result(self, values: Mapping[str, Any]) -> None:
        """Sends the result of the run."""
        self._send("result", values)

    def close(self) -> None:
        """Closes all trackers; a second call has no effect."""
        self._send("close")
        self._stored.close(self._trackers)
        self._trackers.clear()

    def _send_new(self, method: str, env_step: int, *arguments: Any) -> None:
        """Calls a method of the trackers that have not stored this row in an earlier session."""
        behind = [name for name in self._trackers if not self._stored.has(name, env_step)]
        self._send(method, env_step, *arguments, to=behind)

    def _send(self, method: str, *arguments: Any, to: Iterable[str] | None = None) -> None:
        """Calls a method of all trackers, or of those named; one that raises is closed and left out."""
        for name in list(self._trackers if to is None else to):
            tracker = self._trackers[name]
            try:
                getattr(tracker, method)(*arguments)
            except FOREIGN as error:
                del self._trackers[name]
                self._warn(name, f"failed in {method}", error)
                with contextlib.suppress(*FOREIGN):  # the fault is known
                    tracker.close()

    def _warn(self, name: str, fault: str, error: BaseException) -> None:
        self.say(f"WARNING: tracker {name} {fault}: {error_text(error)}; the run goes on without it")

    def _saved_identities(self) -> dict[str, dict[str, str]]:
        """Returns the identities in the run's folder, by the names of the trackers."""
        file = self._folder / IDENTITIES
        try:
            saved = json.loads(read_bounded(file))
            return {name: {key: str(x) for key, x in identity.items()} for name, identity in saved.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            self.say(f"WARNING: {file} cannot be read: {error}; the trackers begin new runs")
            return {}

    def _save_identities(self, before: Mapping[str, Mapping[str, str]]) -> None:
        """Saves the identities; that of a tracker that is not used now is kept."""
        named = {
            name: {str(key): str(x) for key, x in tracker.identity.items()}
            for name, tracker in self._trackers.items()
            if tracker.identity
        }
        if not named:
            return
        file = self._folder / IDENTITIES
        try:
            write_whole(file, json.dumps({**before, **named}, indent=2) + "\n")
        except OSError as error:
            self.say(f"WARNING: {file} cannot be written: {error}; a resumed run is a new run there")
