"""A new run that starts from the weights of a run, a checkpoint, or a file of another program."""

import copy
import json

import pytest
import torch
from safetensors.torch import save_file
from small_worlds import SeededEnv
from worlds import MatchBox, MatchTree, digest, merged, small_config

from ding_lite import PPOPolicy, SerialPipeline, load_policy
from ding_lite.errors import CheckpointError
from ding_lite.run.checkpoint import load_checkpoint, save_checkpoint
from ding_lite.run.warm_start import import_weights

SCALED = {"normalize": {"obs": True, "reward": True}}
CONFIG = small_config(env={"manager": {"type": "base"}}, policy=SCALED, max_env_step=512)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "trained"
    for _ in SerialPipeline(CONFIG, folder=folder):
        pass
    return folder


def begin(config, folder, path):
    pipeline = SerialPipeline(config, folder=folder, init_from=path, seed=7)
    pipeline.close()
    return pipeline


def test_weights_and_scales_are_those_of_the_run_and_all_else_is_new(trained, tmp_path):
    pipeline = begin(CONFIG, tmp_path / "run", trained)
    old, new = load_policy(trained), pipeline.policy
    assert digest(new.model.state_dict()) == digest(old.model.state_dict())
    for scale in ("obs_norm", "value_norm"):
        assert digest(getattr(new, scale).state_dict()) == digest(getattr(old, scale).state_dict())
    assert new.reward_scale.std == old.reward_scale.std
    assert new.reward_scale.running_return is None
    assert not new.optimizer.state_dict()["counts"].any()
    assert (new.progress.env_step, pipeline.progress.iteration, pipeline.cfg.seed) == (0, 0, 7)
    text = (tmp_path / "run" / "log.txt").read_text()
    assert f"begins from the weights of {trained}/ckpt/best at iteration 2" in text


def test_the_new_run_trains_and_is_resumed_like_any_other(trained, tmp_path):
    pipeline = SerialPipeline(CONFIG, folder=tmp_path / "run", init_from=trained / "ckpt" / "last")
    for _ in pipeline:
        break
    pipeline.close()
    again = SerialPipeline.resume(tmp_path / "run")
    assert [progress.iteration for progress in again] == [2]


@pytest.mark.parametrize("env", [MatchBox, MatchTree])
@pytest.mark.parametrize(
    ("key", "value"), [("activation", "relu"), ("box_distribution", "tanh_normal"), ("bound_type", "tanh")]
)
def test_weights_that_would_compute_something_else_are_refused(env, key, value, tmp_path):
    config = small_config(env, max_env_step=256)
    with SerialPipeline(config, folder=tmp_path / "first") as pipeline:
        pipeline.step()
        pipeline.save()
    other = merged(config, {"policy": {"model": {key: value}}})
    with pytest.raises(CheckpointError, match=f"policy.model.{key}"):
        begin(other, tmp_path / "second", tmp_path / "first")
    default = {"activation": "tanh", "box_distribution": "normal", "bound_type": None}[key]
    same = merged(config, {"policy": {"model": {key: default}}})
    assert begin(same, tmp_path / "third", tmp_path / "first").folder.is_dir()


def test_a_model_that_the_script_makes_is_not_compared_with_the_config(tmp_path):
    config = small_config(MatchBox, policy={"model": {"activation": "relu"}}, max_env_step=256)
    with SerialPipeline(config, folder=tmp_path / "first") as pipeline:
        pipeline.step()
        pipeline.save()
        model = copy.deepcopy(pipeline.policy.model)
    plain = small_config(MatchBox, max_env_step=256)
    second = SerialPipeline(plain, folder=tmp_path / "second", model=model, init_from=tmp_path / "first")
    second.close()
    assert second.policy.model is model


