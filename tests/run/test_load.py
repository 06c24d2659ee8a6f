"""A policy loaded from its run acts as before; a run begins from the weights of another, or of a file."""

import re
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from anything import Anything
from safetensors.torch import save_file
from small_worlds import SeededEnv, SeededTree
from worlds import digest, finished, merged, same_tree, save_checkpoint, small_config

from ding_lite import SerialPipeline, load_policy
from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.models import VAC
from ding_lite.run.checkpoint import load_checkpoint
from ding_lite.testing import MatchEnv
from ding_lite.trees import map_tree, to_tree

TRUST = ["small_worlds", "anything"]
SCALED = {"normalize": {"obs": True, "reward": True}}
CONFIG = small_config(env={"manager": {"type": "base"}}, policy=SCALED, max_env_step=512)
WORLDS = {
    "tree": {"type": SeededTree},
    "unsorted": {"type": Anything, "kwargs": {"observation": "nested"}},
}
IN_WORKERS = {"manager": {"type": "subprocess", "worker_num": 1}}


def train(folder, config=CONFIG, **options):
    return finished(SerialPipeline(config, folder=folder, **options))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs") / "trained").folder


# ---------------------------------------------------------------------- load_policy


@pytest.mark.parametrize("world", WORLDS)
def test_a_loaded_policy_acts_as_the_run_s_own_on_one_observation_or_a_batch(world, tmp_path):
    pipeline = train(tmp_path / "run", small_config(env=WORLDS[world], max_env_step=256, policy=SCALED))
    policy = load_policy(pipeline.folder, checkpoint="last", trust=TRUST)
    policy.obs_space.seed(3)
    samples = [to_tree(policy.obs_space.sample(), policy.obs_space) for _ in range(7)]
    obs = map_tree(lambda *leaves: np.stack(leaves), *samples)
    assert same_tree(policy.act(obs), pipeline.policy.act(obs))
    assert same_tree(policy.act(obs, deterministic=False), pipeline.policy.act(obs, deterministic=False))
    one = map_tree(lambda x: x[2], obs)
    assert same_tree(policy.act(one), pipeline.policy.act(one))


def test_act_speaks_the_units_of_the_environment_and_the_modes_those_of_its_wrappers(tmp_path):
    env = {"wrappers": ["action_rescale", "small_worlds:SameAction"], **IN_WORKERS}
    pipeline = train(tmp_path / "run", small_config("Pendulum-v1", max_env_step=256, env=env))
    obs = np.stack([pipeline.policy.obs_space.sample() for _ in range(9)])
    modes = pipeline.policy.eval_mode
    expected = 2 * modes.to_env(modes.forward(obs)["action"])  # of -2 .. 2
    assert np.abs(expected).max() > 0.01
    loaded = load_policy(pipeline.folder, checkpoint="last", trust=TRUST)
    for policy in (pipeline.policy, loaded):
        np.testing.assert_allclose(policy.act(obs), expected, rtol=1e-6)
        assert (policy.action_space.high == 1).all()


def test_a_loaded_policy_has_no_learn_mode_and_a_device_of_choice(trained):
    policy = load_policy(trained)
    assert str(policy.device) == "cpu"
    with pytest.raises(Exception, match="learn"):
        policy.learn_mode.forward(None)
    with pytest.raises(CheckpointError, match="policy.device"):
        load_policy(trained, device="no such device")


def test_a_model_that_a_script_gave_is_given_again(tmp_path):
    spaces = SeededEnv().observation_space, SeededEnv().action_space
    config = small_config(SeededEnv, max_env_step=256)
    pipeline = train(tmp_path / "run", config, model=VAC(*spaces, encoder_hidden_size_list=[8]))
    with pytest.raises(ConfigError, match="model"):
        load_policy(pipeline.folder, trust=TRUST)
    loaded = load_policy(pipeline.folder, model=VAC(*spaces, encoder_hidden_size_list=[8]), trust=TRUST)
    assert digest(loaded.model.state_dict()) == digest(pipeline.policy.model.state_dict())
    with pytest.raises(CheckpointError, match=r"\[8, .*current model is torch.Size\(\[9, "):
        load_policy(pipeline.folder, model=VAC(*spaces, encoder_hidden_size_list=[9]), trust=TRUST)


