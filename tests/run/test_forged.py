"""Forged checkpoints, whose checksums are right: one kind of error, and no code runs."""

import contextlib
import copy
import os
import pickle
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import SCALARS, places
from worlds import merged, save_checkpoint, small_config

from ding_lite import SerialPipeline, load_policy
from ding_lite.cli import main
from ding_lite.errors import CheckpointError, EnvError
from ding_lite.run.checkpoint import load_checkpoint
from ding_lite.run.load import warm_start


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """State and config of the checkpoint of a short run with scales."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    scales = {"normalize": {"obs": True, "reward": True}, "model": {"encoder_hidden_size_list": [4]}}
    config = small_config(max_env_step=256, policy=scales, env={"manager": {"type": "base"}})
    for _ in SerialPipeline(config, folder=folder):
        pass
    return load_checkpoint(folder / "ckpt" / "last.safetensors")


def written(run, state, config):
    """Returns a run whose only checkpoint has this state and this config."""
    save_checkpoint(run / "ckpt" / "last.safetensors", state, config)
    return run


@pytest.fixture(scope="module")
def runs(original, tmp_path_factory):
    """A policy of the original, and a folder for mutants."""
    folder = tmp_path_factory.mktemp("mutants")
    return load_policy(written(folder / "good", *original)), folder / "run"


@given(st.data())
def test_mutants_make_a_policy_and_a_run_or_are_refused(original, runs, data):
    """A config may also ask for an environment that cannot be made, or for a limit that is reached."""
    state, config = copy.deepcopy(original)
    node, key = data.draw(st.sampled_from(list(places(data.draw(st.sampled_from([state, config]))))))
    if data.draw(st.booleans()):
        node[key] = data.draw(
            SCALARS
            | st.sampled_from([-1, 0, 2**31, 2**63, "../../x", [], {}, [[]], {"a": 1}, {"__kind__": "tuple"}])
        )
    else:
        del node[key]
    policy, run = runs
    written(run, state, config)
    with contextlib.suppress(CheckpointError):
        load_policy(run)
    with contextlib.suppress(CheckpointError):
        warm_start(policy, run)
    if data.draw(st.integers(0, 7)) == 0:
        with contextlib.suppress(CheckpointError, EnvError):
            SerialPipeline.resume(run).close()


@pytest.mark.parametrize("sizes", [[10**6] * 3, [10**9]], ids=str)
def test_network_of_any_size_in_a_config_is_refused_before_it_is_built(sizes, original, tmp_path):
    state, config = original
    config = merged(config, {"config": {"policy": {"model": {"encoder_hidden_size_list": sizes}}}})
    began = time.process_time()
    with pytest.raises(CheckpointError, match="not of this model"):
        load_policy(written(tmp_path, state, config))
    assert time.process_time() - began < 2.0


# ---------------------------------------------------------------------- the canary

IN_POLICY = {
    "policy": {"policy": {"type": "evil_module:C"}},
    "function of a function": {"policy": {"type": "os:system"}},
}
IN_RUN = {
    "env": {"env": {"type": "evil_module:C"}},
    "gymnasium's own form": {"env": {"env_id": "evil_module:C-v0"}},
    "tuple": {"hooks": {"__kind__": "tuple", "value": ["evil_module:C"]}},
    "key": {"env": {"kwargs": {"evil_module:C": 1}}},
}


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module that leaves a file when it is imported."""
    (tmp_path / "evil_module.py").write_text("open('imported', 'w')\nclass C: pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "imported"


@pytest.mark.parametrize("change", [*IN_POLICY.items(), *IN_RUN.items()], ids=lambda item: item[0])
def test_no_module_that_a_checkpoint_names_is_imported(change, original, evil, tmp_path):
    name, change = change
    run = written(tmp_path / "run", original[0], merged(original[1], {"config": change}))
    ways = [SerialPipeline.resume] + ([load_policy] if name in IN_POLICY else [])
    for way in ways:
        with pytest.raises(CheckpointError, match="evil_module|os:system"):
            way(run)
    assert not evil.exists()


def test_what_a_trusted_module_has_only_imported_is_not_trusted(original, evil, tmp_path):
    (tmp_path / "only_imports.py").write_text("import os\nfrom subprocess import run\n")
    for name in ("only_imports:os.system", "only_imports:run"):
        env = {"config": {"env": {"type": name, "kwargs": {"command": "touch imported"}}}}
        run = written(tmp_path / "run", original[0], merged(original[1], env))
        with pytest.raises(CheckpointError, match=name):
            SerialPipeline.resume(run, trust=["only_imports"])
    assert not evil.exists()


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return (os.mkdir, (self.canary,))


def test_canary_can_sing(tmp_path):
    """The negative control."""
    pickle.loads(pickle.dumps(Bomb(str(tmp_path / "canary"))))
    assert (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--resume", "run"],
        ["eval", "run", "-n", "1"],
        ["train", "--env", "CartPole-v1", "--exp-name", "new", "--init-from", "bomb.pt"],
        ["train", "--env", "CartPole-v1", "--exp-name", "new", "--init-from", "bomb.safetensors"],
    ],
    ids=" ".join,
)
def test_a_pickle_in_place_of_any_file_never_runs(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    bomb = Bomb(str(tmp_path / "canary"))
    (tmp_path / "run" / "ckpt").mkdir(parents=True)
    for file in ("run/ckpt/last.safetensors", "bomb.safetensors"):
        (tmp_path / file).write_bytes(pickle.dumps(bomb))
    torch.save({"model": bomb}, "bomb.pt")
    assert main(words) == 5
    output = capsys.readouterr()
    assert "Traceback" not in output.err
    assert not (tmp_path / "canary").exists()
    assert not (tmp_path / "new").exists()


def test_a_link_in_a_run_s_folder_is_not_written_through_and_a_pipe_is_not_waited_for(original, tmp_path):
    """Somebody else may have made the folder."""
    run = written(tmp_path / "run", *original)
    (tmp_path / "precious").write_text("mine\n")
    (run / "metrics.csv").symlink_to(tmp_path / "precious")
    with pytest.raises(CheckpointError, match="metrics.csv is a link"):
        SerialPipeline.resume(run)
    assert (tmp_path / "precious").read_text() == "mine\n"
    (run / "metrics.csv").unlink()
    os.mkfifo(run / "metrics.csv")
    with pytest.raises(CheckpointError, match="metrics.csv is a link or a pipe"):
        SerialPipeline.resume(run)
    os.replace(run / "metrics.csv", run / "ckpt" / "last.safetensors")
    with pytest.raises(CheckpointError, match="no undamaged checkpoint"):
        SerialPipeline.resume(run)


@pytest.mark.parametrize("name", ["config.json", "log.txt", "metrics.csv", "episodes.csv", "result.json"])
@pytest.mark.parametrize(
    "put", [os.mkfifo, lambda file: file.symlink_to("/dev/zero")], ids=["pipe", "device"]
)
def test_tools_wait_for_no_pipe_and_read_no_endless_device(name, put, original, tmp_path, capsys):
    run = written(tmp_path / "run", *original)
    (run / name).unlink(missing_ok=True)
    put(run / name)
    figure = tmp_path / "figure.png"
    for words in (["runs"], ["compare"], ["plot", "-o", figure]):
        main([*map(str, words), str(run)])
        assert "Traceback" not in capsys.readouterr().err
