"""Forged checkpoints, whose checksums are right: one kind of error, and no code runs."""

import contextlib
import copy
import functools
import json
import os
import pickle
import sys
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import SCALARS, places
from worlds import finished, merged, save_checkpoint, small_config

from ding_lite import SerialPipeline, load_policy
from ding_lite.cli import main
from ding_lite.config.compile import schema_of
from ding_lite.config.schema import Choice, Name, leaves
from ding_lite.errors import CheckpointError, EnvError
from ding_lite.run.checkpoint import load_checkpoint
from ding_lite.run.load import warm_start
from ding_lite.tools.evaluate import evaluate_checkpoint


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """State and config of the checkpoint of a short run with scales."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    scales = {"normalize": {"obs": True, "reward": True}, "model": {"encoder_hidden_size_list": [4]}}
    config = small_config(max_env_step=256, policy=scales, env={"manager": {"type": "base"}})
    finished(SerialPipeline(config, folder=folder))
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
    with pytest.raises(CheckpointError, match="size mismatch"):
        load_policy(written(tmp_path, state, config))
    assert time.process_time() - began < 2.0


def test_spaces_of_more_numbers_than_the_file_has_weights_are_refused_before_they_are_made(
    original, tmp_path
):
    state, config = original
    box = {"kind": "Box", "low": -1.0, "high": 1.0, "shape": [2**20], "dtype": "float64"}
    many = {"kind": "Dict", "spaces": {"a": box, "b": {"kind": "Tuple", "spaces": [box] * 4}}}
    maps = [{"space": {**box, "shape": [2**40]}, "arrays": [1.0, 0.0, -1.0, 1.0]}]
    for change in ({"spaces": {**config["spaces"], "obs": many}}, {"action_maps": maps}):
        with pytest.raises(CheckpointError, match="too many numbers"):
            load_policy(written(tmp_path, state, {**config, **change}))


# ---------------------------------------------------------------------- the canary

LEAVES_A_TRACE = "import pathlib\npathlib.Path({!r}).touch()\nclass C: pass\n"
MODULES = ["evil", "é", "run.x", "run/x.py", "./evil.py", "{here}/run/x.py"]  # of the folder of ``evil``


@pytest.fixture(scope="module")
def evil(original, tmp_path_factory):
    """A folder with modules that leave the file ``trace`` when they are imported, and a run beside them."""
    here = tmp_path_factory.mktemp("evil")
    written(here / "run", *original)
    for file in ("evil.py", "é.py", "run/x.py"):
        (here / file).write_text(LEAVES_A_TRACE.format(str(here / "trace")))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        patch.syspath_prepend(str(here))
        yield here


PLACES = {
    "policy": {"policy": {"type": "TEXT"}},
    "model": {"policy": {"model": {"type": "TEXT"}}},
    "encoder": {"policy": {"model": {"encoder": {"type": "TEXT"}}}},
    "distribution": {"policy": {"model": {"box_distribution": "TEXT"}}},
    "intrinsic": {"policy": {"intrinsic": {"type": "TEXT"}}},
    "env": {"env": {"type": "TEXT"}},
    "id": {"env": {"env_id": "TEXT"}},
    "id of the old gym": {"env": {"env_id": "GymV26Environment-v0", "kwargs": {"env_id": "TEXT"}}},
    "wrapper": {"env": {"wrappers": {"__kind__": "tuple", "value": ["TEXT"]}}},
    "hook": {"hooks": [{"type": "TEXT"}]},
    "tracker": {"logger": {"trackers": ["TEXT"]}},
}


def texts_with_colons():
    names = st.sampled_from(["C", "1", "C.mro", "é", "ns/Env-v0", "ALE/Pong-v5", "Env-v0", " C", "C:C"])
    modules = st.sampled_from(MODULES) | st.text("evil.é/ 1:\0", max_size=6)
    return st.builds("{}:{}".format, modules, names | st.text(max_size=4))


@pytest.mark.parametrize("module", MODULES)
def test_each_of_these_modules_leaves_a_trace_when_it_is_imported(module, evil):
    """The negative control."""
    with contextlib.suppress(CheckpointError):
        load_policy(evil / "run", trust=[module.format(here=evil)])
    assert (evil / "trace").exists()
    (evil / "trace").unlink()
    for name in ("evil", "é", "run.x", "x"):
        sys.modules.pop(name, None)


@given(st.data())
def test_no_text_with_a_colon_anywhere_in_a_config_imports_a_module(original, evil, data):
    """The config has every key of the schema; half of the texts are values of a key that names something."""
    state, config = copy.deepcopy(original)
    named = [
        path
        for path, key in leaves(schema_of(config["config"])[0])
        if key.faults or key.type in (Name, Choice)
    ]
    assert len(named) >= len(PLACES)
    everywhere = list(places(config["config"]))
    if data.draw(st.booleans()):
        *sections, key = data.draw(st.sampled_from(named)).split(".")
        node = functools.reduce(dict.__getitem__, sections, config["config"])
    else:
        node, key = data.draw(st.sampled_from(everywhere))
    text = data.draw(texts_with_colons()).replace("{here}", str(evil))
    node[key] = data.draw(
        st.sampled_from([text, [text], {"type": text}, [{"type": text}], {"a": {"type": text}}, {text: 1}])
    )
    run = written(evil / "run", state, config)
    ways = {
        "load": load_policy,
        "resume": lambda run: SerialPipeline.resume(run).close(),
        "evaluate": lambda run: evaluate_checkpoint(run, episodes=1),
    }
    with contextlib.suppress(CheckpointError, EnvError):
        ways[data.draw(st.sampled_from(list(ways)))](run)
    assert not (evil / "trace").exists()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("text", ["evil:C", "run/x.py:C", "é:C", "evil:ALE/Pong-v5"])
def test_where_a_registry_looks_up_a_name_its_module_is_refused_and_named(
    place, text, original, evil, capsys
):
    change = json.loads(json.dumps(PLACES[place]).replace('"TEXT"', json.dumps(text)))
    written(evil / "run", original[0], merged(original[1], {"config": change}))
    is_for_training = place in ("hook", "tracker")  # which do not play
    assert not is_for_training or main(["eval", "run", "-n", "1"]) == 0
    for words in (["eval", "run", "-n", "1"], ["train", "--resume", "run", "-q"])[is_for_training:]:
        assert main(words) == 5
        assert f"--import {text.split(':')[0]} " in capsys.readouterr().err
    assert not (evil / "trace").exists()


def test_a_checkpoint_that_names_another_one_trusts_nothing_for_it(original, evil):
    state, config = original
    written(evil / "other", state, merged(config, {"config": {"policy": {"type": "evil:C"}}}))
    learn = {"pretrained_model_path": str(evil / "other"), "kl_beta": 0.1}
    hidden = {"exp_name": "evil:C", "policy": {"learn": learn}, "env": {"manager": {"type": "base"}}}
    run = written(evil / "run", state, merged(config, {"config": hidden}))
    with pytest.raises(CheckpointError, match="pretrained_model_path.*--import evil"):
        SerialPipeline.resume(run)
    assert not (evil / "trace").exists()


@pytest.mark.parametrize("name", ["os.system", "run", "bytes.fromhex", "os", "no_such"])
def test_what_a_trusted_module_has_only_imported_is_not_trusted(name, original, evil):
    (evil / "only_imports.py").write_text("import os\nfrom subprocess import run\nbytes = bytes\n")
    env = {"env": {"type": f"only_imports:{name}", "kwargs": {"command": "touch trace"}}}
    # EnvPool's environments are made by their id alone; a video would be recorded from the type, and later.
    for manager in ("base", "env_pool"):
        change = merged(env, {"env": {"manager": {"type": manager}}})
        run = written(evil / "run", original[0], merged(original[1], {"config": change}))
        with pytest.raises(CheckpointError, match=f"only_imports:{name}"):
            SerialPipeline.resume(run, trust=["only_imports"])
    assert not (evil / "trace").exists()


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return (os.mkdir, (self.canary,))


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
    with pytest.raises(CheckpointError, match="metrics.csv is a link, a pipe"):
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
