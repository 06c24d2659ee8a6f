"""What a run writes: its log, rows of metrics, trackers, videos, checkpoints and result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from ding_lite.config.compile import Config
from ding_lite.data.rollout import Rollout
from ding_lite.envs.space_json import space_to_json
from ding_lite.envs.vector import Episode, VectorEnv
from ding_lite.policies.base import Policy
from ding_lite.ranks import Ranks
from ding_lite.run.checkpoint import CheckpointKeeper
from ding_lite.run.display import Display
from ding_lite.run.folder import RunLogger
from ding_lite.run.progress import Progress
from ding_lite.run.report import metric_names
from ding_lite.run.resume import versions
from ding_lite.run.trackers.tracker import TrackedRun
from ding_lite.run.trackers.tracking import Tracking
from ding_lite.run.video import Camera
from ding_lite.trees import Tree, map_tree


class _Outputs(NamedTuple):
    """What rank 0 writes to; ``say`` writes a line to log.txt, and shows it."""

    logger: RunLogger
    tracking: Tracking
    say: Callable[[str], None]


class Recorder:
    """Writes to the folder of a run, and shows what the user should see.

    With several ranks, all call the same methods in the same order, and rank 0 writes. The environments of
    the other ranks report to :attr:`pending_lines`.

    Args:
        folder: of the run.
        log: open log of the folder, which reserves the folder for this run; None but on rank 0.
        config: of the run.
        given: what a script gave in place of the config (``run.given``), for the checkpoints.
        imports: options of the command line that find the user's classes. They are saved and not read back,
            except for messages.
        policy: of the run.
        camera: records the videos.
        ranks: of the run.
        display: shows lines and the progress.
        lines: first lines of the log.
        resume_at: env step that a resumed run continues from; None for a new run.
        repeats: whether a resumed run first repeats what an earlier session did after that step.

    Attributes:
        checkpoints: writes the checkpoints.
        pending_lines: of the environments of this rank, until the ranks exchange them.

    Raises:
        ConfigError: if the folder cannot be written to.
    """

    def __init__(
        self,
        folder: Path,
        log: TextIO | None,
        config: Config,
        given: Mapping[str, Any],
        imports: Sequence[str],
        policy: Policy,
        camera: Camera,
        ranks: Ranks,
        display: Display,
        lines: Sequence[str],
        resume_at: int | None,
        repeats: bool,
    ) -> None:
        # An environment may change the working directory.
        self._folder = folder.absolute()
        self._policy = policy
        self._camera = camera
        self._video_freq = config.values.logger.video_freq
        self._ranks = ranks
        self.pending_lines: list[str] = []
        settings = {**config.as_json(), "imports": list(imports)}
        spaces = {"obs": space_to_json(policy.obs_space), "action": space_to_json(policy.action_space)}
        saved = {**settings, **given, "spaces": spaces, "versions": versions()}

        def opened() -> _Outputs:
            assert log is not None
            names = metric_names(policy, config.values.env.info_keys)
            logger = RunLogger(folder, log, settings, names, resume_at)
            say = _log_and_show(logger, display)
            for line in lines:
                say(line)
            if logger.missing:
                say(logger.missing)
            logger.write_owner()
            run = TrackedRun(self._folder, settings["config"], resume_at, identity={})
            trackers, freq = config.values.logger.trackers, config.values.logger.freq
            return _Outputs(logger, Tracking(trackers, freq, run, say, repeats), say)

        self._outputs = ranks.on_first(opened)
        self.checkpoints = CheckpointKeeper(self._folder, saved, **config.values.checkpoint)
        if self._outputs is not None:
            self.checkpoints.check_place = self._outputs.logger.check_place

    def connect(self, envs: VectorEnv, evaluator_envs: VectorEnv) -> None:
        """Lets the environments report to the log and the display.

        Their callbacks hold no reference to this object. A reference cycle would keep the worker processes
        of a dropped pipeline until the garbage collector runs.
        """
        if self._outputs is None:
            say = explain = _to_first(self.pending_lines, self._ranks.rank)
        else:
            say, explain = self._outputs.say, self._outputs.logger.log
        envs.say = say
        evaluator_envs.say = lambda line: say(f"in evaluation: {line}")
        # Tracebacks of replaced workers go to the log alone.
        envs.explain = evaluator_envs.explain = explain

    def say(self, line: str) -> None:
        """Writes a line to log.txt, and shows it."""
        if self._outputs is not None:
            self._outputs.say(line)

    def log(self, text: str) -> None:
        """Writes lines to log.txt, and shows nothing."""
        if self._outputs is not None:
            self._outputs.logger.log(text)

    def write_iteration(
        self, progress: Progress, wall_time: float, episodes: Sequence[Episode], rollout: Rollout
    ) -> None:
        """Writes the rows of an iteration, and sends the trackers theirs.

        Args:
            progress: of the run.
            wall_time: seconds of training so far.
            episodes: that ended in the iteration, of all ranks.
            rollout: of the iteration, of this rank.

        Raises:
            CheckpointError: if they cannot be written.
        """

        def actions() -> Tree:
            return map_tree(lambda leaf: leaf[rollout.valid].cpu().numpy(), rollout.action)

        self._write(progress, progress.metrics, wall_time, episodes, actions)

    def write_evaluation(self, progress: Progress, wall_time: float) -> None:
        """Writes the row of an evaluation that belongs to the iteration before, and sends it to the trackers.

        Raises:
            CheckpointError: if it cannot be written.
        """
        if progress.evaluation is not None:  # else it was given up
            found = {name: value for name, value in progress.metrics.items() if name.startswith("eval/")}
            self._write(progress, found, wall_time, [], dict)

    def _write(
        self,
        progress: Progress,
        metrics: Mapping[str, float],
        wall_time: float,
        episodes: Sequence[Episode],
        actions: Callable[[], Tree],
    ) -> None:
        """Writes a row of metrics, and sends it to the trackers."""
        counters = {
            "env_step": progress.env_step,
            "train_iter": progress.train_iter,
            "iteration": progress.iteration,
        }
        row = {**counters, **metrics, "time/wall_s": wall_time}

        def write() -> None:
            assert self._outputs is not None
            self._outputs.logger.write_iteration(progress.env_step, row, episodes)
            self._outputs.tracking.write(progress, row, episodes, actions)

        self._ranks.from_first(write)

    def film(self, progress: Progress) -> None:
        """Records an evaluation episode if the iteration passed a multiple of ``logger.video_freq``.

        It is sent to the trackers.
        """
        # Also after a video has failed, which rank 0 alone knows: all ranks must exchange the same.
        if progress.crossed(self._video_freq):
            self._ranks.from_first(lambda: self._film(progress))

    def _film(self, progress: Progress) -> None:
        assert self._outputs is not None
        file = self._camera.film(self._folder / "videos", progress, self._policy.eval_mode, self.say)
        if file is not None:
            self._outputs.tracking.video(progress.env_step, "eval/episode", file)

    def fail(self, error: BaseException) -> None:
        """Writes an error that ends the run, with its traceback."""
        if self._outputs is not None:
            self._outputs.logger.write_traceback(error)
            self._outputs.logger.log(f"{type(error).__name__}: {error}")

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Writes result.json, and sends the result to the trackers.

        Raises:
            CheckpointError: if it cannot be written.
        """
        if self._outputs is not None:
            self._outputs.logger.write_result(result)
            self._outputs.tracking.result(result)

    def forget_result(self) -> None:
        """Removes result.json of an earlier session: if this one is killed, none says how it ended."""
        if self._outputs is not None:
            self._outputs.logger.forget_result()

    def close(self) -> None:
        """Waits for the checkpoints and closes all files and trackers; a second call has no effect."""
        self.checkpoints.close()
        if self._outputs is not None:
            self._outputs.tracking.close()
            self._outputs.logger.close()


def _to_first(lines: list[str], rank: int) -> Callable[[str], None]:
    """Returns a function that keeps a line until the ranks exchange their reports."""
    return lambda line: lines.append(f"rank {rank}: {line}")


def _log_and_show(logger: RunLogger, display: Display) -> Callable[[str], None]:
    """Returns a function that writes a line to log.txt and shows it."""

    def say(line: str) -> None:
        logger.log(line)
        display.say(line)

    return say
