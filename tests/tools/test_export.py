"""Exported files act as the policy that they are made from; one that would act otherwise is not written."""

import importlib.util
import json
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from anything import Anything
from worlds import finished, merged, return_on_cartpole, small_config

from ding_lite import PPOPolicy, SerialPipeline, load_policy
from ding_lite.cli import main
from ding_lite.errors import DingLiteError
from ding_lite.models import VAC
from ding_lite.tools.export import PACKAGES, export_policy
from ding_lite.trees import map_tree, named_leaves, to_tree

needs_onnx = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, PACKAGES)), reason='needs pip install "ding_lite[export]"'
)
THIS = ["anything", "test_export"]  # modules that the checkpoints may import


def case(observation="box", action="discrete", kind="ppo", env=None, **policy):
    return dict(
        env=merged(dict(kwargs=dict(observation=observation, action=action)), env or {}),
        policy=dict(type=kind, **policy),
    )


class Far(gym.wrappers.RescaleAction):
    """A wrapper of a user: actions of -2,000 to 2,000, whose float32 numbers lie 1.2e-4 apart."""

    def __init__(self, env):
        super().__init__(env, np.float32(-2000), np.float32(2000))


class OneEye(VAC):
    """Its policy does not see the branch "zoo", which is for the value alone."""

    def compute_actor(self, obs):
        eye = obs["ape"]["eye"].float()
        return super().compute_actor({**obs, "zoo": {"0": eye[:, 0, 0, 0].long() % 3, "1": eye[:, 0, :2, 0]}})


CASES = {
    "mlp": case(),
    "cnn, ppg": case("image-hwc", "discrete", "ppg"),
    "masked": case(env=dict(kwargs=dict(mask=True), action_mask="info")),
    "normalised, tanh": case(
        "box-float64", "tanh-normal", normalize=dict(obs=True), model=dict(box_distribution="tanh_normal")
    ),
    "beta, ppg, wide": case(
        "multi-discrete", "beta", "ppg", dict(wrappers=[Far]), model=dict(box_distribution="beta")
    ),
    "rescaled": case(action="beta", env=dict(wrappers=[Far, "action_rescale"])),
    "bins": case(action="beta", env=dict(wrappers=["action_bins"])),
    "for the value": case("nested", model=dict(type=OneEye)),
    "lstm, ppg": case(kind="ppg", model=dict(rnn="lstm", rnn_hidden_size=16)),
    "groups, gru": case(
        "nested",
        normalize=dict(obs=True),
        model=dict(rnn="gru", rnn_hidden_size=16, obs_groups={"actor": ["ape"], "critic": ["ape", "zoo"]}),
    ),
    "gru, hybrid": case("nested", "tree", model=dict(rnn="gru", rnn_hidden_size=16, rnn_layers=2)),
}


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """Returns a function that trains a case for two iterations, once, and returns the run's folder."""
    runs = {}

    def trained(name, **changes):
        key = f"{name} {changes}"
        if key not in runs:
            folder = tmp_path_factory.mktemp("runs") / "run"
            # A high learning rate: the actions of an untrained policy hardly depend on the observation.
            base = small_config(Anything, max_env_step=512, policy=dict(learn=dict(learning_rate=0.03)))
            config = merged(base, merged(CASES[name], changes))
            if config["policy"]["type"] == "ppg":
                del config["policy"]["learn"]["epoch_per_collect"]  # it has one for each network
            runs[key] = finished(SerialPipeline(config, folder=folder)).folder
        return runs[key]

    return trained


def reader(file):
    """Returns a function from named arrays to named arrays, and does not use the library."""
    import onnxruntime

    session = onnxruntime.InferenceSession(file)
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True))


def check_acts_alike(file, policy, manifest, steps=6, episodes=3):
    """Acts on random observations with file and policy; a new episode begins in one row after three steps."""
    act, memory = reader(file), [port for port in manifest["inputs"] if port["name"].startswith("state.")]
    state = {port["name"]: np.full((episodes, *port["shape"][1:]), np.nan, np.float32) for port in memory}
    policy.obs_space.seed(5)
    policy.reset()
    seen = set()
    for t in range(steps):
        samples = [policy.obs_space.sample() for _ in range(episodes)]
        if "action_mask" in samples[0]:
            for sample in samples:
                sample["action_mask"][:] = [t % 2, 1, (t + 1) % 2]
        obs = map_tree(lambda *rows: np.stack(rows), *(to_tree(s, policy.obs_space) for s in samples))
        first = np.full(episodes, t == 0)
        if t == 3:
            first[1] = True
            policy.reset(first)
        inputs = {".".join(("obs", *path)): leaf for path, leaf in named_leaves(obs)}
        inputs = {k: v for k, v in inputs.items() if k in (port["name"] for port in manifest["inputs"])}
        outputs = act({**inputs, **({"first": first} if memory else {}), **state})
        state = {name: outputs[f"next_{name}"] for name in state}
        acted = policy.act(obs)
        for path, expected in named_leaves(
            acted if policy.action_maps else to_tree(acted, policy.action_space)
        ):
            actual = outputs[".".join(("action", *path))]
            assert actual.dtype == expected.dtype
            np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max()))
        seen |= {str(leaf) for name, leaf in outputs.items() if name.startswith("logit")}
    assert len(seen) >= steps, "the file looks at the observations"


