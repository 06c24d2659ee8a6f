"""Devices other than the host: what lies there meets nothing that lies here.

Without a GPU torch's "meta" device stands for one: it computes shapes and no numbers. Calls that mix devices
are refused, and what the library reads back is made up.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from anything import ACTIONS, OBSERVATIONS, VARIANTS, Anything
from small_worlds import SeededEnv
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from worlds import merged, trainee

from ding_lite import PPOPolicy, SerialPipeline, load_policy
from ding_lite.errors import ConfigError
from ding_lite.policies.base import chosen_device
from ding_lite.rl.seeding import GeneratorState
from ding_lite.run.rank_states import digest

META = torch.device("meta")
READ = {"tolist": lambda x: x.tolist(), "item": float, "__float__": float, "__int__": int, "__bool__": bool}
MOVING = ("to", "copy_", "__set__", "_has_compatible_shallow_copy_type")
DRAWS = ("exponential_", "normal_", "uniform_", "bernoulli_")


def lies_there(x):
    return isinstance(x, torch.Tensor) and x.device == META


def refuse_mixtures(name, *args):
    """Some of meta's own calls, such as the product of two matrices, let them pass."""
    tensors = [t for t in tree_leaves(args) if isinstance(t, torch.Tensor) and t.dim()]
    if len({lies_there(t) for t in tensors}) == 2 and name not in MOVING:
        raise RuntimeError(f"{name} of tensors on two devices")


def all_of(x, index):
    """Returns ``x[index]`` as if every mask were true everywhere."""
    index = index if isinstance(index, tuple) else (index,)
    masks = [lies_there(part) and part.dtype == torch.bool for part in index]
    if masks == [True]:
        return x.flatten(0, index[0].dim() - 1)
    return x[tuple(slice(None) if mask else part for part, mask in zip(index, masks, strict=True))]


# Whose size, or result, depends on numbers.
OF_SOME_SIZE = {
    "equal": lambda x, y: True,
    "nonzero": lambda x: torch.empty(x.numel(), x.dim(), dtype=torch.int64, device=META),
    "bincount": lambda x, weights=None, minlength=0: torch.empty(minlength, device=META),
    "multinomial": lambda x, count, generator: torch.empty(count, dtype=torch.int64, device=META),
    "__getitem__": all_of,
}


class MetaDevice(TorchFunctionMode):
    """Makes numbers up where some are read, and sizes where numbers decide on them."""

    def __init__(self):
        super().__init__()
        self.read = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name, kwargs = function.__name__, dict(kwargs or {})
        refuse_mixtures(name, args, kwargs)
        x = args[0] if args else None
        if not lies_there(x):
            return function(*args, **kwargs)
        if name in DRAWS:
            kwargs.pop("generator")  # there is none for meta, and this one is the host's
        if name in READ or name == "cpu" or (name == "to" and "cpu" in map(str, args[1:2])):
            self.read.append(name)
            made_up = torch.full(x.shape, name in ("__int__", "__bool__"), dtype=x.dtype, device="cpu")
            return READ.get(name, lambda there: there)(made_up)
        return OF_SOME_SIZE.get(name, function)(*args, **kwargs)


def use_meta(monkeypatch):
    """Puts policies on the device "meta"."""
    for module in ("base", "ppo", "auxiliary"):
        generator = lambda *stream, device=None: torch.Generator().manual_seed(0)  # noqa: E731
        monkeypatch.setattr(f"ding_lite.policies.{module}.torch_generator", generator, raising=False)
    order = lambda n, generator: torch.randperm(n, device=META)  # noqa: E731
    monkeypatch.setattr("ding_lite.data.samples.permutation", order)
    monkeypatch.setattr("ding_lite.policies.base.chosen_device", lambda *said: META)


def learn_there(monkeypatch, kind, world=SeededEnv, iterations=2, state=None, **options):
    """Returns what was read from the device while a policy on it collected and learned, from ``state`` on."""
    use_meta(monkeypatch)
    options = merged({"learn": {"compile": False}}, options)
    with MetaDevice() as mode:
        policy, collector = trainee(kind, world=world, **options)
        assert policy.device == META
        if state is not None:
            policy.load_state_dict(state)
        for _ in range(iterations):
            told = policy.learn_mode.forward(collector.collect())
    assert told["updates"] > 0
    return mode.read


