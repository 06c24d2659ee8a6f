"""Forged checkpoints: one kind of error, bounded time and memory, and no code runs."""

import json
import os
import pickle
import random
import resource
import time

import pytest
import torch
from worlds import merged, small_config

from ding_lite import SerialPipeline, load_policy
from ding_lite.cli import main
from ding_lite.errors import CheckpointError, EnvError
from ding_lite.run.checkpoint import (
    CONFIG,
    FILES,
    MANIFEST,
    MAX_JSON_BYTES,
    STATE,
    TENSORS,
    _canonical,
    _sha256,
    load_checkpoint,
)
from ding_lite.run.warm_start import import_weights, warm_start

MUTATIONS = 2000
SECONDS = 0.5  # for one load, on a machine with other work to do
MEGABYTES = 300  # that all of them together may take


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """The files of the checkpoint of a short run with scales."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    scales = {"normalize": {"obs": True, "reward": True}, "model": {"encoder_hidden_size_list": [4]}}
    config = small_config(max_env_step=256, policy=scales, env={"manager": {"type": "base"}})
    for _ in SerialPipeline(config, folder=folder):
        pass
    return {name: (folder / "ckpt" / "last" / name).read_bytes() for name in (*FILES, MANIFEST)}


def write(folder, contents, *, signed):
    """Writes a checkpoint; ``signed`` makes its manifest true, as an attacker would."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = dict(contents)
    if signed:
        files = {n: {"bytes": len(contents[n]), "sha256": _sha256(contents[n])} for n in FILES}
        body = {"format_version": 1, "files": files}
        contents[MANIFEST] = json.dumps({**body, "sha256": _sha256(_canonical(body))}).encode()
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return folder


# ---------------------------------------------------------------------- mutations


def mutated_bytes(data, rng):
    """Flips, cuts, doubles, moves or replaces some bytes."""
    data, kind = bytearray(data), rng.randrange(6)
    at = rng.randrange(len(data))
    end = min(len(data), at + rng.randrange(1, 64))
    if kind == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        data[at:at] = data[at:end]
    elif kind == 3:
        del data[at:end]
    elif kind == 4:
        data[at:end] = rng.randbytes(end - at)
    else:
        data[at:end] = b"0" * (end - at)
    return bytes(data)


ODD = [
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    10**30,
    1e308,
    float("nan"),
    "",
    "x",
    "../../x",
    [],
    {},
    [[]],
    {"a": 1},
]


def mutated_json(data, rng):
    """Replaces, drops or doubles something somewhere in a JSON tree."""
    tree = json.loads(data)
    node = tree
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = rng.choice(keys)
        if isinstance(node[key], (dict, list)) and node[key] and rng.random() < 0.85:
            node = node[key]
            continue
        if rng.random() < 0.25:
            del node[key]
        else:
            node[key] = rng.choice(ODD)
        return json.dumps(tree).encode()


def mutant(original, number):
    """Returns ``(contents, signed)`` of mutation ``number``."""
    rng = random.Random(number)
    contents = dict(original)
    if number % 4 == 3:
        name = rng.choice((STATE, STATE, CONFIG))
        contents[name] = mutated_json(contents[name], rng)
        return contents, True
    name = rng.choice((*FILES, MANIFEST))
    contents[name] = mutated_bytes(contents[name], rng)
    return contents, number % 4 == 2 and name != MANIFEST


def load(folder, signed):
    """Returns whether a checkpoint is refused, and the processor time that this takes, in seconds."""
    began, refused = time.process_time(), False
    try:
        load_checkpoint(folder)
        if signed:
            load_policy(folder)
    except CheckpointError:
        refused = True
    return refused, time.process_time() - began