def check_export(run, file):
    manifest = export_policy(run, file, observations=60, trust=THIS)
    assert manifest["parity"]["difference"] <= 1e-5
    assert manifest["parity"]["observations"] >= 60
    assert json.loads(file.with_name(f"{file.name}.json").read_text()) == manifest
    check_acts_alike(file, load_policy(run, trust=THIS), manifest)
    return manifest


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in ("mlp", "gru, hybrid")])
def test_file_acts_as_the_policy_in_the_units_of_the_environment(run_of, name, tmp_path):
    manifest = check_export(run_of(name), tmp_path / "policy.onnx")
    assert manifest["leaves_out"] == ["test_export:Far"] * (name in ("beta, ppg, wide", "rescaled"))
    if name == "rescaled":
        assert (manifest["action_space"]["low"], manifest["action_space"]["high"]) == (-2000, 2000)
    if name == "for the value":
        assert [port["name"] for port in manifest["inputs"]] == ["obs.ape.eye"], "those that an action needs"


@needs_onnx
@pytest.mark.slow
def test_manifest_describes_the_file_and_is_in_it(run_of, tmp_path):
    import onnxruntime

    file = tmp_path / "policy.onnx"
    manifest = check_export(run_of("gru, hybrid"), file)
    session = onnxruntime.InferenceSession(file)
    stored = json.loads(session.get_modelmeta().custom_metadata_map["ding_lite.manifest"])
    assert stored == {key: value for key, value in manifest.items() if key != "parity"}
    for ports, described in (
        (session.get_inputs(), manifest["inputs"]),
        (session.get_outputs(), manifest["outputs"]),
    ):
        assert [(port.name, port.shape) for port in ports] == [(d["name"], d["shape"]) for d in described]
    names = [port["name"] for port in manifest["inputs"]]
    assert names == ["obs.zoo.0", "obs.zoo.1", "obs.ape.eye", "first", "state.actor.h"]
    assert (manifest["source"]["env_step"], manifest["source"]["policy"]) == (512, "ppo")
    assert manifest["action_space"]["kind"] == "Dict"


class Deviating(VAC):
    """Puts out something else where it is traced."""

    def compute_actor(self, obs):
        logit = super().compute_actor(obs)
        return logit + 1e-3 if torch.compiler.is_exporting() else logit


class ActsItself(PPOPolicy):
    """Acts in its own way."""

    def _forward_eval(self, obs, hidden=None):
        output = super()._forward_eval(obs)
        return {**output, "action": torch.zeros_like(output["action"])}


@needs_onnx
@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (dict(model=dict(type=Deviating)), r"difference is 0.0\d+ of the range of 'logit' \(at most 1e-05"),
        (dict(type=ActsItself), r"difference is [1-9] of the range of 'action'"),
    ],
)
def test_file_that_acts_otherwise_is_an_error_and_leaves_no_file(run_of, tmp_path, policy, words):
    earlier = tmp_path / "policy.onnx"
    earlier.write_text("of an earlier export")
    with pytest.raises(DingLiteError, match=words):
        export_policy(run_of("mlp", policy=policy), earlier, observations=8, trust=THIS)
    assert earlier.read_text() == "of an earlier export"
    assert [file.name for file in tmp_path.iterdir()] == ["policy.onnx"]


@needs_onnx
def test_command_writes_a_file_that_acts_as_the_policy_and_prints_the_difference(run_of, tmp_path, capsys):
    file = tmp_path / "p.onnx"
    imports = [f"--import={module}" for module in THIS]
    assert main(["export", str(run_of("mlp")), "-o", str(file), *imports]) == 0
    output = capsys.readouterr().out
    assert "observations the largest difference is " in output
    check_acts_alike(file, load_policy(run_of("mlp")), json.loads((tmp_path / "p.onnx.json").read_text()))


PLAY = """
import json, sys
import gymnasium as gym
import onnxruntime

session = onnxruntime.InferenceSession("policy.onnx")
returns = []
for seed in range(5):
    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=seed)
    total, done = 0.0, False
    while not done:
        (action,) = session.run(["action"], {"obs": obs[None]})
        obs, reward, terminated, truncated, _ = env.step(action[0])
        total, done = total + reward, terminated or truncated
    returns.append(total)
assert "torch" not in sys.modules and "ding_lite" not in sys.modules
print(json.dumps(returns))
"""


@needs_onnx
@pytest.mark.slow
def test_cartpole_is_played_as_by_the_policy_in_a_process_with_numpy_and_onnxruntime(tmp_path):
    program = [sys.executable, "-m", "ding_lite"]
    commands = (
        [*program, "train", "-c", "cartpole_ppo", "--max-env-step", "10000"],
        [*program, "export", "runs/cartpole_ppo"],
        [sys.executable, "-c", PLAY],
    )
    for command in commands:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
    policy = load_policy(tmp_path / "runs" / "cartpole_ppo")
    assert json.loads(done.stdout) == [return_on_cartpole(policy, seed) for seed in range(5)]