ONE_EPOCH = {"recompute_adv": False, "learn": {"batch_size": 32}}
PHASIC = {"aux_freq": 1, "aux_train_epoch": 1}
STALE = {"priority": True, "priority_IS_weight": True, "learn": {"reuse": 2}}
CASES = [
    ("ppo", {}),
    ("ppo_offpolicy", {}),
    ("ppo_offpolicy", STALE),
    ("ppo", {"model": {"activation": "gelu"}, "recompute_adv": False, "learn": {"dual_clip": 3.0}}),
    ("ppo", {"normalize": {"obs": True, "reward": True}}),
    ("ppo", {"learn": {"kl_penalty": 1.0, "target_kl": 0.1, "value_clip": 0.2}}),
    ("ppg", {"learn": PHASIC}),
    ("ppg", {"model": {"arch": "detach"}, "learn": {"aux_freq": 2, "critic_epoch_per_collect": 2}}),
]


@pytest.mark.daily(1)
@pytest.mark.parametrize(("kind", "options"), CASES)
def test_a_policy_learns_on_a_device(kind, options, monkeypatch):
    assert "tolist" in learn_there(monkeypatch, kind, **options)


def test_targets_are_renewed_on_a_device(monkeypatch):
    # Once: in a second iteration a mask that is true everywhere would take other rollouts' targets along.
    learn_there(monkeypatch, "ppg_offpolicy", iterations=1, learn=PHASIC)


@pytest.mark.daily(1)
@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_does(action, monkeypatch):
    learn_there(monkeypatch, "ppo", partial(Anything, "box", action), **ONE_EPOCH)


@pytest.mark.daily(2)
@pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter")
@pytest.mark.parametrize(("kind", "options"), CASES)
def test_a_state_of_the_host_is_loaded_there(kind, options, monkeypatch):
    host, collector = trainee(kind, device="cpu", **merged({"learn": {"compile": False}}, options))
    host.learn_mode.forward(collector.collect())
    learn_there(monkeypatch, kind, iterations=1, state=host.state_dict(), **options)


LARGE = {"encoder_hidden_size_list": [512, 512]}


