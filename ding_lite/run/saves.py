"""The saves of a run that are due, and what one that fails means for the best score."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ding_lite.errors import CheckpointError, DingLiteError
from ding_lite.ranks import Ranks
from ding_lite.run.progress import Progress
from ding_lite.run.recorder import Recorder
from ding_lite.run.scores import Scores


class Saves:
    """Saves ``best`` and the checkpoints that ``checkpoint.freq`` asks for; a thread writes them.

    If ``best`` cannot be saved, the best score is set back. All ranks call the same methods.

    Args:
        recorder: of the run; it has the checkpoints.
        scores, ranks: of the run.
    """

    def __init__(self, recorder: Recorder, scores: Scores, ranks: Ranks) -> None:
        self._recorder = recorder
        self._scores = scores
        self._ranks = ranks
        self._keeper = recorder.checkpoints

    def begin_due(self, progress: Progress, state: Callable[[], Mapping[str, Any]]) -> None:
        """Begins to save the checkpoints that are due, after the saves before are finished.

        Args:
            progress: after the iteration.
            state: takes the state of all ranks; called if one is due.
        """
        names = self._keeper.due(progress)
        if progress.evaluation is None and not names:
            self._report(finish=False)
            return
        self.finish()
        if self._scores.update_best(progress.evaluation):
            names = ["best", *names]
        if names:
            try:
                of_all = state()  # with the new best score
                self._ranks.from_first(lambda: self._keeper.begin_save(names, of_all))
            except BaseException:
                self._scores.restore_best()
                raise

    def finish(self) -> None:
        """Waits for a save, and says it if it failed.

        Raises:
            CheckpointError: if it was the last failure that is tolerated.
        """
        self._report(finish=True)

    def finish_after_error(self) -> None:
        """Waits for a save on this rank alone, and writes to the log if it failed: the run ends anyway."""
        try:
            warning = self._keeper.outcome(finish=True)
        except CheckpointError as error:
            warning = str(error)
        if warning is not None:
            self._note_best(self._keeper.best_is_saved)
            self._recorder.log(warning)

    def _report(self, finish: bool) -> None:
        keeper = self._keeper
        try:
            warning, best_is_saved = self._ranks.from_first(
                lambda: (keeper.outcome(finish), keeper.best_is_saved)
            )
        except DingLiteError:
            self._note_best(keeper.best_is_saved)
            raise
        if warning is not None:
            self._note_best(best_is_saved)
            self._recorder.say(warning)

    def _note_best(self, is_saved: bool) -> None:
        if not is_saved:
            self._scores.restore_best()
