"""Environments of tensors: the same transitions, advantages and parameters as of arrays; credit; faults."""

import collections
import itertools
import math
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from torch.utils._python_dispatch import TorchDispatchMode
from worlds import digest, finished, policy_for

from ding_lite import SerialPipeline
from ding_lite.config.compile import compile_config
from ding_lite.data.collector import Collector
from ding_lite.data.tensors import GreedyEpisodes, TensorCollector
from ding_lite.envs.make import make_vector_env
from ding_lite.envs.native import NativeVectorEnv
from ding_lite.envs.tensor import TensorVectorEnv
from ding_lite.errors import ConfigError, ContractError, EnvContractError, EnvError, NotFiniteError
from ding_lite.rl.scales import RAW
from ding_lite.trees import map_tree, to_dict, tree_leaves

sys.path.append(str(Path(__file__).parents[2] / "examples"))
from torch_envs import CartPole, Pendulum

N, STEPS, NAN = 6, 16, float("nan")
TRUST = ("torch_envs", __name__)
MODES = ("SAME_STEP", "NEXT_STEP", "DISABLED")
LSTM = {"model": {"rnn": "lstm", "rnn_hidden_size": 8}, "learn": {"sequence_length": 4}}
OPTIONS = {
    "mlp": {},
    "lstm": LSTM,
    "normalised": {"normalize": {"obs": True, "reward": True}, "learn": {"adv_norm": "batch"}},
}


class AsArrays(gym.vector.VectorEnv):
    """The same environments as arrays."""

    def __init__(self, env):
        self.env, self.num_envs, self.metadata = env, env.num_envs, env.metadata
        self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space

    def reset(self, *, seed=None, options=None):
        if options:
            options = map_tree(torch.as_tensor, options)
        return self.env.reset(seed, options)[0].numpy(), {}

    def step(self, actions):
        obs, reward, terminated, truncated, info = self.env.step(torch.as_tensor(actions))
        if self.metadata["autoreset_mode"] is AutoresetMode.DISABLED and not (terminated | truncated).any():
            self.env.first_states()  # arrays are not reset if no episode has ended
        arrays = [x.numpy() for x in (obs, reward, terminated, truncated & ~terminated)]
        return (*arrays, map_tree(torch.Tensor.numpy, info))


class Rough:
    """The same environments as a simulator may give them.

    Numbers in float64, flags as int64 and float32, both True at once; the same memory at each call; nan
    wherever nothing may be read; everything computed in torch's inference mode.
    """

    def __init__(self, env):
        self.env, self.num_envs, self.metadata = env, env.num_envs, env.metadata
        self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space
        self.memory = {}

    @torch.inference_mode()
    def given(self, name, tensor, dtype, unread=None):
        tensor = tensor.to(dtype)
        if unread is not None:
            tensor = torch.where(unread.view(-1, *[1] * (tensor.dim() - 1)), NAN, tensor)
        return self.memory.setdefault(name, torch.empty_like(tensor)).copy_(tensor)

    @torch.inference_mode()
    def reset(self, seed=None, options=None):
        obs, _ = self.env.reset(seed, options)
        unread = None
        if options:
            unread = ~options["reset_mask"]
            for name in ("reward", "terminated", "truncated"):  # of the step before
                self.memory[name].zero_()
        return self.given("obs", obs, torch.float64, unread), {}

    @torch.inference_mode()
    def step(self, action):
        waiting = self.env.done.clone() & (self.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP)
        obs, reward, terminated, truncated, info = self.env.step(action.clone())
        action.fill_(0)
        truncated = truncated | terminated
        if "final_obs" in info and isinstance(self.env, Pendulum):
            info["final_observation"] = info.pop("final_obs")  # as ManiSkill and gymnax name it
        found = {
            name: self.given(name, x, torch.float64, ~(truncated & ~terminated)) for name, x in info.items()
        }
        return (
            self.given("obs", obs, torch.float64),
            self.given("reward", reward, torch.float64, waiting),
            self.given("terminated", terminated, torch.int64),
            self.given("truncated", truncated, torch.float32),
            found,
        )


def collector_of(env, n_sample=N * STEPS, strict=False, **policy):
    envs = TensorVectorEnv(env)
    return TensorCollector(envs, policy_for(envs, **policy), n_sample, strict=strict)


