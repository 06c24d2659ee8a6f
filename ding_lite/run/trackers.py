r"""Trackers: where the metrics, videos and the config of a run are sent, beside its folder.

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
registering it as ``"my_module:JsonLines"``. The packages behind the library's own are imported when a run
uses them.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from ding_lite.config.registry import TRACKER_REGISTRY
from ding_lite.config.schema import leaves
from ding_lite.errors import FOREIGN, error_text, require
from ding_lite.run.hooks import Hook

FLUSH_SECONDS = 10.0  # TensorBoard's rows become visible to a reader at this interval
STATES = {"interrupted": "KILLED", "failed": "FAILED"}  # MLflow's states, by the status of result.json


class TrackedRun(NamedTuple):
    """The data of a run that its trackers receive."""

    folder: Path
    config: Mapping[str, Any]  # complete, as plain data
    resume_at: int | None  # env step that a resumed run continues from; None for a new run
    id: str  # stays the same when the run is resumed


class Tracker:
    """Sends the data of a run somewhere. A subclass overrides the methods it needs; these do nothing.

    The constructor is ``Tracker(run, **arguments)``, with the arguments in the config. Whatever a tracker
    raises, the run warns once and trains on without it. A resumed run sends the rows after its checkpoint
    again.

    Attributes:
        requires: the package that the tracker imports; without it the run does not begin.
        place: where the user finds the data, such as a URL; "": nothing is shown.
    """

    requires: ClassVar[str | None] = None
    place: str = ""

    def __init__(self, run: TrackedRun) -> None:
        pass

    def scalars(self, env_step: int, values: Mapping[str, float]) -> None:
        """Receives metrics by their names, such as "learn/policy_loss"; some may be missing, or nan."""

    def video(self, env_step: int, name: str, file: Path) -> None:
        """Receives an mp4 file in the run's folder."""

    def result(self, values: Mapping[str, Any]) -> None:
        """Receives the contents of result.json."""

    def close(self) -> None:
        """Ends the session; called once, and last."""


class Trackers(Hook):
    """The trackers of one run. An error of a tracker ends the tracker with a warning, never the run.

    Args:
        items: value of ``logger.trackers``.
        freq: env steps between rows; an evaluation has a row, too.
        run: the run to track.

    Raises:
        RegistryError: if an item names no tracker.
        ConfigError: if a package is missing, with its install line, or an argument is wrong.
    """

    def __init__(self, items: Sequence[Any], freq: int, run: TrackedRun) -> None:
        self._choices = list(TRACKER_REGISTRY.named_choices(items))
        self._freq, self._run = freq, run
        self._trackers: dict[str, Tracker] = {}
        self._row: dict[str, float] = {}  # the newest values since the last row
        for name, cls, _ in self._choices:
            if cls.requires is not None:
                require(cls.requires, f"logger.trackers: {name!r}")

    def before_run(self, pipeline: Any) -> None:
        for name, cls, arguments in self._choices:
            with self._left_out_after_an_error(pipeline, name, "its start"):
                self._trackers[name] = tracker = cls(self._run, **arguments)
                if tracker.place:
                    pipeline.say(f"{name}: {tracker.place}")

    def after_iter(self, pipeline: Any) -> None:
        progress = pipeline.progress
        self._row |= {name: float(value) for name, value in progress.metrics.items()}
        if progress.evaluation is not None or progress.crossed(self._freq):
            self._send(pipeline, "scalars", progress.env_step, self._row)
            self._row = {}
        video = self._run.folder / "videos" / f"step_{progress.env_step}-episode-0.mp4"
        if video.exists():  # the hook "video" has recorded it
            self._send(pipeline, "video", progress.env_step, "eval/episode", video)

    def after_run(self, pipeline: Any) -> None:
        self._send(pipeline, "result", pipeline.result())
        self._send(pipeline, "close")

    def _send(self, pipeline: Any, method: str, *arguments: Any) -> None:
        for name, tracker in list(self._trackers.items()):
            with self._left_out_after_an_error(pipeline, name, method):
                getattr(tracker, method)(*arguments)

    @contextlib.contextmanager
    def _left_out_after_an_error(self, pipeline: Any, name: str, method: str) -> Iterator[None]:
        try:
            yield
        except FOREIGN as error:
            text = error_text(error)
            pipeline.say(f"WARNING: tracker {name} failed in {method}: {text}; the run goes on without it")
            tracker = self._trackers.pop(name, None)
            if tracker is not None and method != "close":
                with contextlib.suppress(*FOREIGN):  # the fault is known
                    tracker.close()


