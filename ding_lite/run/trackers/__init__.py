"""Trackers: where the metrics, histograms, videos and the config of a run are sent, beside its folder.

``tracker`` has the base class and an example, ``tracking`` what a run does with its trackers. The packages
behind them are imported when a run uses them.
"""

from ding_lite.run.trackers.aim import AimTracker
from ding_lite.run.trackers.mlflow import MlflowTracker
from ding_lite.run.trackers.tensorboard import TensorboardTracker
from ding_lite.run.trackers.tracker import TrackedRun, Tracker
from ding_lite.run.trackers.wandb import WandbTracker

__all__ = ["AimTracker", "MlflowTracker", "TensorboardTracker", "TrackedRun", "Tracker", "WandbTracker"]
