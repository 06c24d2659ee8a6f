"""The pool of ``tools.parallel`` on a Ray cluster whose nodes share a file system: each job is a task."""

from __future__ import annotations

import logging
import os
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ding_lite.envs.vector import signals_kept
from ding_lite.envs.workers.ray_actors import knock
from ding_lite.errors import ConfigError
from ding_lite.tools.parallel import INTERRUPTED, Job, Load, Outcome, Pool, follow, python_path, start

try:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else Ray reports its usage to its makers
    import ray
    from ray.exceptions import RayError
except ImportError as error:
    raise ConfigError("--ray needs Ray: pip install ray") from error

POLL_SECONDS = 0.5
WAITING = 1_000  # jobs that are submitted to Ray at a time


def run_in_folder(job: Job, folder: str, path: str, stop: str) -> Outcome:
    """Runs a job on a node, and returns how it ended.

    Args:
        job: to run.
        folder: working directory.
        path: PYTHONPATH of the driver.
        stop: a file; once it exists, no job starts, and a running job saves and ends after its iteration.
    """
    os.chdir(folder)
    if Path(stop).exists():
        return Outcome(INTERRUPTED[0])
    process = start(job, {"PYTHONPATH": path})
    with ThreadPoolExecutor(1) as reader:
        outcome = reader.submit(follow, process, job, print)
        while not outcome.done():
            time.sleep(POLL_SECONDS)
            if Path(stop).exists():
                process.terminate()  # child processes of a Ray worker ignore SIGINT
                break
    return outcome.result()


class RayPool(Pool):
    """A Ray cluster, which is started on this machine if there is none; see :class:`tools.parallel.Pool`.

    Args:
        address: of the cluster; "": RAY_ADDRESS, or else a cluster on this machine, or else a new one.
        load: of one training.

    Raises:
        ConfigError: if the cluster cannot be reached or started.
    """

    def __init__(self, address: str, load: Load) -> None:
        address = address or os.environ.get("RAY_ADDRESS", "")
        with signals_kept():
            try:
                knock(address)
                ray.init(address=address or None, logging_level=logging.ERROR, include_dashboard=False)
            except (RayError, OSError, RuntimeError, ValueError) as error:
                raise ConfigError(f"--ray: {address or 'Ray'} cannot be reached: {error}") from error
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = int(load.gpu and any("GPU" in node for node in nodes))
        cpus = max(1, min(load.cores, int(max(node.get("CPU", 0) for node in nodes))))
        self._task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(run_in_folder)
        self._stop = Path.cwd() / f".ding_lite_stop_{uuid.uuid4().hex}"
        self.stopped_by = ""
        self.jobs = max(1, int(ray.cluster_resources().get("CPU", 1)) // cpus)
        self.threads = WAITING  # Ray decides how many run, and whether the cluster grows

    def stop(self, name: str) -> None:
        """Makes all jobs save and end after their iterations."""
        self.stopped_by = name
        self._stop.touch()

    def _run(self, job: Job) -> Outcome:
        try:
            return ray.get(self._task.remote(job, str(Path.cwd()), python_path(), str(self._stop)))
        except RayError as error:
            return Outcome(1, f"Ray lost the run: {str(error).strip().splitlines()[0]}")

    def close(self) -> None:
        """Leaves the cluster; ends it if it was started here."""
        self._stop.unlink(missing_ok=True)
        with signals_kept():
            ray.shutdown()
