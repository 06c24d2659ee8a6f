"""A policy loaded from its run acts as before, on one observation or a batch, and imports nothing."""

import importlib
import json
import sys

import numpy as np
import pytest
import torch
from broken_worlds import Masked
from small_worlds import SPACES, CountingEnv, SeededEnv
from worlds import MatchBox, MatchTree, MatchUnsorted, ShownTwice, merged, same_tree, small_config, trainee

from ding_lite import PPGPolicy, PPOPolicy, SerialPipeline, load_policy
from ding_lite.config.registry import MODEL_REGISTRY, POLICY_REGISTRY
from ding_lite.errors import CheckpointError, ConfigError, ContractError, DingLiteError
from ding_lite.models import PPG
from ding_lite.run.checkpoint import load_checkpoint, save_checkpoint
from ding_lite.testing import MatchEnv
from ding_lite.trees import map_tree

WORLDS = {
    "discrete": MatchEnv,
    "box": MatchBox,
    "tree": MatchTree,
    "tree out of order": MatchUnsorted,
    "observations out of order": ShownTwice,
}


def trained(folder, env, **others):
    """Returns the pipeline of a short run."""
    pipeline = SerialPipeline(small_config(env, max_env_step=512, **others), folder=folder)
    for _ in pipeline:
        pass
    return pipeline


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {name: trained(folder / name, env) for name, env in WORLDS.items()}


def batch_of(space, n=7):
    space.seed(3)
    samples = [space.sample() for _ in range(n)]
    if isinstance(samples[0], dict):
        return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}
    return np.stack(samples)


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", WORLDS)
def test_loaded_policy_acts_as_the_pipeline_s_own(runs, name):
    pipeline = runs[name]
    policy = load_policy(pipeline.folder, checkpoint="last")
    obs = batch_of(policy.obs_space)
    assert same_tree(policy.act(obs), pipeline.policy.act(obs))
    assert same_tree(policy.act(obs, deterministic=False), pipeline.policy.act(obs, deterministic=False))


@pytest.mark.parametrize("name", WORLDS)
def test_one_observation_gives_one_action_of_the_space(runs, name):
    policy = load_policy(runs[name].folder)
    obs = batch_of(policy.obs_space)
    batch, one = policy.act(obs), policy.act(map_tree(lambda x: x[2], obs))
    assert policy.action_space.contains(map_tree(lambda x: x.item() if x.ndim == 0 else x, one))
    row, single = map_tree(lambda x: x[2], batch), one
    leaves = []
    map_tree(leaves.append, row)
    map_tree(leaves.append, single)
    half = len(leaves) // 2
    for a, b in zip(leaves[:half], leaves[half:], strict=True):
        assert isinstance(b, (np.ndarray, np.generic))
        assert b == pytest.approx(a, abs=1e-6)


@pytest.mark.parametrize("name", WORLDS)
def test_spaces_come_back_as_the_environment_s(runs, name):
    policy, env = load_policy(runs[name].folder), WORLDS[name]()
    assert policy.obs_space == env.observation_space
    assert policy.action_space == env.action_space


def test_plain_lists_are_observations_too(runs):
    policy = load_policy(runs["discrete"].folder)
    assert policy.act([1.0, 0.0, 0.0]) == policy.act(np.array([1.0, 0.0, 0.0], np.float32))


def test_observation_of_another_shape_is_refused_with_both_shapes(runs):
    policy = load_policy(runs["discrete"].folder)
    with pytest.raises(ContractError, match=r"observation \(3,\) .*got \(4,\)"):
        policy.act(np.zeros(4, np.float32))


def test_what_reset_returns_is_no_observation(runs):
    policy = load_policy(runs["box"].folder)
    with pytest.raises(ContractError, match=r"reset\(\) returns \(obs, info\)"):
        policy.act((batch_of(policy.obs_space)[0], {}))


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device exists")
def test_a_device_that_is_not_there_is_the_fault_of_the_argument(runs):
    with pytest.raises(ConfigError, match="policy.device: 'cuda'"):
        load_policy(runs["box"].folder, device="cuda")


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_mask_that_leaves_no_action_is_refused(deterministic):
    policy, collector = trainee("ppo", world=Masked)
    obs = collector.obs[0]
    assert policy.act(obs, deterministic=deterministic).shape == (4,)
    obs["action_mask"][2] = 0
    with pytest.raises(ContractError, match="no legal action"):
        policy.act(obs, deterministic=deterministic)
    one = map_tree(lambda x: x[2], obs)
    with pytest.raises(ContractError, match="no legal action"):
        policy.act(one, deterministic=deterministic)
    del one["action_mask"]
    with pytest.raises(ContractError, match="act: .*action_mask"):
        policy.act(one, deterministic=deterministic)