def played(collector, turns=3):
    """Returns what some iterations give: the rollouts, the metrics of the collector, and the whole policy."""
    policy, rollouts = collector.policy, []
    if steps := policy.warm_up_steps:
        policy.warm_up(collector.random_observations(steps, 0))
    for _ in range(turns):
        rollout = collector.collect()
        rollouts.append(map_tree(torch.clone, to_dict(rollout)))
        policy.learn_mode.forward(rollout)
    metrics = {name: x for name, x in collector.metrics().items() if name != "step_reward"}
    return rollouts, metrics, policy.state_dict()


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("world", [CartPole, Pendulum])
def test_tensors_give_the_rollouts_and_parameters_of_arrays_bit_for_bit(world, mode, options):
    def made():
        return world(N, autoreset=mode, max_episode_steps=11)

    envs = NativeVectorEnv(AsArrays(made()))
    arrays = played(Collector(envs, policy_for(envs, **OPTIONS[options]), N * STEPS))
    tensors = played(collector_of(Rough(made()), **OPTIONS[options]))
    for one, other in zip(arrays[0], tensors[0], strict=True):
        assert one.keys() == other.keys()
        assert {name for name in one if digest(one[name]) != digest(other[name])} == set()
    assert "final" in one
    assert digest(arrays[1:]) == digest(tensors[1:])


class NoLast(Pendulum):
    """Does not give the last observations."""

    def step(self, action):
        return (*super().step(action)[:4], {})


@pytest.mark.parametrize("mode", [*MODES, "no last observation"])
def test_a_truncated_row_is_valued_by_its_own_last_observation_or_by_the_one_before(mode):
    class Watched(Pendulum if mode in MODES else NoLast):
        ends = []  # noqa: RUF012

        def physics(self, state, action):
            result = super().physics(state, action)
            self.ends.append(self.observe(result[0]))
            return result

    Watched.ends.clear()
    env = Watched(N, autoreset=mode if mode in MODES else "SAME_STEP", max_episode_steps=7)
    collector = collector_of(env, collect={"gae_lambda": 0.0, "discount_factor": 0.9})
    said = []
    collector.envs.say = said.append
    policy = collector.policy
    policy.value_norm.load_state_dict(RAW)
    rollout = collector.collect()
    t, n = rollout.truncated[:-1].nonzero().unbind(1)
    assert len(t) >= 2 * N
    bootstrap = (rollout.value_target - rollout.reward)[t, n] / 0.9
    follows = t + 1 + (mode == "NEXT_STEP")
    keep = follows < STEPS
    t, n, follows, bootstrap = (x[keep] for x in (t, n, follows, bootstrap))
    values = {
        "last": policy.values(torch.stack(Watched.ends)[t, n]),
        "before": rollout.value[t, n],
        "next episode": rollout.value[follows, n],
    }
    near = {name: bool((value - bootstrap).abs().max() < 1e-5) for name, value in values.items()}
    right = "last" if mode in MODES else "before"
    assert near == {name: name == right for name in values}
    assert collector.metrics().get("approximate_truncations", 0) == (0 if mode in MODES else 2 * N)
    assert len(said) == (mode not in MODES)


def test_strict_truncation_refuses_an_unknown_last_observation():
    with pytest.raises(EnvContractError, match="18 truncated episodes have no last observation"):
        collector_of(NoLast(N, max_episode_steps=5), strict=True).collect()


class Poisoned(CartPole):
    """Gives other numbers in the last two environments, and keeps the actions of each step."""

    factor = 1.0

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.actions = []

    def step(self, action):
        self.actions.append((self.observe(self.state), action.clone()))
        obs, reward, terminated, truncated, info = super().step(action)
        reward[-2:] *= self.factor
        return obs, reward, terminated, truncated, info

    def observe(self, state):
        return torch.cat([state[:-2], state[-2:] * self.factor])


