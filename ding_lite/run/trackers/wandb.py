"""Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ding_lite.config.registry import TRACKER_REGISTRY
from ding_lite.run.trackers.tracker import BINS, TrackedRun, Tracker


@TRACKER_REGISTRY.register("wandb")
class WandbTracker(Tracker):
    """Weights & Biases; the x axis is env_step.

    Args:
        run: that is tracked.
        project: that the run belongs to.
        mode: "online", "offline" or "disabled"; None: that of WANDB_MODE, or else "online". Offline, the run
            is kept in wandb/ in the run's folder until `wandb sync` sends it.
        arguments: others of `wandb.init`, such as entity, group or tags.
    """

    requires = ("wandb", "wandb")
    seconds_to_store = 30.0  # a process of its own writes and sends rows about every 15 seconds

    def __init__(
        self, run: TrackedRun, project: str = "ding_lite", mode: str | None = None, **arguments: Any
    ) -> None:
        import wandb

        self._wandb = wandb
        self._failed = False
        self._run = wandb.init(
            **{
                "project": project,
                "mode": mode,
                "name": run.folder.name,
                "dir": str(run.folder),
                "config": dict(run.config),
                "resume": "allow",
                "reinit": "create_new",  # beside other runs of the process
                "settings": wandb.Settings(console="off", silent=True),  # the display belongs to the run
                **run.identity,
                **arguments,
            }
        )
        self.identity = {"id": self._run.id}
        self.place = str(Path(self._run.dir).parent) if self._run.offline else str(self._run.url)
        self._run.define_metric("env_step", hidden=True)
        self._run.define_metric("*", step_metric="env_step")

    def scalars(self, env_step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "env_step": env_step})

    def histogram(self, env_step: int, name: str, values: np.ndarray) -> None:
        histogram = self._wandb.Histogram(values, num_bins=BINS)
        self._run.log({f"{name}_histogram": histogram, "env_step": env_step})

    def video(self, env_step: int, name: str, file: Path) -> None:
        self._run.log({name: self._wandb.Video(str(file), format="mp4"), "env_step": env_step})

    def result(self, values: Mapping[str, Any]) -> None:
        self._failed = values["status"] == "failed"
        self._run.summary.update({f"result/{name}": value for name, value in values.items()})

    def close(self) -> None:
        self._run.finish(exit_code=int(self._failed))
