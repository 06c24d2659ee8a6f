"""A run's folder that another person made: links, devices and pipes in the place of its files."""

import json
import os
import shutil
import signal
import stat

import pytest
from worlds import small_config

from ding_lite import SerialPipeline, load_policy
from ding_lite.errors import ConfigError, DingLiteError
from ding_lite.run.checkpoint import FILES, MANIFEST
from ding_lite.tools.compare import compare
from ding_lite.tools.evaluate import evaluate_checkpoint
from ding_lite.tools.runs import list_runs, read_config_of, read_run, status_of

CONFIG = small_config(max_env_step=256, env={"manager": "base"}, logger={"tensorboard": True})
CKPT = tuple(f"ckpt/last/{name}" for name in (MANIFEST, *FILES))
LOGS = (
    "log.txt",
    "metrics.csv",
    "episodes.csv",
    "config.json",
    "git.txt",
    "result.json",
    "trackers_stored.json",
)
FOLDERS = ("ckpt", "ckpt/last", "ckpt/abandoned", "tb", "videos")
SECONDS = 20


def resume(run):
    pipeline = SerialPipeline.resume(run, max_env_step=512)
    for _ in pipeline:
        pass


def from_weights(run):
    SerialPipeline(CONFIG, init_from=run, folder=run.parent / "new").close()


def plot(run):
    status_of(read_run(run))


def runs(run):
    (line,) = list_runs(run)
    if line.error:
        raise ConfigError(line.error)


ALL = {
    "load_policy": load_policy,
    "eval": lambda run: evaluate_checkpoint(run, episodes=1),
    "init-from": from_weights,
    "plot": plot,
    "runs": runs,
    "compare": lambda run: compare([run]),
    "resume": resume,
}
LOADING, LOOKING = {"load_policy", "eval", "init-from", "resume"}, {"plot", "runs", "compare"}
REFUSING = {  # other files are not read, or are replaced
    **{place: LOADING for place in ("ckpt", "ckpt/last", *CKPT)},
    **{place: {"resume"} for place in ("ckpt/abandoned", "tb", "videos", "log.txt", "episodes.csv")},
    "metrics.csv": {"resume", *LOOKING},
    "config.json": LOOKING,
    "result.json": LOOKING,
}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A run whose files are all there."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    for _ in SerialPipeline(CONFIG, folder=folder):
        pass
    shutil.rmtree(folder / "ckpt" / "best")
    (folder / "trackers_stored.json").write_text("{}\n")
    return folder


@pytest.fixture(autouse=True)
def limited():
    """Ends a test that waits for a pipe or reads a device."""

    def too_long(number, frame):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def contents(folder):
    """The files below a folder, with what is in them."""
    return {path: path.is_file() and path.read_bytes() for path in sorted(folder.rglob("*"))}


def put(kind, place, outside):
    """Puts a link to the same contents, an endless device, or a pipe in a place."""
    if place.exists():
        place.rename(outside / "thing")
    elif not place.suffix:
        (outside / "thing").mkdir()
    else:
        (outside / "thing").write_text("{}")
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "device":
        try:
            os.mknod(place, stat.S_IFCHR | 0o666, os.stat("/dev/zero").st_rdev)
        except PermissionError:  # only root may
            place.symlink_to("/dev/zero")
    else:
        place.symlink_to(outside / "thing")


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        *((place, kind) for place in (*LOGS, *CKPT) for kind in ("link", "device", "pipe")),
        *((place, "link") for place in FOLDERS),
    ],
)
def test_nothing_but_a_file_of_its_own_is_read_or_written(place, kind, original, tmp_path):
    run, outside = tmp_path / "run", tmp_path / "outside"
    shutil.copytree(original, run)
    outside.mkdir()
    put(kind, run / place, outside)
    before = contents(outside)
    for name, command in ALL.items():
        if name in REFUSING.get(place, ()):
            with pytest.raises(DingLiteError) as refused:
                command(run)
            assert str(run / place) in str(refused.value), name
        else:
            command(run)
        assert contents(outside) == before, name
    if place in ("config.json", "result.json"):  # written by the resumed run
        assert (run / place).is_file()
        assert not (run / place).is_symlink()


def test_links_that_a_killed_process_could_have_left_are_not_written_through(original, tmp_path):
    run, outside = tmp_path / "run", tmp_path / "outside"
    shutil.copytree(original, run)
    for name in ("config.json", "result.json", "metrics.csv"):
        (run / f".{name}.{os.getpid()}.tmp").symlink_to(outside)
    (run / "ckpt" / f".last.{os.getpid()}.tmp").symlink_to(outside)
    resume(run)
    assert not outside.exists()
    assert not list(run.rglob("*.tmp"))
    assert json.loads((run / "result.json").read_text())["env_step"] == 512


def test_large_files_are_refused_before_they_are_read(original, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(original, run)
    os.truncate(run / "metrics.csv", 2**40)
    with pytest.raises(ConfigError, match="metrics.csv has .* bytes, and at most"):
        read_run(run)
    with pytest.raises(ConfigError, match="metrics.csv has .* bytes, and at most"):
        resume(run)
    os.truncate(run / "config.json", 2**40)
    with pytest.raises(ConfigError, match="config.json has .* bytes, and at most"):
        read_config_of(run)


def test_run_may_be_named_by_a_link(original, tmp_path):
    shutil.copytree(original, tmp_path / "run")
    (tmp_path / "latest").symlink_to("run")
    for command in ALL.values():
        command(tmp_path / "latest")