@pytest.mark.parametrize("options", OPTIONS)
def test_the_last_environments_evaluate_and_nothing_is_learned_from_them(options):
    found = []
    for factor in (1.0, 50.0):
        env = Poisoned(N, max_episode_steps=9)
        envs = TensorVectorEnv(env)
        greedy = GreedyEpisodes(envs, 2)
        collector = TensorCollector(envs, policy_for(envs, **OPTIONS[options]), N * STEPS, greedy=greedy)
        policy = collector.policy
        if steps := policy.warm_up_steps:  # random steps of all environments
            policy.warm_up(collector.random_observations(steps, 0))
        env.factor = factor
        collector.current = env.observe(env.state)
        env.actions.clear()
        rollout = collector.collect()
        assert rollout.valid.all(0).tolist() == [True] * 4 + [False] * 2
        if policy.recurrence is None:
            for obs, action in env.actions:
                best = policy.eval_mode.forward(obs[-2:])["action"]
                assert torch.equal(action[-2:], torch.as_tensor(best))
        else:
            assert all(leaf[-2:].all() for leaf in tree_leaves(rollout.last_hidden))
        for _ in range(2):
            policy.learn_mode.forward(rollout)
            rollout = collector.collect()
        metrics = {k: v for k, v in collector.metrics().items() if k != "step_reward"}
        found.append((policy.state_dict(), metrics, [x for x in collector.recent], collector.episode_count))
        evaluation = greedy.evaluate(0, 0)
        assert len(evaluation.returns) > 4
        assert max(evaluation.lengths) <= 9
    assert digest(found[0]) == digest(found[1])
    assert {episode.env for episode in found[0][2]} == set(range(4))


class Spoiled(Pendulum):
    """Writes infinity into one number of step 7."""

    part, count = "", 0

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        self.count += 1
        if self.count == 8:
            numbers = {"observation": obs, "reward": reward[:, None], "last": info["final_obs"]}[self.part]
            numbers[2, -1] = math.inf
        return obs, reward, terminated, truncated, info


@pytest.mark.parametrize(
    ("part", "limit", "message"),
    [
        ("observation", 99, r"env 2, step 8 of the rollout: observation\[2\] = inf"),
        ("reward", 99, r"env 2, step 7 of the rollout: reward = inf"),
        ("last", 8, r"env 2, step 7 of the rollout: last observation of the episode\[2\] = inf"),
    ],
)
def test_a_number_that_is_not_finite_is_named_and_new_episodes_follow(part, limit, message):
    env = Spoiled(N, max_episode_steps=limit)
    env.part = part
    collector = collector_of(env)
    with pytest.raises(NotFiniteError, match=message):
        collector.collect()
    assert collector.collect().valid.all()
    assert env.episode_length_buf.tolist() == N * [STEPS % limit]


class Stuck(Pendulum):
    """Environment 2 has no legal action after step 4."""

    single_action_space = gym.spaces.Discrete(2)
    single_observation_space = gym.spaces.Dict(
        x=Pendulum.single_observation_space, action_mask=gym.spaces.Box(0, 1, (2,), np.int8)
    )

    def with_mask(self, obs, is_stuck=False):
        mask = torch.ones(N, 2, dtype=torch.int8)
        mask[2] -= int(is_stuck)
        return {"x": obs, "action_mask": mask}

    def reset(self, **arguments):
        self.count = 0
        obs, info = super().reset(**arguments)
        return self.with_mask(obs), info

    def step(self, action):
        obs, *rest, _ = super().step(action[:, None].float())
        self.count += 1
        return self.with_mask(obs, self.count == 5), *rest, {}


def test_a_mask_without_a_legal_action_is_refused():
    with pytest.raises(EnvContractError, match="env 2, step 5 of the rollout: action_mask leaves no legal"):
        collector_of(Stuck(N)).collect()


def test_metrics_of_the_simulator_are_averaged_and_the_record_of_episodes_is_bounded():
    class Logging(Pendulum):
        number = torch.zeros(())

        def step(self, action):
            *result, info = super().step(action)
            self.number += 1  # the same memory in each step
            return (*result, {**info, "log": {"Reward/upright": self.number, "speed": 2}})

    collector = collector_of(Logging(200, max_episode_steps=5), n_sample=200 * 4)
    collector.collect()
    collector.collect()
    metrics = collector.metrics()
    assert (metrics["Reward/upright"], metrics["speed"]) == (6.5, 2.0)
    assert (metrics["episode_count"], len(collector.episodes), metrics["episode_length"]) == (200, 100, 5)
    assert metrics["step_reward"] < 0


def test_a_wrong_shape_is_named():
    class Scalar(Pendulum):
        def step(self, action):
            obs, reward, terminated, _, info = super().step(action)
            return obs, reward, terminated, torch.tensor(True), info

    with pytest.raises(EnvError, match=r"Scalar: step: truncated must be a tensor .* \(6,\), got \(\)"):
        collector_of(Scalar(N)).collect()