def test_acting_changes_nothing(runs):
    policy = load_policy(runs["box"].folder)
    obs = batch_of(policy.obs_space)
    assert same_tree(policy.act(obs), policy.act(obs))


def test_normaliser_is_inside_the_loaded_policy(tmp_path):
    pipeline = trained(tmp_path / "run", CountingEnv, policy={"normalize": {"obs": True}})
    policy = load_policy(tmp_path / "run", checkpoint="last")
    (stats,) = policy.obs_norm.stats.values()
    assert stats.count == 1000 + 512, "random steps before training, and two rollouts"
    assert stats.mean[1] > 0.5
    obs = np.array([[100.0, 2.0], [3.0, 1.0]], np.float32)
    probabilities = [p.model.compute_actor(p.inputs(obs)).detach().numpy() for p in (policy, pipeline.policy)]
    assert np.array_equal(*probabilities)
    raw = policy.model.compute_actor(torch.from_numpy(obs)).detach().numpy()
    assert not np.allclose(raw, probabilities[0])


def test_loaded_policy_has_no_learn_mode(runs):
    with pytest.raises(ContractError, match="without 'learn'"):
        _ = load_policy(runs["discrete"].folder).learn_mode


class Unregistered(PPOPolicy):
    """PPO under a name that is not registered."""


def test_unregistered_policy_is_refused_with_the_line_to_type(tmp_path):
    trained(tmp_path / "run", MatchEnv, policy={"type": Unregistered})
    with pytest.raises(CheckpointError, match=r"module 'test_load_policy'.*--import test_load_policy"):
        load_policy(tmp_path / "run")


def test_name_that_is_not_registered_is_reported_once_with_the_option_to_add(forged):
    with pytest.raises(CheckpointError, match="no policy named 'unregistered_name'") as caught:
        SerialPipeline.resume(
            forged({"config": {"policy": {"type": "unregistered_name"}}}), trust=["ding_lite.testing"]
        )
    assert str(caught.value).endswith("(--import MODULE)")
    assert str(caught.value).count("--import") == 1


REGISTERS = """
from ding_lite import MODEL_REGISTRY, POLICY_REGISTRY, PPOPolicy
from ding_lite.models import VAC

@POLICY_REGISTRY.register("ppo_of_the_trust_test")
class Registered(PPOPolicy):
    pass

@MODEL_REGISTRY.register("vac_of_the_trust_test")
class Model(VAC):
    pass
"""


@pytest.fixture
def forgotten(tmp_path, monkeypatch):
    """Returns a function that trains a run with names of a module, and then forgets the module."""
    (tmp_path / "registers_names.py").write_text(REGISTERS)
    monkeypatch.syspath_prepend(tmp_path)

    def forget():
        monkeypatch.delitem(sys.modules, "registers_names", raising=False)
        for registry in (POLICY_REGISTRY, MODEL_REGISTRY):
            others = {name: entry for name, entry in registry._entries.items() if "trust_test" not in name}
            monkeypatch.setattr(registry, "_entries", others)

    def train(kind, **others):
        importlib.import_module("registers_names")
        trained(tmp_path / "run", MatchEnv, policy={"type": kind, **others})
        forget()
        return tmp_path / "run"

    forget()
    return train


@pytest.mark.parametrize("kind", ["ppo_of_the_trust_test", "registers_names:Registered"])
def test_trust_imports_the_module_that_registers_the_policy_and_its_model(forgotten, kind):
    run = forgotten(kind, model={"type": "vac_of_the_trust_test"})
    with pytest.raises(CheckpointError, match=r"trust=\['"):
        load_policy(run)
    with pytest.raises(CheckpointError, match="trust_test|registers_names"):
        load_policy(run, trust=["json"])
    assert "registers_names" not in sys.modules
    assert type(load_policy(run, trust=["registers_names"]).model).__name__ == "Model"


