"""Compiled gradient steps: the same numbers, nothing that changes taken for a constant, and a way back."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from anything import ACTIONS, VARIANTS, Anything
from small_worlds import LengthEnv, SeededEnv
from worlds import gradient_of, merged, take_step, trainee

from ding_lite import PPOPolicy, compile_config
from ding_lite.data.samples import Batch
from ding_lite.fast.compiling import COMPILE_FROM, WITHOUT_CLOSED_FORM, CompiledFunction, may_compile
from ding_lite.fast.cuda_graphs import GraphPool
from ding_lite.fast.gradients import autograd_gradient
from ding_lite.policies.optimizer import Optimizer
from ding_lite.tools.profile import profile


@pytest.fixture(autouse=True)
def by_length(monkeypatch):
    """Undoes what keeps all other tests from compiling."""
    monkeypatch.setattr("ding_lite.policies.ppo.COMPILE_FROM", COMPILE_FROM)


@pytest.fixture
def traced(monkeypatch):
    """Traces and differentiates as torch.compile does, without making C++ of it: a second, not ten."""
    compiled = torch.compile

    def without_cpp(function, *, options, **others):
        return compiled(function, backend="aot_eager", **others)

    monkeypatch.setattr(torch, "compile", without_cpp)


@pytest.fixture
def differences(monkeypatch):
    """Gathers how far each gradient and its metrics are from those of the function itself."""
    found, function_of = [], Optimizer.gradient_function

    def compared(optimizer, loss, parts, clip):
        mine = function_of(optimizer, loss)(parts, clip)
        its = autograd_gradient(loss, optimizer.parameters, parts, clip)
        assert [a is None for a in mine.values] == [a is None for a in its.values]
        assert list(mine.metrics) == list(its.metrics)
        pairs = [(a, b) for a, b in zip(mine.values, its.values, strict=True) if a is not None]
        pairs += zip(mine.metrics.values(), its.metrics.values(), strict=True)
        found.append(max(float((a - b).abs().max()) for a, b in pairs))
        return mine

    monkeypatch.setattr(Optimizer, "gradient_function", lambda *which: partial(compared, *which))
    return found


@pytest.fixture
def compilations(monkeypatch):
    """Lists the calls of compiled functions; a warning of failure is an error in all tests."""
    calls, call = [], CompiledFunction.__call__
    monkeypatch.setattr(CompiledFunction, "__call__", lambda self, *a: calls.append(self) or call(self, *a))
    return calls


PHASIC = {"aux_freq": 1, "aux_train_epoch": 1, "critic_epoch_per_collect": 2, "aux_batch_size": 32}
EVERY_TERM = {"kl_penalty": 0.5, "value_clip": 0.2, "value_loss": "smooth_l1"}
CASES = [
    *(("ppo", "box", action, {}) for action in ACTIONS),
    *(("ppg", "box", action, {"model": VARIANTS[action][1], "learn": PHASIC}) for action in VARIANTS),
    *(("ppo", obs, "discrete", {}) for obs in ("bool-grid", "image-chw", "nested", "multi-discrete")),
    ("ppg_offpolicy", "nested", "tree", {"learn": PHASIC}),
    ("ppo_offpolicy", "box", "box", {"learn": EVERY_TERM}),
]


@pytest.mark.daily(1)
@pytest.mark.parametrize(("kind", "obs", "action", "options"), CASES)
def test_every_loss_on_every_space_is_one_graph_with_the_same_gradient(
    kind, obs, action, options, traced, differences, compilations
):
    options = merged({"learn": {"compile": True}, "model": {"encoder_hidden_size_list": [8]}}, options)
    policy, collector = trainee(kind, partial(Anything, obs, action), **options)
    policy.learn_mode.forward(collector.collect())
    assert len(compilations) >= 4
    assert max(differences) == 0


def test_an_output_that_is_assigned_to_a_model_is_in_the_steps_that_follow(traced, differences, compilations):
    policy, collector = trainee("ppo", SeededEnv, learn={"compile": True})
    policy.learn_mode.forward(collector.collect())
    layers, before = policy.model.compute_actor, len(differences)
    policy.model.compute_actor = lambda obs: 5.0 * layers(obs)
    policy.learn_mode.forward(collector.collect())
    assert len(compilations) == len(differences) > before
    assert max(differences) == 0


class Frames(gym.Env):
    """Random pictures, large enough for a Nature CNN."""

    observation_space, action_space = gym.spaces.Box(0, 255, (4, 36, 36), np.uint8), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.look(), {}

    def look(self):
        return self.np_random.integers(256, size=(4, 36, 36), dtype=np.uint8)

    def step(self, action):
        self.t += 1
        return self.look(), float(action), False, self.t == 16, {}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "world"), [("ppo", SeededEnv), ("ppg", SeededEnv), ("ppo", Frames)])
def test_compiled_to_c_it_agrees_to_the_rounding(kind, world, differences, compilations):
    learn = {"compile": True, **(PHASIC if kind == "ppg" else {})}
    policy, collector = trainee(kind, world, learn=learn)
    for _ in range(2):
        policy.learn_mode.forward(collector.collect())
    assert len(compilations) > 8
    assert 0 < max(differences) < 1e-5, "0: it was not compiled"


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [True, False])
def test_a_policy_that_was_pickled_trains_on_as_the_one_it_was(compiled, traced):
    policy, collector = trainee("ppo", learn={"compile": compiled}, model={"activation": "gelu"})
    rollout = collector.collect()
    policy.learn_mode.forward(rollout)
    other = pickle.loads(pickle.dumps(policy))
    before = [p.detach().clone() for p in other.model.parameters()]
    for one in (policy, other):
        one.learn_mode.forward(rollout)
    pairs = zip(policy.model.parameters(), other.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not all(torch.equal(a, b) for a, b in zip(before, other.model.parameters(), strict=True))


@pytest.mark.slow
def test_encoders_in_bfloat16_are_compiled_to_c(differences, compilations):
    model = {"encoder_dtype": "bfloat16", "encoder_hidden_size_list": [8]}
    policy, collector = trainee(
        "ppo", SeededEnv, learn={"compile": True, "epoch_per_collect": 1}, model=model
    )
    policy.learn_mode.forward(collector.collect())
    assert len(compilations) == 4
    assert 0 < max(differences) < 0.02


class Overwriting(GraphPool):
    """Puts the results of all calls where those of the first one lie, as a replay does."""

    def captured(self, function, name, generator=None):
        first = []

        def written(arguments):
            new = function(arguments)
            first.append(new)
            for old, value in zip(numbers_of(first[0]), numbers_of(new), strict=True):
                old.copy_(value)
            return first[0]

        return written


def numbers_of(gradient):
    return [*gradient.values, *gradient.metrics.values(), gradient.norm, gradient.bad]


@pytest.mark.parametrize("results", ["kept", "lost"])
def test_results_that_the_next_step_writes_over_are_kept(results, monkeypatch):
    learn = {"compile": False, "epoch_per_collect": 2, "batch_size": 16, "skip_bad_steps": 1}
    (plain, collector), (policy, _) = (
        trainee("ppo", learn=learn, model={"activation": "gelu"}) for _ in range(2)
    )
    gradients = policy.optimizer.gradients
    gradients.graph_pool, gradients.captured_size = Overwriting(), 16
    plain.optimizer.on_host, policy.optimizer.on_host = False, False
    if results == "lost":
        monkeypatch.setattr("ding_lite.fast.gradients._with_own_metrics", lambda gradient: gradient)
    rollout = collector.collect()
    expected, told = plain.learn_mode.forward(rollout), policy.learn_mode.forward(rollout)
    assert (told == pytest.approx(expected, rel=1e-5)) == (results == "kept")
    assert all(
        torch.equal(a, b) for a, b in zip(plain.model.parameters(), policy.model.parameters(), strict=True)
    )


def policy_by(path, **learn):
    """Returns a small policy whose gradient is taken in one of the three ways."""
    activation = "gelu" if path == "autograd" else "tanh"  # gelu has no closed form
    learn = {"compile": path == "compiled", "entropy_weight": 0.0, "grad_clip_type": None, **learn}
    policy, _ = trainee("ppo", SeededEnv, model={"activation": activation}, learn=learn)
    assert policy.optimizer.gradients.name_of(policy.loss) == path
    return policy


def batch_at_ratio(policy, log_ratio, advantage):
    obs, action, zeros = torch.linspace(-1, 1, 48).view(16, 3), torch.arange(16) % 3, torch.zeros(16)
    with torch.no_grad():
        log_prob = policy.distribution(obs, policy.model.compute_actor(obs)).log_prob(action)
    credit = dict(advantage=advantage, value=zeros, value_target=zeros)
    return Batch(obs=obs, action=action, log_prob=log_prob - log_ratio, **credit)


COMPILED = pytest.param("compiled", marks=pytest.mark.slow)  # by a C compiler
every_way = pytest.mark.parametrize("path", ["closed form", "autograd", COMPILED])


@every_way
def test_where_the_clip_holds_the_gradient_is_zero_at_any_ratio(path):
    """Half of the samples lie beyond a bound, by up to 500 nats, where exp overflows; the rest have r = 1."""
    policy = policy_by(path, dual_clip=3.0)
    advantage, beyond = torch.linspace(-1, 1, 16), torch.arange(16) % 2 == 0
    falls = (advantage < 0) & (torch.arange(16) % 4 == 0)  # below 1 - eps; the others above 1 + eps or c

    def gradient(far):
        log_ratio = torch.where(beyond, torch.where(falls, -far, far), 0.0)
        # A copy: a gradient in closed form is good until the next one.
        found = gradient_of(policy.optimizer, policy.loss, batch_at_ratio(policy, log_ratio, advantage))
        return [value.clone() for value in found.values], float(found.norm), float(found.bad)

    near, norm, bad = gradient(2.0)
    assert norm > 1e-3, "the other half has a gradient"
    for far in (88.0, 89.0, 100.0, 500.0):
        values, _, bad = gradient(far)
        assert bad == 0.0
        for a, b in zip(values, near, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


@every_way
def test_where_no_bound_holds_a_ratio_that_overflows_is_a_bad_step(path):
    policy = policy_by(path)
    batch = batch_at_ratio(policy, torch.full((16,), 500.0), -torch.ones(16))
    assert float(gradient_of(policy.optimizer, policy.loss, batch).bad) == 1.0


@pytest.mark.slow
def test_minibatches_of_all_sizes_take_two_graphs(traced, differences):
    policy, collector = trainee("ppo", learn=dict(compile=True))
    rollout = collector.collect()
    training_set = policy.sources["policy"].training_set(rollout)
    torch._dynamo.utils.counters.clear()
    for size in (24, 16, 16, 24, 13, 25, 2, 16):
        take_step(policy.optimizer, policy.loss, training_set.batch(torch.arange(size)))
    assert max(differences) == 0
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


@pytest.mark.slow
def test_schedules_move_on_and_nothing_is_compiled_again(traced, differences):
    schedules = dict(
        clip_schedule="linear",
        entropy_schedule="linear",
        lr_schedule="linear",
        value_clip=0.3,
        schedule_env_step=256,
    )
    torch._dynamo.utils.counters.clear()
    policy, collector = trainee("ppo", learn=dict(compile=True, epoch_per_collect=2, **schedules))
    told = [policy.learn_mode.forward(collector.collect()) for _ in range(4)]
    assert [round(one["clip_ratio"], 6) for one in told] == [0.2, 0.15, 0.1, 0.05]
    assert max(differences) == 0, "a schedule was taken for a constant"
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


class Tempered(PPOPolicy):
    """A loss with a Python number that changes from one iteration to the next."""

    temperature = 1.0

    def policy_loss(self, batch):
        loss, metrics = super().policy_loss(batch)
        return self.temperature * loss, metrics


@pytest.mark.slow
def test_a_number_of_a_loss_of_ones_own_is_not_taken_for_a_constant(traced, differences):
    policy, collector = trainee("ppo", learn=dict(compile=True, epoch_per_collect=1), cls=Tempered)
    for policy.temperature in (1.0, 3.0, 0.5):
        policy.learn_mode.forward(collector.collect())
    assert max(differences) == 0


class Peeking(PPOPolicy):
    """A loss that waits for a number, which no graph can hold."""

    def policy_loss(self, batch):
        loss, metrics = super().policy_loss(batch)
        return (loss if float(loss) > -100 else 2 * loss), metrics


def test_what_cannot_be_compiled_is_said_once_and_goes_on_as_it_is(traced):
    runs = {}
    for wish in (True, False):
        policy, collector = trainee("ppo", learn=dict(compile=wish, epoch_per_collect=2), cls=Peeking)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            policy.learn_mode.forward(collector.collect())
        runs[wish] = [p.detach().clone() for p in policy.model.parameters()]
        said = [str(w.message) for w in told if "policy.learn.compile" in str(w.message)]
        assert len(said) == wish
        assert all("goes on uncompiled" in line for line in said)
    assert all(torch.equal(a, b) for a, b in zip(*runs.values(), strict=True))


ENDED_COMPILER = """#!/bin/sh
case "$*" in *.main.cpp*) [ -e {mark} ] || {{ touch {mark}; kill -TERM $$; }} ;; esac
exec g++ "$@"
"""
COMPILES = """
import warnings
from worlds import trainee
# A graph that torch's cache on disk does not have.
policy, collector = trainee("ppo", learn=dict(compile=True), model=dict(encoder_hidden_size_list=[{width}]))
with warnings.catch_warnings():
    warnings.simplefilter("error")
    policy.learn_mode.forward(collector.collect())
