"""MLflow."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ding_lite.config.registry import TRACKER_REGISTRY
from ding_lite.config.schema import leaves
from ding_lite.run.trackers.tracker import TrackedRun, Tracker

MAX_PARAMETERS = 100  # in one request
# MLflow's states of a run, by the status of result.json.
STATES = {"interrupted": "KILLED", "failed": "FAILED"}


@TRACKER_REGISTRY.register("mlflow")
class MlflowTracker(Tracker):
    """MLflow, in a local database or on a server; the step is env_step. It has no histograms.

    Args:
        run: that is tracked.
        tracking_uri: such as "sqlite:///mlflow.db" or "http://host:5000"; None: that of MLFLOW_TRACKING_URI,
            or else MLflow's default.
        experiment: name of the experiment, which is made if it does not exist.
        tags: of the run.
    """

    requires = ("mlflow", "mlflow")

    def __init__(
        self,
        run: TrackedRun,
        tracking_uri: str | None = None,
        experiment: str = "ding_lite",
        tags: Mapping[str, Any] | None = None,
    ) -> None:
        import mlflow

        self._entities = mlflow.entities
        self._client = mlflow.MlflowClient(tracking_uri)
        if run.identity:
            self._id = run.identity["run_id"]
            self._client.update_run(self._id, status="RUNNING")
        else:
            found = self._client.get_experiment_by_name(experiment)
            experiment_id = (
                self._client.create_experiment(experiment) if found is None else found.experiment_id
            )
            self._id = self._client.create_run(
                experiment_id, run_name=run.folder.name, tags=dict(tags or {})
            ).info.run_id
            self._log_config(run.config)
        self.identity = {"run_id": self._id}
        self.place = f"run {self._id} at {self._client.tracking_uri}"

    def _log_config(self, config: Mapping[str, Any]) -> None:
        parameters = [self._entities.Param(path, str(value)) for path, value in leaves(config)]
        for first in range(0, len(parameters), MAX_PARAMETERS):
            self._client.log_batch(self._id, params=parameters[first : first + MAX_PARAMETERS])
        self._client.log_dict(self._id, dict(config), "config.json")

    def scalars(self, env_step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(name, float(x), now, env_step) for name, x in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def video(self, env_step: int, name: str, file: Path) -> None:
        self._client.log_artifact(self._id, str(file), "videos")

    def result(self, values: Mapping[str, Any]) -> None:
        tags = [self._entities.RunTag(f"result.{name}", json.dumps(x)) for name, x in values.items()]
        self._client.log_batch(self._id, tags=tags)
        self._client.set_terminated(self._id, STATES.get(values["status"], "FINISHED"))