def test_trust_imports_the_module_that_registers_names_of_a_resumed_run(forgotten):
    run = forgotten("ppo_of_the_trust_test", model={"type": "vac_of_the_trust_test"})
    with pytest.raises(CheckpointError, match="ppo_of_the_trust_test"):
        SerialPipeline.resume(run, trust=["ding_lite.testing"])
    pipeline = SerialPipeline.resume(run, trust=["ding_lite.testing", "registers_names"])
    assert type(pipeline.policy).__name__ == "Registered"
    pipeline.close()


def test_trusted_module_that_cannot_be_imported_is_named(runs):
    with pytest.raises(CheckpointError, match="the trusted module 'no_such_module' cannot be imported"):
        load_policy(runs["discrete"].folder, trust=["no_such_module"])


def test_reference_of_a_run_may_use_the_modules_that_the_user_has_named(forgotten, tmp_path):
    run = forgotten("registers_names:Registered")
    penalty = {"learn": {"kl_beta": 0.1, "pretrained_model_path": str(run)}}
    config = small_config(MatchEnv, max_env_step=128, policy=penalty)
    with pytest.raises(CheckpointError, match="pretrained_model_path: .*trust=.'registers_names'"):
        SerialPipeline(config, folder=tmp_path / "refused")
    for _ in SerialPipeline(config, folder=tmp_path / "next", trust=["registers_names"]):
        pass
    named = {**penalty, "type": "registers_names:Registered"}
    SerialPipeline(small_config(MatchEnv, policy=named), folder=tmp_path / "named").close()
    trust = ["ding_lite.testing"]
    with pytest.raises(CheckpointError, match="pretrained_model_path: .*trust=.'registers_names'"):
        SerialPipeline.resume(tmp_path / "next", trust=trust)
    pipeline = SerialPipeline.resume(tmp_path / "next", trust=[*trust, "registers_names"])
    assert type(pipeline.policy.reference.policy).__name__ == "Registered"
    pipeline.close()


def test_folder_of_nothing_is_a_checkpoint_error(tmp_path):
    with pytest.raises(CheckpointError, match="neither a run nor a checkpoint"):
        load_policy(tmp_path)


# ---------------------------------------------------------------------- checkpoints from any source