def test_actions_are_the_same_on_a_device_as_on_the_host():
    spaces, rng = gym.spaces, np.random.default_rng(0)
    box = spaces.Box(-np.array([1, np.inf], np.float32), np.array([2, np.inf], np.float32))
    tree = spaces.Dict(a=box, b=spaces.Discrete(3, start=-1), c=spaces.MultiDiscrete([2, 3]))
    raw = {
        "a": rng.normal(scale=3, size=(5, 2)).astype(np.float32),
        "b": rng.integers(0, 3, 5),
        "c": rng.integers(0, 2, (5, 2)),
    }
    env = SimpleNamespace(obs_space=spaces.Box(-1, 1, (1,)), action_space=tree)
    head = policy_for(env).model.actor_head.out
    assert digest(head.to_env_on_device(map_tree(torch.from_numpy, raw))) == digest(head.to_env(raw))
    env.action_space = spaces.Box(-1.0, 2.0, (2,))
    head = policy_for(env, model={"box_distribution": "tanh_normal"}).model.actor_head.out
    assert np.array_equal(head.to_env_on_device(torch.from_numpy(raw["a"])), head.to_env(raw["a"]))


# -- Runs


def config(world=Pendulum, **others):
    user = {
        "max_env_step": 4 * N * STEPS,
        "env": {
            **{"type": world, "manager": {"type": "vector"}, "collector_env_num": N, "evaluator_env_num": 2},
            **{"n_evaluator_episode": 2, "kwargs": {"max_episode_steps": 11}},
        },
        "policy": {
            **{"collect": {"n_step": STEPS}, "eval": {"eval_freq": 200}, "normalize": {"obs": True}},
            "learn": {"batch_size": 32, "epoch_per_collect": 2},
        },
    }
    return compile_config(user, others)


class Forgetful(Pendulum):
    """Saves only how often it was reset."""

    def get_state(self):
        return {"count": 3}

    def set_state(self, state):
        assert state == {"count": 3}


@pytest.mark.parametrize(("mode", "rnn"), [("SAME_STEP", None), ("NEXT_STEP", "gru"), ("DISABLED", None)])
def test_a_resumed_run_goes_on_within_its_episodes_bit_for_bit(mode, rnn, tmp_path):
    changes = {"env.kwargs.autoreset": mode, "policy.model.rnn": rnn, "env.init_at_random_ep_len": True}
    changes["env.greedy_env_num"] = 2 if mode == "DISABLED" else 0
    whole = finished(SerialPipeline(config(**changes), folder=tmp_path / "whole"))
    half = config(**changes)
    finished(SerialPipeline(half, folder=tmp_path / "half", max_env_step=2 * N * STEPS))
    again = SerialPipeline.resume(tmp_path / "half", trust=TRUST, max_env_step=half.values.max_env_step)
    assert digest(finished(again).policy.state_dict()) == digest(whole.policy.state_dict())
    assert digest(again.collector.state_dict()) == digest(whole.collector.state_dict())


def test_the_last_environments_of_a_simulator_evaluate(tmp_path):
    made = []

    def make(num_envs, **kwargs):
        made.append(num_envs)
        return Pendulum(num_envs, **kwargs)

    changes = {"env.greedy_env_num": 2, "env.stop_value": -1e9, "policy.eval.eval_freq": 60}
    pipeline = SerialPipeline(config(make, **changes), folder=tmp_path / "run")
    with pytest.raises(ContractError, match="evaluate\\(policy, env\\)"):
        pipeline.evaluator.evaluate("mine")
    finished(pipeline)
    assert made == [N]
    assert (pipeline.status, pipeline.progress.iteration) == ("solved", 2)  # by two evaluations in a row
    assert pipeline.progress.env_step == 2 * (N - 2) * STEPS
    assert set(pipeline.progress.evaluation.lengths) == {11}
    assert "the last 2 environments play greedily" in (tmp_path / "run/log.txt").read_text()
    with pytest.raises(ConfigError, match="greedy_env_num: it must be below collector_env_num"):
        config(make, **changes | {"env.greedy_env_num": N})


def test_a_simulator_that_saves_no_episodes_begins_new_ones_and_says_so(tmp_path):
    finished(SerialPipeline(config(Forgetful), folder=tmp_path / "run", max_env_step=2 * N * STEPS))
    finished(SerialPipeline.resume(tmp_path / "run", trust=TRUST, max_env_step=3 * N * STEPS))
    log = (tmp_path / "run/log.txt").read_text()
    assert "set_state returned no observations. The run goes on with new" in log