"""


@pytest.mark.slow
def test_a_compiler_that_a_signal_ends_is_started_again(tmp_path):
    compiler, mark = tmp_path / "ended_g++", tmp_path / "ended"
    compiler.write_text(ENDED_COMPILER.format(mark=mark))
    compiler.chmod(0o755)
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests), str(tests / "envs"), str(tests.parent)])
    script = COMPILES.format(width=20 + time.time_ns() % 997)
    environment = {**os.environ, "CXX": str(compiler), "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert mark.exists()


def test_a_fault_of_the_loss_itself_is_its_own_error(traced):
    class Wrong(PPOPolicy):
        def policy_loss(self, batch):
            raise KeyError("mine")

    policy, collector = trainee("ppo", learn=dict(compile=True), cls=Wrong)
    with pytest.raises(KeyError, match="mine"):
        policy.learn_mode.forward(collector.collect())


def test_a_step_that_is_not_finite_is_guarded_as_ever(traced):
    policy, collector = trainee("ppo", learn=dict(compile=True, value_norm=False, skip_bad_steps=99))
    rollout = collector.collect()
    rollout.log_prob[:] = torch.nan
    before = [p.detach().clone() for p in policy.model.parameters()]
    assert policy.learn_mode.forward(rollout)["skipped_steps"] == 40
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))


def resolved(max_env_step, **policy):
    base = {"learn": {"epoch_per_collect": 10, "batch_size": 64}, "collect": {"n_sample": 640}}
    config = compile_config(
        {"env": {"type": LengthEnv}, "max_env_step": max_env_step, "policy": merged(base, policy)}
    )
    return config.values.policy.learn.compile


def test_length_decides_and_what_is_asked_for_stands():
    # 100 steps an iteration of 640.
    long = 640 * COMPILE_FROM // 100
    assert (resolved(long), resolved(long - 640)) == (WITHOUT_CLOSED_FORM, False)
    assert resolved(1000, learn={"compile": True}) is True
    assert resolved(10**9, learn={"compile": False}) is False
    phases = {"aux_train_epoch": 6}
    # PPG: 1 epoch of both losses and 6 of the auxiliary phase, of 10 minibatches.
    of_ppg = {"type": "ppg", "learn": phases}
    config = {"env": {"type": LengthEnv}, "policy": merged(of_ppg, {"collect": {"n_sample": 640}})}
    for steps, wish in (
        (640 * COMPILE_FROM // 70 + 640, WITHOUT_CLOSED_FORM),
        (640 * COMPILE_FROM // 70 - 640, False),
    ):
        values = compile_config({**config, "max_env_step": steps}).values
        assert values.policy.learn.compile == wish


@pytest.mark.parametrize("kind", ["ppo_offpolicy", "ppg_offpolicy"])
def test_steps_that_are_asked_for_outright_are_the_planned_ones(kind):
    def planned(steps):
        learn = {"update_per_collect": steps, "batch_size": 64}
        own = {"type": kind, "collect": {"n_sample": 640}, "learn": learn}
        learn |= {"aux_train_epoch": 0} if kind == "ppg_offpolicy" else {}
        config = {"env": {"type": LengthEnv}, "max_env_step": 640 * COMPILE_FROM // 100, "policy": own}
        return compile_config(config).values.policy.learn.compile

    assert (planned(99), planned(100)) == (False, WITHOUT_CLOSED_FORM)
    assert planned(None) is False  # 3 uses at most


def test_the_limit_of_the_command_line_counts_and_a_resumed_run_stays_what_it_was():
    config = compile_config({"env": {"type": LengthEnv}, "max_env_step": 10**9})
    assert config.values.policy.learn.compile == WITHOUT_CLOSED_FORM
    short = config.replaced(max_env_step=1000)
    assert short.values.policy.learn.compile is False
    assert short.replaced(max_env_step=10**9).values.policy.learn.compile == WITHOUT_CLOSED_FORM
    assert config.replaced(seed=3).values.policy.learn.compile == WITHOUT_CLOSED_FORM
    few, many = (config.replaced(max_train_iter=n).values for n in (COMPILE_FROM - 1, COMPILE_FROM))
    assert (few.policy.learn.compile, many.policy.learn.compile) == (False, WITHOUT_CLOSED_FORM)
    again = compile_config(short.as_json(), {"max_env_step": 10**9})  # as --resume does
    assert again.values.policy.learn.compile is False


@pytest.mark.daily(1)
@pytest.mark.parametrize(("planned", "activation"), [(1000, "gelu"), (10**9, "gelu"), (10**9, "tanh")])
def test_a_profile_is_of_what_the_run_would_be(planned, activation, traced):
    env = {"env_id": "CartPole-v1", "collector_env_num": 2, "evaluator_env_num": 1}
    policy = {
        "learn": {"epoch_per_collect": 1},
        "collect": {"n_sample": 64},
        "model": {"activation": activation},
    }
    found = profile(
        compile_config({"max_env_step": planned, "env": env, "policy": policy}), iterations=1, warm_up=0
    )
    # Steps with a closed form are not compiled unless that is asked for.
    assert found.compiled == (planned == 10**9 and activation == "gelu")


def test_unasked_only_the_cpu_compiles_and_only_where_there_is_a_compiler(monkeypatch):
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert may_compile(WITHOUT_CLOSED_FORM, cpu)
    assert not may_compile(WITHOUT_CLOSED_FORM, gpu)
    assert not may_compile(True, gpu), "there, kernels are captured"
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert not may_compile(WITHOUT_CLOSED_FORM, cpu)
    assert may_compile(True, cpu)  # as asked; that there is none is said where it fails
