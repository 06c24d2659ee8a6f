"""Trainings on a Ray cluster: each one is a Ray actor that starts ``ding-lite train`` on its node.

An actor and not a task, because a training is asked for its progress and told to end. On a node that shares
the file system of the driver, the run is trained in its folder. On any other node it is trained in a
temporary folder: metrics.csv comes back while it trains, and the whole folder when it has ended.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ding_lite.envs.workers.ray_actors import knock, signals_kept
from ding_lite.errors import ConfigError
from ding_lite.run.checkpoint import write_whole
from ding_lite.tools.jobs import LocalTraining, Needs, Running

try:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else Ray reports its usage to its makers
    import ray
    from ray.exceptions import RayError
except ImportError as error:
    raise ConfigError('--ray needs Ray: pip install "ding_lite[ray]"') from error

SECONDS_BETWEEN_COPIES = 2.0  # of metrics.csv from another node


class State(NamedTuple):
    """What an actor answers.

    Attributes:
        code: exit code of the training; None while it trains.
        error: its error message.
        metrics: content of metrics.csv on another node; None if it has not changed.
        folder: the packed folder of the run, if it has ended on another node.
    """

    code: int | None
    error: str = ""
    metrics: bytes | None = None
    folder: bytes | None = None


class RemoteTraining:
    """The actor: a training on its node.

    Args:
        arguments: of ``ding-lite``.
        folder: of the run, on the driver; one of the arguments.
        cwd: working directory of the driver.
        mark: a file of the driver, by which a node sees that it shares the file system.
        packed: the folder of a run to continue; None for a new run.
    """

    def __init__(
        self, arguments: Sequence[str], folder: str, cwd: str, mark: str, packed: bytes | None
    ) -> None:
        self._is_shared = Path(mark).exists()
        self._copied_at = 0.0
        self._copied = b""
        if self._is_shared:
            self._training = LocalTraining(arguments, Path(cwd))
            return
        self._folder = Path(tempfile.mkdtemp(prefix="ding_lite_")) / Path(folder).name
        if packed is not None:
            unpack(packed, self._folder)
        here = [str(self._folder) if word == folder else word for word in arguments]
        self._training = LocalTraining(here)  # in Ray's working directory, where the files of the job are

    def poll(self) -> State:
        """Returns how the training is."""
        code = self._training.poll()
        error = "" if code is None else self._training.error()
        if self._is_shared:
            return State(code, error)
        if code is None:
            return State(code, metrics=self._changed_metrics())
        content = pack(self._folder) if self._folder.exists() else None
        shutil.rmtree(self._folder.parent, ignore_errors=True)
        return State(code, error, folder=content)

    def _changed_metrics(self) -> bytes | None:
        if time.monotonic() - self._copied_at < SECONDS_BETWEEN_COPIES:
            return None
        self._copied_at = time.monotonic()
        file = self._folder / "metrics.csv"
        content = file.read_bytes() if file.exists() else b""
        if content == self._copied:
            return None
        self._copied = content
        return content

    def send(self, name: str) -> None:
        """Sends a signal to the training."""
        self._training.send(name)


class RayTraining:
    """The driver's side of an actor."""

    def __init__(self, actor: Any, folder: Path) -> None:
        self._actor = actor
        self._folder = folder
        self._answer = actor.poll.remote()
        self._state = State(None)

    def poll(self) -> int | None:
        """Returns the exit code, or None while it trains; 1 if its node is lost."""
        if self._state.code is None and ray.wait([self._answer], timeout=0)[0]:
            try:
                self._state = ray.get(self._answer)
            except RayError as error:
                self._state = State(1, f"Ray lost the run: {str(error).strip().splitlines()[0]}")
            else:
                self._keep(self._state)
            if self._state.code is None:
                self._answer = self._actor.poll.remote()
            else:
                ray.kill(self._actor)  # frees its cores
        return self._state.code

    def _keep(self, state: State) -> None:
        """Writes what has come from another node."""
        if state.metrics is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._folder / "metrics.csv", state.metrics)
        if state.folder is not None:
            unpack(state.folder, self._folder)

    def send(self, name: str) -> None:
        """Sends a signal to the training."""
        with contextlib.suppress(RayError):
            self._actor.send.remote(name)

    def error(self) -> str:
        """Returns its error message."""
        return self._state.error


class RayCluster:
    """A Ray cluster, which is started on this machine if there is none.

    Args:
        address: of the cluster; "": that of RAY_ADDRESS or of a cluster on this machine, or else a new one.
        needs: of one training.

    Raises:
        ConfigError: if the cluster cannot be reached or started.
    """

    def __init__(self, address: str, needs: Needs) -> None:
        address = address or os.environ.get("RAY_ADDRESS", "")
        with signals_kept():
            try:
                knock(address)
                ray.init(
                    address=address or None,
                    logging_level=logging.ERROR,
                    log_to_driver=False,
                    include_dashboard=False,
                )
            except (RayError, ConnectionError, OSError, RuntimeError, ValueError) as error:
                where = f"the Ray cluster {address!r} cannot be reached" if address else "Ray cannot start"
                raise ConfigError(f"--ray: {where}: {str(error).strip()}") from error
        has_gpus = max(node["Resources"].get("GPU", 0) for node in ray.nodes() if node["Alive"])
        if needs.gpus > has_gpus:
            with signals_kept():
                ray.shutdown()
            raise ConfigError("--ray: policy.device asks for a GPU, and no machine of the cluster has one")
        largest = max(node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"])
        self._needs = needs._replace(cores=max(1, min(needs.cores, int(largest))))
        self._actor = ray.remote(num_cpus=self._needs.cores, num_gpus=self._needs.gpus)(RemoteTraining)
        self._mark = tempfile.NamedTemporaryFile(prefix=".ding_lite_", dir=Path.cwd())  # noqa: SIM115

    def start(self, arguments: Sequence[str], folder: Path) -> Running:
        """Starts a training on a node that has free cores."""
        packed = pack(folder) if folder.exists() else None
        actor = self._actor.remote(arguments, str(folder), str(Path.cwd()), self._mark.name, packed)
        return RayTraining(actor, folder)

    def slots(self) -> int:
        """Returns as many trainings as the cluster has cores and GPUs for."""
        resources = ray.cluster_resources()
        slots = [resources.get("CPU", 1) // self._needs.cores]
        if self._needs.gpus:
            slots.append(resources.get("GPU", 0) // self._needs.gpus)
        return max(1, int(min(slots)))

    def close(self) -> None:
        """Leaves the cluster; ends it if it was started here."""
        self._mark.close()
        with signals_kept():
            ray.shutdown()


def pack(folder: Path) -> bytes:
    """Returns the files of a folder as a tar archive."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.add(folder, arcname=".")
    return content.getvalue()


def unpack(content: bytes, folder: Path) -> None:
    """Replaces a folder by the files of an archive; the folder stays if they cannot be extracted."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(temporary, filter="data")
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