@pytest.mark.parametrize("arch", ["dual", "shared"])
def test_ppo_weights_begin_a_ppg_run_whose_auxiliary_head_is_new(arch, tmp_path):
    shared = {"policy": {"model": {"share_encoder": arch == "shared"}}}
    for _ in SerialPipeline(merged(CONFIG, shared), folder=tmp_path / "ppo"):
        pass
    phasic = {"policy": {"type": "ppg", "model": {"arch": arch}, "learn": {"aux_freq": 1}}}
    config = merged(CONFIG, phasic)
    config["policy"]["learn"].pop("epoch_per_collect", None)
    pipeline = SerialPipeline(config, folder=tmp_path / "ppg", init_from=tmp_path / "ppo")
    old, new = load_policy(tmp_path / "ppo").model.state_dict(), pipeline.policy.model.state_dict()
    heads = {name for name in new if name not in old}
    assert heads == {name for name in new if name.startswith("auxiliary_head.")}
    assert heads
    assert all(torch.equal(old[name], new[name]) for name in old)
    assert "auxiliary head" in (tmp_path / "ppg" / "log.txt").read_text()
    for progress in pipeline:
        assert progress.metrics["learn/aux_updates"] > 0


def test_weights_of_another_shape_are_refused_with_all_that_does_not_fit(trained, tmp_path):
    other = merged(CONFIG, {"policy": {"model": {"encoder_hidden_size_list": [8]}}})
    with pytest.raises(CheckpointError) as caught:
        begin(other, tmp_path / "run", trained)
    message = str(caught.value)
    assert "of another shape: " in message
    assert "(16, 4), this model has (8, 4)" in message
    assert list(tmp_path.iterdir()) == []


def test_weights_of_other_spaces_are_refused(trained, tmp_path):
    with pytest.raises(CheckpointError, match="does not fit"):
        begin(small_config(MatchBox, policy=SCALED), tmp_path / "run", trained)


@pytest.mark.parametrize(
    "key", ["policy.normalize.obs", "policy.normalize.reward", "policy.learn.value_norm"]
)
def test_weights_without_the_scale_they_were_trained_in_are_refused(key, trained, tmp_path):
    section, name = key.split(".")[1:]
    with pytest.raises(CheckpointError, match=f"trained with {key}"):
        begin(merged(CONFIG, {"policy": {section: {name: False}}}), tmp_path / "run", trained)


def test_scale_that_the_weights_do_not_bring_starts_anew_and_the_log_names_it(tmp_path):
    for _ in SerialPipeline(small_config(max_env_step=256), folder=tmp_path / "plain"):
        pass
    pipeline = begin(CONFIG, tmp_path / "run", tmp_path / "plain")
    assert all(stats.count == 1000 for stats in pipeline.policy.obs_norm.stats.values()), "random steps"
    text = (tmp_path / "run" / "log.txt").read_text()
    assert "no statistics for policy.normalize.obs and policy.normalize.reward" in text


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"policy": None},
        {"policy": {"model": 3}},
        {"policy": {"model": {"a": 3}}},
        {"policy": {"model": {}}},
    ],
    ids=str,
)
def test_checkpoint_without_weights_is_a_checkpoint_error(state, tmp_path):
    save_checkpoint(tmp_path / "ckpt", state, {})
    with pytest.raises(CheckpointError):
        begin(CONFIG, tmp_path / "run", tmp_path / "ckpt")
    assert not (tmp_path / "run").exists()


def test_nothing_that_the_checkpoint_names_is_needed(tmp_path):
    """The run's own classes are taken: those of the checkpoint are not looked at."""
    for _ in SerialPipeline(small_config(SeededEnv, max_env_step=256), folder=tmp_path / "old"):
        pass
    state, config = load_checkpoint(tmp_path / "old" / "ckpt" / "last")
    config["config"]["policy"]["type"] = config["config"]["env"]["type"] = "no_such_module:Name"
    save_checkpoint(tmp_path / "forged", state, config)
    begin(small_config(SeededEnv), tmp_path / "new", tmp_path / "forged")


# ---------------------------------------------------------------------- foreign files


@pytest.fixture(scope="module")
def weights(trained):
    return load_policy(trained).model.state_dict()