@TRACKER_REGISTRY.register("tensorboard")
class TensorboardTracker(Tracker):
    """tb/ in the run's folder, for TensorBoard.

    A resumed run writes a new file, from which TensorBoard hides the rows of earlier sessions that are past
    the checkpoint. Each row is written at once, as one event: tensorboardX's own SummaryWriter passes every
    number to a thread through a pipe, which costs fifteen times as much.
    """

    def __init__(self, run: TrackedRun) -> None:
        from tensorboardX import summary
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        folder = run.folder / "tb"
        folder.mkdir(exist_ok=True)
        self._event = event_pb2.Event
        self._proto = summary_pb2.Summary
        suffix = f".{time.time_ns()}"  # file names have whole seconds, and two sessions may start in one
        self._writer = EventsWriter(str(folder / "events"), suffix)
        self._next_flush = 0.0
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        begin = 0 if run.resume_at is None else run.resume_at + 1
        self._writer.write_event(self._event(step=begin, session_log=start))
        lines = json.dumps(run.config, indent=2).splitlines()
        self._write(run.resume_at or 0, summary.text("config", "\n".join(f"    {line}" for line in lines)))

    def scalars(self, env_step: int, values: Mapping[str, float]) -> None:
        row = [self._proto.Value(tag=name, simple_value=x) for name, x in values.items()]
        self._write(env_step, self._proto(value=row))

    def _write(self, env_step: int, summary: Any) -> None:
        self._writer.write_event(self._event(wall_time=time.time(), step=env_step, summary=summary))
        if time.monotonic() >= self._next_flush:
            self._writer.flush()
            self._next_flush = time.monotonic() + FLUSH_SECONDS

    def close(self) -> None:
        """Writes the buffered rows and closes the file."""
        self._writer.close()


@TRACKER_REGISTRY.register("wandb")
class WandbTracker(Tracker):
    """Weights & Biases; the x axis is env_step.

    Args:
        run: the run to track.
        arguments: of `wandb.init`, such as project, entity, group, tags or mode. The mode is "online",
            "offline" or "disabled"; by default the value of WANDB_MODE, or else "online". Offline, the data
            stay in wandb/ in the run's folder until `wandb sync` sends them.
    """

    requires = "wandb"

    def __init__(self, run: TrackedRun, **arguments: Any) -> None:
        import wandb

        self._wandb = wandb
        self._failed = False
        settings = {
            "project": "ding_lite",
            "id": run.id,
            "name": run.folder.name,
            "dir": str(run.folder),
            "config": dict(run.config),
            "resume": "allow",
            "reinit": "create_new",  # beside other runs of the process
            "settings": wandb.Settings(console="off", silent=True),  # only the run writes to the terminal
        }
        self._run = wandb.init(**{**settings, **arguments})
        self.place = str(Path(self._run.dir).parent) if self._run.offline else str(self._run.url)
        self._run.define_metric("env_step", hidden=True)
        self._run.define_metric("*", step_metric="env_step")

    def scalars(self, env_step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "env_step": env_step})

    def video(self, env_step: int, name: str, file: Path) -> None:
        self._run.log({name: self._wandb.Video(str(file), format="mp4"), "env_step": env_step})

    def result(self, values: Mapping[str, Any]) -> None:
        self._failed = values["status"] == "failed"
        self._run.summary.update({f"result/{name}": value for name, value in values.items()})

    def close(self) -> None:
        self._run.finish(exit_code=int(self._failed))


@TRACKER_REGISTRY.register("mlflow")
class MlflowTracker(Tracker):
    """MLflow, in a local database or on a server; the step is env_step.

    Args:
        run: the run to track.
        tracking_uri: such as "sqlite:///mlflow.db" or "http://host:5000"; None: the value of
            MLFLOW_TRACKING_URI, or else MLflow's default.
        experiment: name of the experiment, which is created if it does not exist.
        tags: of the run.
    """

    requires = "mlflow"

    def __init__(
        self,
        run: TrackedRun,
        tracking_uri: str | None = None,
        experiment: str = "ding_lite",
        tags: Mapping[str, Any] | None = None,
    ) -> None:
        import mlflow

        self._entities = mlflow.entities
        self._client = client = mlflow.MlflowClient(tracking_uri)
        known = client.get_experiment_by_name(experiment)
        parent = client.create_experiment(experiment) if known is None else known.experiment_id
        earlier = client.search_runs([parent], f"tags.`ding_lite.id` = '{run.id}'")
        if earlier:
            self._id = earlier[0].info.run_id
            client.update_run(self._id, status="RUNNING")
        else:
            run_tags = {**(tags or {}), "ding_lite.id": run.id}
            self._id = client.create_run(parent, run_name=run.folder.name, tags=run_tags).info.run_id
            parameters = [self._entities.Param(path, str(value)) for path, value in leaves(run.config)]
            client.log_batch(self._id, params=parameters)
        self.place = f"run {self._id} at {client.tracking_uri}"

    def scalars(self, env_step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(name, x, now, env_step) for name, x in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def video(self, env_step: int, name: str, file: Path) -> None:
        self._client.log_artifact(self._id, str(file), "videos")

    def result(self, values: Mapping[str, Any]) -> None:
        tags = [self._entities.RunTag(f"result.{name}", json.dumps(x)) for name, x in values.items()]
        self._client.log_batch(self._id, tags=tags)
        self._client.set_terminated(self._id, STATES.get(values["status"], "FINISHED"))