@pytest.mark.parametrize(
    ("chosen", "model"),
    [("cpu", {}), ("cpu", {"encoder_hidden_size_list": [256, 256]}), ("cuda", LARGE), ("cuda", "image-hwc")],
)
def test_auto_takes_a_gpu_where_it_pays(chosen, model, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    world = partial(Anything, model, "discrete") if model == "image-hwc" else SeededEnv
    options = {} if model == "image-hwc" else {"model": model}
    policy, _ = trainee("ppo", world, device="cpu", **options)
    assert chosen_device("auto", None, policy.model).type == chosen
    # DI-engine's key decides by itself.
    assert chosen_device("auto", True, policy.model).type == "cuda"
    assert chosen_device("auto", False, policy.model).type == "cpu"


def test_a_default_device_of_torch_is_refused():
    model = torch.nn.Linear(1, 1)
    with (
        torch.device("meta"),
        pytest.raises(ConfigError, match=r"set_default_device\('meta'\).*policy.device"),
    ):
        chosen_device("auto", None, model)


class WithBeta(PPOPolicy):
    def policy_loss(self, batch):
        loss, metrics = super().policy_loss(batch)
        return loss, {**metrics, "beta": torch.tensor(0.5, device="cpu")}


def test_a_metric_on_the_host_is_as_good_as_one_on_the_device(monkeypatch):
    learn_there(monkeypatch, "ppo", cls=WithBeta, **ONE_EPOCH)


def state_of_another_device(self):
    """As of a generator on a GPU: a seed and an offset."""
    return {"state": self.generator.get_state()[:16].clone()}


@pytest.mark.parametrize("kind", ["ppo", "ppg_offpolicy"])
def test_a_run_that_another_kind_of_device_saved_is_loaded_and_continued(kind, tmp_path, monkeypatch):
    def run(max_env_step, **options):
        config = dict(
            max_env_step=max_env_step,
            env=dict(env_id="CartPole-v1", n_evaluator_episode=1, max_eval_steps=5),
            policy=dict(type=kind, intrinsic=dict(type="rnd"), collect=dict(n_sample=64)),
        )
        return SerialPipeline(merged(config, options), folder=tmp_path / "run")

    with monkeypatch.context() as patch, run(128) as pipeline:
        patch.setattr(GeneratorState, "state_dict", state_of_another_device)
        for _ in pipeline:
            pass
    observations = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    loaded = load_policy(tmp_path / "run", checkpoint="last")
    assert np.array_equal(loaded.act(observations), pipeline.policy.act(observations))
    actions = []
    for _ in range(2):
        with SerialPipeline.resume(tmp_path / "run", max_env_step=192) as resumed:
            assert "another kind of device than cpu" in (tmp_path / "run" / "log.txt").read_text()
            actions.append(resumed.collector.collect().action.tolist())
    assert actions[0] == actions[1]


class Masked(Anything):
    def info(self):
        return {"action_mask": np.ones(self.action_space.n, np.int8)}


def test_masks_do(monkeypatch):
    learn_there(monkeypatch, "ppo", Masked, **ONE_EPOCH)


@pytest.mark.daily(1)
@pytest.mark.parametrize("action", VARIANTS)
def test_every_distribution_does(action, monkeypatch):
    learn_there(monkeypatch, "ppg", partial(Anything, "box", action), model=VARIANTS[action][1], **ONE_EPOCH)


@pytest.mark.daily(1)
@pytest.mark.parametrize("obs", OBSERVATIONS)
def test_every_observation_does(obs, monkeypatch):
    learn_there(monkeypatch, "ppo", partial(Anything, obs, "discrete"), **ONE_EPOCH)


class OfTwoPlaces(PPOPolicy):
    mixed = staticmethod(torch.mul)

    def policy_loss(self, batch):
        loss, told = super().policy_loss(batch)
        weight = torch.zeros(len(batch.log_prob), device="cpu")
        return loss + self.mixed(weight, batch.log_prob).mean(), told


@pytest.mark.parametrize("mixed", [torch.mul, torch.dot, lambda a, b: torch.cat([a, b])])
def test_a_loss_that_mixes_devices_is_refused(mixed, monkeypatch):
    monkeypatch.setattr(OfTwoPlaces, "mixed", staticmethod(mixed))
    with pytest.raises(RuntimeError, match="of tensors on two devices"):
        learn_there(monkeypatch, "ppo", cls=OfTwoPlaces)


# ------------------------------------------------------------------ with a GPU


@pytest.mark.gpu
def test_a_gpu_learns_what_the_host_does():
    # One step of all samples, so that their order is no matter; its metrics are those before it.
    learn = {"compile": False, "epoch_per_collect": 1, "batch_size": 64}
    (host, collector), (gpu, _) = (trainee("ppo", device=device, learn=learn) for device in ("cpu", "cuda"))
    rollout = collector.collect()
    expected, told = host.learn_mode.forward(rollout), gpu.learn_mode.forward(rollout)
    for name in ("total_loss", "policy_loss", "value_loss", "entropy_loss", "grad_norm", "updates"):
        assert told[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6)


SHARED = {"share_encoder": True}


@pytest.mark.gpu
@pytest.mark.parametrize("n_sample", [64, 72])
@pytest.mark.parametrize(("kind", "options"), [*CASES, ("ppo", {"model": SHARED})])
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
    modes = [each.eval_mode.for_evaluation() for each, _ in both]
    for obs in np.random.default_rng(0).normal(size=(4, 8, 3)):
        plain, captured = (mode.forward(obs)["action"].cpu() for mode in modes)
        assert torch.equal(plain, captured)
    assert policy.fast.graph_pool._last is not None
    assert policy.optimizer.gradients.graph_pool._last is not None
    assert without.fast.graph_pool._last is without.optimizer.gradients.graph_pool._last is None


@pytest.mark.gpu
@pytest.mark.parametrize("world", [Masked, partial(Anything, "nested", "discrete")])
def test_masks_and_dicts_of_observations_are_captured(world):
    (_, plain), (policy, captured) = (
        trainee("ppo", world, device="cuda", cuda_graph=on, **ONE_EPOCH) for on in (False, True)
    )
    expected, rollout = plain.collect(), captured.collect()
    assert torch.equal(rollout.action, expected.action)
    assert policy.learn_mode.forward(rollout)["updates"] > 1
    assert policy.fast.graph_pool._last is not None
    assert policy.optimizer.gradients.graph_pool._last is not None


class Waiting(PPOPolicy):
    def policy_loss(self, batch):
        loss, told = super().policy_loss(batch)
        return loss * (1.0 if float(loss.detach()) < 1e9 else 2.0), told


@pytest.mark.gpu
def test_a_loss_that_waits_for_the_gpu_is_not_captured_and_it_is_said_once():
    options = {"device": "cuda", "learn": {"batch_size": 16}}
    (policy, collector), (plain, _) = (trainee("ppo", cls=cls, **options) for cls in (Waiting, PPOPolicy))
    rollout = collector.collect()
    with pytest.warns(RuntimeWarning, match=r"policy\.cuda_graph: there is no CUDA graph .*sync") as said:
        told = policy.learn_mode.forward(rollout)
    assert len(said) == 1
    assert told == pytest.approx(plain.learn_mode.forward(rollout), rel=1e-5)
    assert policy.optimizer.gradients.name_of(policy.loss) == "autograd"
    # What a failed capture could have left behind.
    torch.randn(3, device="cuda")
    torch.cuda.empty_cache()


@pytest.mark.gpu
def test_a_model_with_a_hook_is_not_captured():
    policy, collector = trainee("ppo", device="cuda")
    calls = []
    policy.model.actor_encoder.register_forward_hook(lambda *_: calls.append(1))
    rollout = collector.collect()
    collected = len(calls)
    updates = policy.learn_mode.forward(rollout)["updates"]
    assert collected >= 16
    assert len(calls) - collected >= updates


class WaitingEncoder(torch.nn.Module):
    """An encoder that reads a number from the GPU."""

    def __init__(self, plain):
        super().__init__()
        self.plain = plain

    def forward(self, obs):
        return self.plain(obs) * (1.0 if float(obs.sum()) < 1e9 else 2.0)


@pytest.mark.gpu
def test_a_model_that_waits_for_the_gpu_acts_as_without_graphs():
    both = [trainee("ppo", device="cuda", cuda_graph=on) for on in (False, True)]
    for policy, _ in both:
        policy.model.actor_encoder = WaitingEncoder(policy.model.actor_encoder)
    (without, plain), (policy, collector) = both
    expected = plain.collect()
    with pytest.warns(RuntimeWarning, match=r"policy\.cuda_graph"):
        rollout = collector.collect()
    assert torch.equal(rollout.action, expected.action)
    assert torch.equal(collector.collect().action, plain.collect().action)
    assert torch.equal(policy.generator.get_state(), without.generator.get_state())


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["ppo", "ppg_offpolicy"])
def test_a_policy_with_memory_and_an_intrinsic_reward_learns_on_a_gpu(kind):
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
def test_a_run_on_a_gpu_is_resumed_there_and_here(kind, tmp_path):
    def config(max_env_step):
        return dict(
            max_env_step=max_env_step,
            env=dict(env_id="CartPole-v1", n_evaluator_episode=2, max_eval_steps=20),
            policy=dict(type=kind, device="cuda", collect=dict(n_sample=64), learn=dict(batch_size=32)),
        )

    def trained(pipeline):
        with pipeline:
            for _ in pipeline:
                pass
            return {name: digest(part) for name, part in pipeline.state_dict().items() if name != "clock"}

    straight = trained(SerialPipeline(config(256), folder=tmp_path / "straight"))
    folder = tmp_path / "run"
    with SerialPipeline(config(256), folder=folder) as pipeline:
        for progress in pipeline:
            if progress.iteration == 2:
                break
    observations = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    loaded = load_policy(folder, checkpoint="last")
    assert loaded.device.type == "cpu"
    assert np.array_equal(loaded.act(observations), pipeline.policy.act(observations))
    assert trained(SerialPipeline.resume(folder)) == straight
    here = SerialPipeline.resume(folder, changes={"policy.device": "cpu"}, max_env_step=384)
    assert trained(here)["progress"] != straight["progress"]
    assert here.policy.device.type == "cpu"
    there = SerialPipeline.resume(folder, changes={"policy.device": "cuda"}, max_env_step=448)
    trained(there)
    assert there.policy.device.type == "cuda"
