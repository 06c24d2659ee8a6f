"""Which device a policy takes; and, with a GPU, that it collects and learns there what the host does."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from anything import Anything
from small_worlds import SeededEnv
from worlds import digest, finished, merged, small_config, trainee, until

from ding_lite import PPOPolicy, SerialPipeline, load_policy
from ding_lite.errors import ConfigError
from ding_lite.policies.base import chosen_device

LARGE = {"encoder_hidden_size_list": [512, 512]}


@pytest.mark.parametrize(
    ("chosen", "model"),
    [("cpu", {}), ("cpu", {"encoder_hidden_size_list": [256, 256]}), ("cuda", LARGE), ("cuda", "image-hwc")],
)
def test_auto_takes_a_gpu_where_it_pays(chosen, model, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    world = partial(Anything, model, "discrete") if model == "image-hwc" else SeededEnv
    policy, _ = trainee("ppo", world, device="cpu", **({} if model == "image-hwc" else {"model": model}))
    assert chosen_device("auto", policy.model).type == chosen


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "mps"])
def test_a_device_that_is_not_there_is_refused(device):
    with pytest.raises(ConfigError, match="policy.device: "):
        trainee("ppo", device=device)


# ------------------------------------------------------------------ with a GPU


@pytest.mark.gpu
def test_a_gpu_learns_what_the_host_does():
    # One step of all samples, so that their order is no matter; its metrics are those before it.
    learn = {"epoch_per_collect": 1, "batch_size": 64}
    (host, collector), (gpu, _) = (trainee("ppo", device=device, learn=learn) for device in ("cpu", "cuda"))
    rollout = collector.collect()
    expected, told = host.learn_mode.forward(rollout), gpu.learn_mode.forward(rollout)
    for name in ("total_loss", "policy_loss", "value_loss", "entropy_loss", "grad_norm", "updates"):
        assert told[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6)


PHASIC = {"aux_freq": 1, "aux_train_epoch": 1}
CASES = [
    ("ppo", {}),
    ("ppo_offpolicy", {"other": {"replay_buffer": {"max_use": 9}}}),
    ("ppo", {"model": {"activation": "gelu"}, "recompute_adv": False, "learn": {"dual_clip": 3.0}}),
    ("ppo", {"model": {"share_encoder": True}, "normalize": {"obs": True, "reward": True}}),
    ("ppo", {"learn": {"target_kl": 0.1, "value_clip": 0.2}}),
    ("ppg", {"learn": PHASIC}),
    ("ppg", {"model": {"arch": "detach"}, "learn": {"aux_freq": 2, "critic_epoch_per_collect": 2}}),
]


@pytest.mark.gpu
@pytest.mark.parametrize("n_sample", [64, 72])
@pytest.mark.parametrize(("kind", "options"), CASES)
def test_cuda_graphs_collect_and_learn_the_same(kind, options, n_sample):
    (without, plain_collector), (policy, collector) = both = [
        trainee(kind, n_sample=n_sample, device="cuda", **merged({"cuda_graph": on}, options))
        for on in (False, True)
    ]
    for each, _ in both:
        each.warm_up(torch.linspace(-1, 1, 192).view(64, 3))
    for _ in range(3):
        plain, captured = plain_collector.collect(), collector.collect()
        assert torch.equal(plain.action, captured.action)
        for name in ("obs", "log_prob", "value", "advantage"):
            torch.testing.assert_close(captured[name], plain[name], rtol=1e-4, atol=1e-5)
        expected = without.learn_mode.forward(plain)
        told = policy.learn_mode.forward(captured)
        assert told == pytest.approx(expected, rel=1e-3, abs=1e-5, nan_ok=True)
    assert torch.equal(policy.generator.get_state(), without.generator.get_state())
    greedy = [each.acting().greedy for each, _ in both]
    for obs in np.random.default_rng(0).normal(size=(4, 8, 3)):
        plain, captured = (act(obs)["action"].cpu() for act in greedy)
        assert torch.equal(plain, captured)
    assert policy._graph_pool._last is not None
    assert policy.optimizer.pool._last is not None
    assert without._graph_pool._last is without.optimizer.pool is None


class Masked(Anything):
    def info(self):
        return {"action_mask": np.ones(self.action_space.n, np.int8)}


@pytest.mark.gpu
@pytest.mark.parametrize("world", [Masked, partial(Anything, "nested", "discrete")])
def test_masks_and_dicts_of_observations_are_captured(world):
    (_, plain), (policy, captured) = (
        trainee("ppo", world, device="cuda", cuda_graph=on, learn={"batch_size": 32}) for on in (False, True)
    )
    expected, rollout = plain.collect(), captured.collect()
    assert torch.equal(rollout.action, expected.action)
    assert policy.learn_mode.forward(rollout)["updates"] > 1
    assert policy.optimizer.pool._last is not None


class Waiting(PPOPolicy):
    def policy_loss(self, batch):
        loss, told = super().policy_loss(batch)
        return loss * (1.0 if float(loss.detach()) < 1e9 else 2.0), told


@pytest.mark.gpu
def test_a_loss_that_waits_for_the_gpu_is_not_captured_and_it_is_said_once():
    (policy, collector), (plain, _) = (trainee("ppo", cls=cls, device="cuda") for cls in (Waiting, PPOPolicy))
    rollout = collector.collect()
    with pytest.warns(RuntimeWarning, match=r"policy\.cuda_graph: there is no CUDA graph .*sync") as said:
        told = policy.learn_mode.forward(rollout)
    assert len(said) == 1
    assert told == pytest.approx(plain.learn_mode.forward(rollout), rel=1e-5)
    # What a failed capture could have left behind.
    torch.randn(3, device="cuda")
    torch.cuda.empty_cache()


@pytest.mark.gpu
def test_a_model_with_a_hook_acts_without_a_graph():
    policy, collector = trainee("ppo", device="cuda")
    calls = []
    policy.model.actor_encoder.register_forward_hook(lambda *_: calls.append(1))
    collector.collect()
    assert len(calls) >= 16


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["ppo", "ppg_offpolicy"])
def test_a_recurrent_policy_with_an_intrinsic_reward_learns_on_a_gpu(kind):
    """Its episodes are cut, too."""
    policy, collector = trainee(kind, device="cuda", model={"rnn": "gru"}, intrinsic={"type": "rnd"})
    policy.warm_up(torch.randn(64, *policy.obs_space.shape))
    cut = 0
    for _ in range(3):
        rollout = collector.collect()
        cut += int(rollout.truncated.sum())
        assert policy.learn_mode.forward(rollout)["updates"] > 0
    assert cut > 0


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy"])
def test_a_run_on_a_gpu_is_resumed_there_and_loaded_here(kind, tmp_path):
    policy = dict(type=kind, device="cuda", collect=dict(n_sample=64), learn=dict(batch_size=32))
    config = small_config(policy=policy, max_env_step=256)
    config["policy"]["learn"].pop("epoch_per_collect")

    def trained(pipeline):
        return digest(finished(pipeline).policy.model.state_dict())

    straight = trained(SerialPipeline(config, folder=tmp_path / "straight"))
    pipeline = until(SerialPipeline(config, folder=tmp_path / "run"), 2)
    observations = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    loaded = load_policy(tmp_path / "run", checkpoint="last")
    assert loaded.device.type == "cpu"
    assert np.array_equal(loaded.act(observations), pipeline.policy.act(observations))
    assert trained(SerialPipeline.resume(tmp_path / "run")) == straight