def test_steps_of_each_environment_give_the_size_of_a_rollout():
    found = config()
    assert (found.values.policy.collect.n_sample, found.source["policy.collect.n_sample"]) == (96, "n_step")
    assert found.replaced({"env.collector_env_num": 8}).values.policy.collect.n_sample == 8 * STEPS
    assert "n_sample" not in found.written()["policy"]["collect"]
    with pytest.raises(ConfigError, match="n_step: it is in place of n_sample"):
        config(**{"policy.collect.n_sample": 64}).replaced({"policy.collect.n_step": 2})


def test_episodes_of_training_may_begin_at_random_times():
    found = {}
    for side in ("collector", "evaluator"):
        section = config(**{"env.init_at_random_ep_len": True}).values.env
        envs = make_vector_env(section, N, 0, evaluate=side == "evaluator")
        envs.reset({"collector": "collect", "evaluator": "evaluate"}[side])
        found[side] = envs.env.episode_length_buf
    assert len(set(found["collector"].tolist())) > 2
    assert found["collector"].max() < 11
    assert not found["evaluator"].any()


def test_a_simulator_is_seeded_when_it_is_made():
    seeds = []

    def make(num_envs, seed, evaluate, **kwargs):
        seeds.append((seed, evaluate))
        return Pendulum(num_envs, **kwargs)

    for seed, evaluate in ((0, False), (1, False), (0, True)):
        make_vector_env(config(make).values.env, N, seed, evaluate=evaluate)
    assert len({seed for seed, _ in seeds}) == 3
    assert [evaluate for _, evaluate in seeds] == [False, False, True]


class Waits(TorchDispatchMode):
    """Counts what would wait for a device: reads of numbers, and results whose size depends on numbers."""

    OPS = ("_local_scalar_dense", "nonzero", "is_nonzero", "item", "masked_select", "repeat_interleave")
    READS = ("cpu", "numpy", "tolist")

    def __enter__(self):
        self.found = collections.Counter()
        self.kept = {name: getattr(torch.Tensor, name) for name in self.READS}
        for name, method in self.kept.items():
            setattr(torch.Tensor, name, self.counted(name, method))
        return super().__enter__()

    def __exit__(self, *error):
        for name, method in self.kept.items():
            setattr(torch.Tensor, name, method)
        return super().__exit__(*error)

    def counted(self, name, method):
        def read(*args):
            self.found[name] += 1
            return method(*args)

        return read

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        name = op.overloadpacket.__name__
        is_masked = name.startswith("index") and any(
            getattr(x, "dtype", None) is torch.bool for x in itertools.chain(*filter(is_list, args))
        )
        if name in self.OPS or is_masked:
            self.found[name] += 1
        return op(*args, **(kwargs or {}))


def is_list(x):
    return isinstance(x, (list, tuple))


def waits_of(steps, device):
    """Returns what an iteration of so many steps and minibatches waits for."""
    env = CartPole(N, max_episode_steps=9, device=device)
    options = {"learn": {"epoch_per_collect": 2, "batch_size": N * 4}, "model": {"activation": "gelu"}}
    collector = collector_of(env, N * steps, **options)
    policy = collector.policy
    collector.on_host = policy.optimizer.on_host = False  # as on a GPU
    for _ in range(2):
        policy.learn_mode.forward(collector.collect())
    if device == "cpu":
        with Waits() as waits:
            policy.learn_mode.forward(collector.collect())
        return waits.found
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        policy.learn_mode.forward(collector.collect())
        torch.cuda.set_sync_debug_mode("default")
    return collections.Counter(f"{each.filename}:{each.lineno}" for each in found)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_no_step_and_no_minibatch_waits_for_the_device(device):
    short, long = waits_of(8, device), waits_of(16, device)
    assert short == long
    assert 0 < sum(long.values()) < 50


@pytest.mark.gpu
@pytest.mark.parametrize("rnn", [None, "lstm"])
def test_nothing_leaves_the_gpu(rnn, tmp_path):
    changes = {"env.kwargs.device": "cuda", "policy.model.rnn": rnn}
    pipeline = finished(SerialPipeline(config(**changes), folder=tmp_path / "run"))
    assert {x.device.type for x in pipeline.collector.rows.values()} == {"cuda"}
    assert pipeline.policy.device.type == "cuda"
    assert pipeline.progress.env_step == 4 * N * STEPS
