"""Aim."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ding_lite.config.registry import TRACKER_REGISTRY
from ding_lite.run.trackers.tracker import BINS, TrackedRun, Tracker


@TRACKER_REGISTRY.register("aim")
class AimTracker(Tracker):
    """Aim, in a folder or on a server; the step is env_step. It has no videos.

    Args:
        run: that is tracked.
        repo: the folder that has .aim, or "aim://host:port"; None: the working directory.
        experiment: name of the experiment.
    """

    requires = ("aim", "aim")

    def __init__(self, run: TrackedRun, repo: str | None = None, experiment: str = "ding_lite") -> None:
        import aim

        self._distribution = aim.Distribution
        self._run = aim.Run(
            run_hash=run.identity.get("run_hash"),
            repo=repo,
            experiment=experiment,
            system_tracking_interval=None,
            capture_terminal_logs=False,
        )
        self.identity = {"run_hash": self._run.hash}
        self.place = f"run {self._run.hash} in {self._run.repo.path}"
        self._run.name = run.folder.name
        self._run["config"] = dict(run.config)

    def scalars(self, env_step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._run.track(float(value), name=name, step=env_step)

    def histogram(self, env_step: int, name: str, values: np.ndarray) -> None:
        distribution = self._distribution(values, bin_count=BINS)
        self._run.track(distribution, name=f"{name}_histogram", step=env_step)

    def result(self, values: Mapping[str, Any]) -> None:
        self._run["result"] = {name: value for name, value in values.items() if value is not None}

    def close(self) -> None:
        self._run.close()