OWN = """
from ding_lite import POLICY_REGISTRY, PPOPolicy
@POLICY_REGISTRY.register("of_a_trusted_module")
class Own(PPOPolicy):
    pass
"""


def test_a_module_of_the_user_is_imported_when_it_is_trusted(trained, tmp_path, monkeypatch):
    (tmp_path / "my_own_policies.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    state, config = load_checkpoint(trained / "ckpt" / "last.safetensors")
    for name in ("of_a_trusted_module", "my_own_policies:Own"):
        named = merged(config, {"config": {"policy": {"type": name}}})
        save_checkpoint(tmp_path / "run" / "ckpt" / "last.safetensors", state, named)
        if name.endswith("Own") or "my_own_policies" not in sys.modules:
            for way in (load_policy, SerialPipeline.resume):
                with pytest.raises(CheckpointError, match="--import|named 'of_a_trusted"):
                    way(tmp_path / "run")
        assert type(load_policy(tmp_path / "run", trust=["my_own_policies"])).__name__ == "Own"
        SerialPipeline.resume(tmp_path / "run", trust=["my_own_policies"]).close()
    with pytest.raises(CheckpointError, match="no_such_module"):
        load_policy(trained, trust=["no_such_module"])


class OfScript(MatchEnv):
    pass


def test_classes_of_the_running_script_need_no_trust(tmp_path, monkeypatch):
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "OfScript", OfScript, raising=False)
    monkeypatch.setattr(OfScript, "__module__", "__main__")
    pipeline = train(tmp_path / "run", small_config(OfScript, max_env_step=256))
    with SerialPipeline.resume(pipeline.folder) as resumed:
        assert resumed.cfg.env.type.endswith(":OfScript")
    monkeypatch.delattr(main, "__file__", raising=False)
    monkeypatch.setattr(main, "__spec__", None)  # as in a notebook
    summary = train(tmp_path / "notebook", small_config(OfScript, max_env_step=256)).summary()
    told = f"try: load_policy('{tmp_path}/notebook') in the notebook, shell or script with its classes"
    assert told in summary


# ---------------------------------------------------------------------- init_from


def begin(config, folder, path):
    pipeline = SerialPipeline(config, folder=folder, init_from=path, seed=7)
    pipeline.close()
    return pipeline, (folder / "log.txt").read_text()


def test_weights_and_scales_are_those_of_the_run_and_all_else_is_new(trained, tmp_path):
    pipeline, log = begin(CONFIG, tmp_path / "run", trained)
    old, new = load_policy(trained), pipeline.policy
    assert digest(new.model.state_dict()) == digest(old.model.state_dict())
    for scale in ("obs_norm", "value_norm"):
        assert digest(getattr(new, scale).state_dict()) == digest(getattr(old, scale).state_dict())
    assert (new.reward_scale.std, new.reward_scale.running_return) == (old.reward_scale.std, None)
    assert (new.schedules.env_step, pipeline.progress.iteration, pipeline.cfg.seed) == (0, 0, 7)
    assert f"begins from the weights of {pipeline.cfg.init_from}/ckpt/best" in log


def test_the_values_of_a_model_that_a_script_gives_are_raw(trained, tmp_path):
    model = load_policy(trained).model
    with SerialPipeline(CONFIG, folder=tmp_path / "run", model=model) as pipeline:
        obs = torch.randn(5, *pipeline.policy.obs_space.shape)
        torch.testing.assert_close(
            pipeline.policy.values(obs), model.compute_critic(pipeline.policy.scaled(obs))
        )