@pytest.mark.slow
def test_two_thousand_mutations_give_checkpoint_errors_in_bounded_time_and_memory(original, tmp_path):
    """What is signed and still a checkpoint must make a policy, or be refused as one.

    Work that is not the load's, such as a full garbage collection of what earlier tests left, falls on
    any of the 2000. So a slow load is repeated, and fails the test when it is slow twice.
    """
    folder, total, slow = tmp_path / "ckpt", 0, {}
    write(folder, original, signed=False)
    load_policy(folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(MUTATIONS):
        contents, signed = mutant(original, number)
        write(folder, contents, signed=signed)
        refused, seconds = load(folder, signed)
        if seconds >= SECONDS:
            seconds = min(seconds, load(folder, signed)[1])
        if seconds >= SECONDS:
            slow[number] = seconds
        total += refused
    assert total > 0.6 * MUTATIONS
    assert not slow, f"mutants that take {SECONDS} s or more: {slow}"
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < MEGABYTES


@pytest.mark.slow
def test_mutated_state_and_config_are_our_errors_for_resume_and_warm_start_too(original, tmp_path):
    """A config may also ask for an environment that cannot be made."""
    policy, refused = load_policy(write(tmp_path / "good", original, signed=False)), 0
    for number in range(3, 240, 4):
        contents, signed = mutant(original, number)
        folder = write(tmp_path / "run" / "ckpt" / "last", contents, signed=signed)
        try:
            warm_start(policy, folder)
            SerialPipeline.resume(folder).close()
        except (CheckpointError, EnvError):
            refused += 1
    assert refused > 20


# ---------------------------------------------------------------------- bombs of other kinds


def test_one_array_named_many_times_is_refused(original, tmp_path):
    """A few bytes a copy would become gigabytes."""
    state = json.loads(original[STATE])
    name = state["policy"]["model"][next(iter(state["policy"]["model"]))]
    state["bomb"] = [name] * 1000
    with pytest.raises(CheckpointError):
        load_checkpoint(write(tmp_path / "c", {**original, STATE: json.dumps(state).encode()}, signed=True))


def test_array_that_nothing_names_is_refused(original, tmp_path):
    with pytest.raises(CheckpointError, match="names none of the arrays"):
        load_checkpoint(write(tmp_path / "c", {**original, STATE: b"{}"}, signed=True))


@pytest.mark.parametrize("name", [STATE, CONFIG, MANIFEST])
def test_json_larger_than_any_of_ours_is_not_read(name, original, tmp_path):
    folder = write(tmp_path / "c", original, signed=True)
    os.truncate(folder / name, MAX_JSON_BYTES + 1)  # sparse: it takes no room
    if name != MANIFEST:
        body = json.loads((folder / MANIFEST).read_text())
        body.pop("sha256")
        body["files"][name]["bytes"] = MAX_JSON_BYTES + 1
        (folder / MANIFEST).write_text(json.dumps({**body, "sha256": _sha256(_canonical(body))}))
    began = time.process_time()
    with pytest.raises(CheckpointError, match=f"{name} has {MAX_JSON_BYTES + 1} bytes, and at most"):
        load_checkpoint(folder)
    assert time.process_time() - began < SECONDS


def test_file_larger_than_the_memory_is_refused_before_it_is_read(original, tmp_path):
    folder, size = write(tmp_path / "c", original, signed=True), 2**45
    try:
        os.truncate(folder / TENSORS, size)
    except OSError:
        size = 2**43
        os.truncate(folder / TENSORS, size)
    body = json.loads((folder / MANIFEST).read_text())
    body.pop("sha256")
    body["files"][TENSORS]["bytes"] = size
    (folder / MANIFEST).write_text(json.dumps({**body, "sha256": _sha256(_canonical(body))}))
    with pytest.raises(CheckpointError, match="too large for the memory"):
        load_checkpoint(folder)


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_pipe_in_place_of_a_file_is_not_waited_for(name, original, tmp_path):
    folder = write(tmp_path / "c", original, signed=True)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(CheckpointError, match=f"{name} is not a file"):
        load_checkpoint(folder)


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_link_in_place_of_a_file_is_refused_with_what_to_do(name, original, tmp_path):
    folder = write(tmp_path / "c", original, signed=True)
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    with pytest.raises(CheckpointError, match=f"{name} is a link, .* copy"):
        load_checkpoint(folder)


@pytest.mark.parametrize("sizes", [[10**6] * 3, [10**9]], ids=str)
def test_network_of_any_size_in_a_config_is_refused_before_it_is_built(sizes, original, tmp_path):
    saved = json.loads(original[CONFIG])
    config = merged(saved, {"config": {"policy": {"model": {"encoder_hidden_size_list": sizes}}}})
    folder = write(tmp_path / "c", {**original, CONFIG: json.dumps(config).encode()}, signed=True)
    began = time.process_time()
    with pytest.raises(CheckpointError, match="of another shape"):
        load_policy(folder)
    assert time.process_time() - began < SECONDS


# ---------------------------------------------------------------------- the canary


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return (os.mkdir, (self.canary,))


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": {"model": {"encoder": "evil_module:C"}}},
        {"hooks": "evil_module:C"},
        {"hooks": {"__kind__": "tuple", "value": ["evil_module:C"]}},
    ],
    ids=["encoder", "hooks", "tuple"],
)
def test_module_that_a_checkpoint_names_in_a_short_form_is_not_imported(
    changes, original, tmp_path, monkeypatch
):
    (tmp_path / "evil_module.py").write_text(
        "from pathlib import Path\nPath('imported').touch()\nclass C: pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = merged(json.loads(original[CONFIG]), {"config": changes})
    write(tmp_path / "run" / "ckpt" / "last", {**original, CONFIG: json.dumps(config).encode()}, signed=True)
    with pytest.raises(CheckpointError, match="evil_module"):
        SerialPipeline.resume(tmp_path / "run")
    assert not (tmp_path / "imported").exists()


@pytest.fixture
def canary(tmp_path):
    return tmp_path / "canary"


def test_canary_can_sing(canary):
    """The negative control."""
    pickle.loads(pickle.dumps(Bomb(str(canary))))
    assert canary.exists()


COMMANDS = {
    "resume": ["train", "--resume", "run"],
    "resume a checkpoint": ["train", "--resume", "run/ckpt/last"],
    "eval": ["eval", "run", "-n", "1"],
    "init-from": ["train", "--env", "CartPole-v1", "--exp-name", "new", "--init-from", "run"],
    "import": ["import", "run/ckpt/last/tensors.safetensors", "-o", "new"],
    "import a .pt": ["import", "run/ckpt/last/state.pt", "-o", "new"],
}


# A manifest cannot sign itself, and an import reads one file.
BAITS = [
    (command, name, signed)
    for command in COMMANDS
    for name in (*FILES, MANIFEST)
    for signed in (False, True)
    if not (signed and name == MANIFEST)
    and (not command.startswith("import") or (name, signed) == (TENSORS, False))
]


@pytest.mark.parametrize(("command", "name", "signed"), BAITS)
def test_pickle_in_any_file_never_runs_on_any_way_in(
    command, name, signed, original, canary, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    bomb = pickle.dumps(Bomb(str(canary)))
    folder = write(tmp_path / "run" / "ckpt" / "last", {**original, name: bomb}, signed=signed)
    torch.save({"model": Bomb(str(canary))}, folder / "state.pt")
    assert main(COMMANDS[command]) == 5
    assert not canary.exists()
    output = capsys.readouterr()
    assert (output.out, "Traceback" in output.err) == ("", False)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".safetensors", ""])
def test_pickle_by_any_name_never_runs_on_import(suffix, canary, tmp_path):
    for number, write_it in enumerate(
        (
            lambda file: file.write_bytes(pickle.dumps(Bomb(str(canary)))),
            lambda file: torch.save(Bomb(str(canary)), file),
            lambda file: torch.save(Bomb(str(canary)), file, _use_new_zipfile_serialization=False),
        )
    ):
        file = tmp_path / f"foreign{number}{suffix}"
        write_it(file)
        with pytest.raises(CheckpointError, match="not a file of tensors alone"):
            import_weights(file, tmp_path / "imported")
    assert not canary.exists()