@pytest.fixture
def forged(runs, tmp_path, monkeypatch):
    """Returns a function that writes a whole, valid checkpoint with changes in its config or its state."""
    folder = tmp_path / "canaries"
    folder.mkdir()
    (folder / "canary_module.py").write_text("from ding_lite.testing import MatchEnv as Anything\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "canary_module", raising=False)

    def forge(config=None, state=None):
        saved_state, saved = load_checkpoint(runs["discrete"].folder / "ckpt" / "last")
        saved_state = saved_state if state is None else state(saved_state)
        target = tmp_path / "forged" / "ckpt" / "last"
        save_checkpoint(target, saved_state, merged(saved, config or {}))
        return tmp_path / "forged"

    return forge


NAMED = "canary_module:Anything"
BAITS = {
    "policy": {"policy": {"type": NAMED}},
    "model": {"policy": {"model": {"type": NAMED}}},
    "encoder": {"policy": {"model": {"encoder": {"type": NAMED}}}},
    "encoder of a leaf": {"policy": {"model": {"encoder": {"": {"type": NAMED}}}}},
    "env": {"env": {"type": NAMED}},
    "env_id": {"env": {"type": "gymnasium", "env_id": "canary_module:Anything-v0"}},
    "wrapper": {"env": {"wrappers": [NAMED]}},
    "wrapper with arguments": {"env": {"wrappers": [{"type": NAMED}]}},
}


@pytest.mark.parametrize("bait", BAITS.values(), ids=BAITS)
def test_nothing_named_in_a_checkpoint_is_imported_by_load_policy(forged, bait):
    run = forged({"config": bait})
    if "env" in bait:
        load_policy(run)  # a policy needs no environment
    else:
        with pytest.raises(DingLiteError):
            load_policy(run)
    assert "canary_module" not in sys.modules


@pytest.mark.parametrize("bait", BAITS.values(), ids=BAITS)
def test_nothing_named_in_a_checkpoint_is_imported_by_resume(forged, bait):
    with pytest.raises(CheckpointError, match="--import canary_module"):
        SerialPipeline.resume(forged({"config": bait}), trust=["ding_lite.testing"])
    assert "canary_module" not in sys.modules


def test_canary_is_found_when_it_is_trusted(forged):
    """The negative control: the bait can be swallowed."""
    run = forged({"config": {"env": {"type": NAMED}}})
    SerialPipeline.resume(run, trust=["canary_module"]).close()
    assert "canary_module" in sys.modules


def without(*path):
    def drop(tree):
        parent = tree
        for name in path[:-1]:
            parent = parent[name]
        del parent[path[-1]]
        return tree

    return drop


@pytest.mark.parametrize(
    "path",
    [
        ("policy",),
        ("policy", "model"),
        ("policy", "model", "actor_head.layers.0.weight"),
        ("policy", "generator of action"),
        ("policy", "generator of action", "state"),
        ("policy", "progress"),
        ("policy", "progress", "env_step"),
        ("policy", "value_norm"),
        ("policy", "value_norm", "mean"),
    ],
    ids=".".join,
)
def test_state_that_lacks_a_part_is_a_checkpoint_error(forged, path):
    with pytest.raises(CheckpointError):
        load_policy(forged(state=without(*path)))


@pytest.mark.parametrize(
    "config",
    [
        {"config": None},
        {"config": {"policy": None}},
        {"config": {"policy": {"type": ["ppo"]}}},
        {"config": {"policy": {"model": {"type": {"a": 1}}}}},
        {"config": {"policy": {"model": {"encoder_hidden_size_list": [32]}}}},
        {"config": {"policy": {"model": {"encoder_hidden_size_list": "wide"}}}},
        {"config": {"policy": {"model": {"no_such_option": 1}}}},
        {"config": {"policy": {"learn": None}}},
        {"config": {"seed": "x"}},
        {"spaces": None},
        {"spaces": {"obs": {"kind": "Sphere"}}},
        {"spaces": {"obs": {"kind": "Discrete", "n": -1, "start": 0}}},
        {"spaces": {"obs": {"kind": "Discrete", "n": 3, "start": 0}}},
        {"spaces": {"action": {"kind": "Discrete", "n": 9, "start": 0}}},
        {"spaces": {"obs": {"kind": "Box", "low": 0, "high": 1, "shape": [2**60], "dtype": "float32"}}},
    ],
    ids=str,
)
def test_config_that_makes_no_policy_is_one_of_our_errors(forged, config):
    with pytest.raises(DingLiteError):
        load_policy(forged(config))


def test_policy_of_other_spaces_says_what_does_not_fit(forged):
    with pytest.raises(CheckpointError, match="(?s)'model' does not fit.*actor_head"):
        load_policy(forged({"spaces": {"action": {"kind": "Discrete", "n": 9, "start": 0}}}))


def test_best_is_loaded_by_default_and_last_when_asked(tmp_path):
    pipeline = SerialPipeline(small_config(SeededEnv, max_env_step=1024), folder=tmp_path / "run")
    for progress in pipeline:
        if progress.iteration == 1:
            pipeline.save("best")
            pipeline.scores.best = 1e9
    obs = np.random.default_rng(0).normal(size=(50, 3))
    best, last = (load_policy(tmp_path / "run", checkpoint=name) for name in ("best", "last"))
    assert best.progress.env_step == 256
    assert last.progress.env_step == 1024
    assert load_policy(tmp_path / "run").progress.env_step == 256
    assert last.act(obs).tolist() == pipeline.policy.act(obs).tolist()


class SmallCamera(CountingEnv):
    observation_space = SPACES.Box(0, 255, (16, 20, 1), np.uint8)

    def obs(self):
        return np.full((16, 20, 1), self.count, np.uint8)

    def step(self, action):
        obs, _, *rest = super().step(action)  # the reward counts the episodes
        return (obs, 1.0, *rest)


def test_classes_of_the_library_have_their_registered_names(tmp_path):
    policy = {"type": PPGPolicy, "model": {"type": PPG}}
    config = small_config(policy=policy)
    del config["policy"]["learn"]["epoch_per_collect"]
    with SerialPipeline(config, folder=tmp_path / "run") as pipeline:
        for _ in pipeline:
            break
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (saved["config"]["policy"]["type"], saved["config"]["policy"]["model"]["type"]) == ("ppg", "ppg")
    assert saved["imports"] == []
    assert isinstance(load_policy(tmp_path / "run", checkpoint="last"), PPGPolicy)