def test_ppo_weights_begin_a_ppg_run_whose_auxiliary_head_is_new(trained, tmp_path):
    config = merged(
        CONFIG, {"policy": {"type": "ppg", "model": {"activation": "tanh"}, "learn": {"aux_freq": 1}}}
    )
    del config["policy"]["learn"]["epoch_per_collect"]
    pipeline, log = begin(config, tmp_path / "run", trained)
    old, new = load_policy(trained).model.state_dict(), pipeline.policy.model.state_dict()
    assert all(torch.equal(old[name], new[name]) for name in old)
    assert {name.split(".")[0] for name in new if name not in old} == {"auxiliary_head"}
    assert "auxiliary head" in log


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"model": {"encoder_hidden_size_list": [8]}}, r"current model is torch.Size\(\[8, "),
        ({"model": {"activation": "relu"}}, "policy.model.activation"),
        ({"normalize": {"obs": False}}, "policy.normalize.obs"),
        ({"learn": {"value_norm": False}}, "policy.learn.value_norm"),
    ],
)
def test_weights_that_do_not_fit_or_lack_their_scale_are_refused(change, fault, trained, tmp_path):
    with pytest.raises(CheckpointError, match=fault):
        begin(merged(CONFIG, {"policy": change}), tmp_path / "run", trained)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("nested", ["", "model", "state_dict", "safetensors"])
def test_files_of_other_programs_are_read(nested, trained, tmp_path):
    weights = load_policy(trained).model.state_dict()
    file = tmp_path / ("weights.safetensors" if nested == "safetensors" else "weights.pt")
    if nested == "safetensors":
        save_file(weights, file)
    else:
        torch.save({nested: weights} if nested else weights, file)
    pipeline, log = begin(CONFIG, tmp_path / "run", file)
    assert digest(pipeline.policy.model.state_dict()) == digest(weights)
    assert (pipeline.policy.value_norm.mean, pipeline.policy.value_norm.std) == (0, 1), "raw values"
    assert f"begins from the weights of {file}" in log
    assert "WARNING: the weights have no scale of observations" in log, "normalize.obs=True"


def test_weights_of_stable_baselines3_act_as_there_by_the_table_of_names_in_the_docs(tmp_path):
    sb3 = pytest.importorskip("stable_baselines3")
    there = sb3.PPO("MlpPolicy", "Pendulum-v1", device="cpu", seed=3)
    there.save(tmp_path / "ppo.zip")
    with zipfile.ZipFile(tmp_path / "ppo.zip").open("policy.pth") as stream:
        weights = torch.load(stream, weights_only=True)
    page = (Path(__file__).parents[2] / "docs" / "runs.md").read_text()
    page = page.partition("| Stable-Baselines3 | here |")[2]
    for old, new in re.findall(r"^\| `(\S+)` \| `(\S+)` \|$", page, re.MULTILINE):
        weights = {name.replace(old, new) if name.startswith(old) else name: x for name, x in weights.items()}
    torch.save(weights, tmp_path / "all.pt")
    torch.save({k: x for k, x in weights.items() if k.startswith("actor_")}, tmp_path / "actor.pt")
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    config = small_config("Pendulum-v1", max_env_step=1024)
    config["policy"] |= {"model": {}, "learn": {**config["policy"]["learn"], "critic_warmup": 2}}
    for file, has_value in (("all.pt", True), ("actor.pt", False)):
        folder = tmp_path / file.removesuffix(".pt")
        with SerialPipeline(config, folder=folder, init_from=tmp_path / file) as pipeline:
            action, *_ = there.policy(torch.as_tensor(obs), deterministic=True)
            expected = np.clip(action.detach().numpy(), -2, 2)
            acts = lambda policy=pipeline.policy: policy.act(obs)  # noqa: E731
            np.testing.assert_allclose(acts(), expected, rtol=1e-5, atol=1e-6)
            value = pipeline.policy.model.critic_head[0].weight.clone()
            assert ("no value network" in (folder / "log.txt").read_text()) is not has_value
            assert pipeline.policy.value_norm.std == has_value, "values of the file are raw"
            for progress in pipeline:
                learned = not np.allclose(acts(), expected, rtol=1e-5, atol=1e-6)
                assert learned == (progress.iteration > 2), "the value learns alone"
                assert not torch.equal(value, pipeline.policy.model.critic_head[0].weight)


@pytest.mark.parametrize(
    "contents", [{}, {"model": {}}, {"a": 1}, [torch.zeros(1)], torch.nn.Linear(1, 1)], ids=str
)
def test_a_file_without_a_state_dict_of_tensors_is_refused(contents, tmp_path):
    torch.save(contents, tmp_path / "weights.pt")
    with pytest.raises(CheckpointError, match="weights.pt"):
        begin(CONFIG, tmp_path / "run", tmp_path / "weights.pt")