@pytest.mark.parametrize("nested", ["", "model", "state_dict"])
def test_state_dict_in_a_pt_file_becomes_a_checkpoint(nested, weights, tmp_path):
    torch.save({nested: weights, "epoch": 3} if nested else weights, tmp_path / "foreign.pt")
    assert import_weights(tmp_path / "foreign.pt", tmp_path / "imported") == len(weights)
    config = small_config(env={"manager": {"type": "base"}})
    pipeline = begin(config, tmp_path / "run", tmp_path / "imported")
    assert digest(pipeline.policy.model.state_dict()) == digest(weights)


def test_safetensors_become_a_checkpoint(weights, tmp_path):
    save_file({name: value.contiguous() for name, value in weights.items()}, tmp_path / "foreign.safetensors")
    import_weights(tmp_path / "foreign.safetensors", tmp_path / "imported")
    assert digest(load_checkpoint(tmp_path / "imported")[0]["policy"]["model"]) == digest(
        {name: value.numpy() for name, value in weights.items()}
    )


def test_weights_alone_cannot_be_resumed_or_played(weights, tmp_path):
    torch.save(weights, tmp_path / "foreign.pt")
    import_weights(tmp_path / "foreign.pt", tmp_path / "run" / "ckpt" / "last")
    with pytest.raises(CheckpointError, match="weights and nothing else.*--init-from"):
        SerialPipeline.resume(tmp_path / "run")
    with pytest.raises(CheckpointError):
        load_policy(tmp_path / "run")


@pytest.mark.parametrize(
    "contents", [[1, 2], {}, {"a": 1}, {"model": {"a": "b"}}, torch.zeros(3), "text", None], ids=str
)
def test_file_without_a_state_dict_is_refused(contents, tmp_path):
    torch.save(contents, tmp_path / "foreign.pt")
    with pytest.raises(CheckpointError, match="no state dict of tensors"):
        import_weights(tmp_path / "foreign.pt", tmp_path / "imported")
    assert not (tmp_path / "imported").exists()


def test_module_that_was_pickled_whole_is_refused(tmp_path):
    torch.save(torch.nn.Linear(2, 2), tmp_path / "foreign.pt")
    with pytest.raises(CheckpointError, match="foreign.pt is not a file of tensors alone") as caught:
        import_weights(tmp_path / "foreign.pt", tmp_path / "imported")
    assert "weights_only" not in str(caught.value), "the message must not explain how to load it anyway"


def test_import_never_writes_over_anything(weights, tmp_path):
    torch.save(weights, tmp_path / "foreign.pt")
    (tmp_path / "there").mkdir()
    with pytest.raises(CheckpointError, match="exists"):
        import_weights(tmp_path / "foreign.pt", tmp_path / "there")
    with pytest.raises(CheckpointError, match="does not exist"):
        import_weights(tmp_path / "nothing.pt", tmp_path / "imported")


def test_command_line_imports_and_begins_from_it(weights, tmp_path, monkeypatch, capsys):
    from ding_lite.cli import main

    monkeypatch.chdir(tmp_path)
    torch.save(weights, "foreign.pt")
    (tmp_path / "c.json").write_text(json.dumps(small_config(max_env_step=256)))
    argv = ["train", "-c", "c.json", "--exp-name", "run"]
    assert main([*argv, "--init-from", "foreign.pt"]) == 0
    assert "begins from the weights of " in capsys.readouterr().out
    (tmp_path / "forged.pt").write_text("{}")
    assert main(["train", "-c", "c.json", "--exp-name", "x", "--init-from", "forged.pt"]) == 5


def test_parts_of_ones_own_that_are_not_taken_are_named(tmp_path):
    class Counter:
        count = 0

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = int(state["count"])

    class Counting(PPOPolicy):
        def _init_shared(self):
            super()._init_shared()
            self.counter = self.keep("counter", Counter())

    config = small_config(policy={"type": Counting})
    with SerialPipeline(config, folder=tmp_path / "first") as pipeline:
        for _ in pipeline:
            break
    with SerialPipeline(config, folder=tmp_path / "second", init_from=tmp_path / "first"):
        assert "not taken from there: counter" in (tmp_path / "second" / "log.txt").read_text()
