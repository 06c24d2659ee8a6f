"""``ding-lite profile``: phases add up, are blamed rightly, and leave the run and the disk as they were."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from small_worlds import SeededEnv
from worlds import digest

from ding_lite import Hook, SerialPipeline, compile_config
from ding_lite.config.compile import find_config, read_config
from ding_lite.fast.acting import RAW
from ding_lite.policies.ppo import PPOPolicy
from ding_lite.tools.profile import (
    ADVICE,
    PHASES,
    Stopwatch,
    _watch_pipeline,
    advice,
    group_title,
    profile,
)


class SlowEnv(SeededEnv):
    def step(self, action):
        time.sleep(0.01)
        return super().step(action)


class SlowToAct(PPOPolicy):
    def _forward_collect(self, obs, hidden=None, first=None):
        time.sleep(0.02)
        return super()._forward_collect(obs)


class SlowToLearn(PPOPolicy):
    def policy_loss(self, batch):
        time.sleep(0.02)
        return super().policy_loss(batch)


def measured(config, **options):
    return profile(compile_config(config), iterations=2, warm_up=1, **options)


def config_of(world=SeededEnv, kind="ppo", **policy):
    env = dict(type=world, collector_env_num=2, evaluator_env_num=1, n_evaluator_episode=1, max_eval_steps=5)
    learn = dict(batch_size=16, **policy.pop("learn", {}))
    options = dict(type=kind, collect=dict(n_sample=32), learn=learn, eval=dict(eval_freq=0))
    return dict(env=env, policy={**options, **policy})


# ------------------------------------------------------------------ the clock


def fake_clock():
    """A clock, and a function that lets time pass."""
    seconds = [0.0]

    def passes(n):
        seconds[0] += n

    return passes, lambda: seconds[0]


def test_time_inside_another_phase_is_counted_once():
    passes, now = fake_clock()
    watch = Stopwatch(now)
    step = watch.timed(lambda: passes(3), "env")
    collect = watch.timed(lambda: (passes(1), step(), step(), passes(1)), "store")
    collect()
    assert (watch.seconds["store"], watch.seconds["env"]) == (2, 6)
    assert (watch.calls["store"], watch.calls["env"]) == (1, 2)


def test_whole_phase_takes_what_is_inside_it():
    passes, now = fake_clock()
    watch = Stopwatch(now)
    step = watch.timed(lambda: passes(3), "gradient")
    run = watch.timed(step, "auxiliary")
    watch.timed(lambda: (passes(1), run()), "auxiliary", whole=True, counts=False)()
    step()
    assert (watch.seconds["auxiliary"], watch.seconds["gradient"]) == (4, 3)
    assert (watch.calls["auxiliary"], watch.calls["gradient"]) == (1, 1)


def test_error_is_passed_on_and_leaves_the_clock_usable():
    passes, now = fake_clock()
    watch = Stopwatch(now)
    with pytest.raises(ZeroDivisionError):
        watch.timed(lambda: (passes(1), 1 / 0), "auxiliary", whole=True)()
    watch.timed(lambda: passes(2), "env")()
    assert (watch.seconds["auxiliary"], watch.seconds["env"]) == (1, 2)


# ------------------------------------------------------------------ what is measured


@pytest.mark.parametrize("kind", ["ppo", "ppg", "ppo_offpolicy"])
def test_phases_add_up_to_the_iterations(kind):
    found = measured(config_of(kind=kind))
    assert [phase.name for phase in found.phases] == list(PHASES)
    assert sum(phase.seconds for phase in found.phases) == pytest.approx(found.seconds, rel=0.1)
    assert all(phase.seconds >= 0 for phase in found.phases)
    assert next(p for p in found.phases if p.name == "other").seconds < 0.1 * found.seconds
    assert found.env_steps == 64
    assert {p.name: p.calls for p in found.phases}["env"] == 32


def test_steps_of_an_intrinsic_reward_are_gradient_steps():
    learn = {"epoch_per_collect": 1}
    plain, with_reward = (
        {phase.name: phase.calls for phase in measured(config_of(learn=dict(learn), **options)).phases}
        for options in ({}, {"intrinsic": {"type": "rnd", "epoch_per_collect": 1}})
    )
    assert plain["gradient"] == plain["optimiser"] == 4
    assert with_reward["gradient"] == with_reward["optimiser"] == 8


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("config", "blamed"),
    [
        (config_of(SlowEnv), "env"),
        (config_of(kind=SlowToAct), "act"),
        (config_of(kind=SlowToLearn), "updates"),
        (config_of(kind="ppg", learn=dict(aux_freq=1, aux_train_epoch=40)), "auxiliary"),
    ],
)
def test_blame_goes_where_the_time_went(config, blamed):
    name, share = measured(config).largest()
    assert name == blamed
    assert 0.4 < share <= 1


def test_seldom_phases_are_counted_as_they_fall_due():
    config = config_of(kind="ppg", learn=dict(aux_freq=2), eval=dict(eval_freq=32))
    config["checkpoint"] = dict(freq=64)
    found = profile(compile_config(config), iterations=4, warm_up=2)
    calls = {phase.name: phase.calls for phase in found.phases}
    assert (calls["auxiliary"], calls["evaluation"]) == (2, 4)
    assert calls["checkpoint"] >= 2


def test_default_covers_whole_auxiliary_cycles():
    found = profile(compile_config(config_of(kind="ppg", learn=dict(aux_freq=4))), warm_up=0)
    assert found.iterations == 12
    assert {p.name: p.calls for p in found.phases}["auxiliary"] == 3


def test_watched_run_does_and_learns_the_same(tmp_path):
    states, stored = [], []
    for name in ("plain", "watched"):
        pipeline = SerialPipeline(config_of(kind="ppg", learn=dict(aux_freq=2)), folder=tmp_path / name)
        if name == "watched":
            _watch_pipeline(pipeline)
        for _ in range(3):
            pipeline.step()
        states.append(digest({**pipeline.state_dict(), "clock": None}))
        stored.append(set(pipeline.collector.storage._arrays))
        pipeline.close()
    assert states[0] == states[1]
    assert stored[0] == stored[1] >= {"obs", RAW}, "in the same way"


def test_solved_task_is_measured_like_any_other():
    config = config_of(eval=dict(eval_freq=32))
    config["env"]["stop_value"] = -1e9
    found = measured(config)
    assert (found.iterations, found.env_steps) == (2, 64)


class Counts(Hook):
    """Counts iterations from the start of a run that trusts a module."""

    def before_run(self, pipeline):
        self.count = 0

    def after_iter(self, pipeline):
        assert pipeline.config.imports == ("own_module",)
        self.count += 1


def test_hooks_begin_as_in_a_run_and_modules_are_trusted():
    config = compile_config({**config_of(), "hooks": [Counts]})
    assert profile(replace(config, imports=("own_module",)), iterations=2).iterations == 2


def test_a_limit_of_optimiser_steps_adds_no_evaluations():
    found = measured({**config_of(), "max_train_iter": 1})
    assert {phase.name: phase.calls for phase in found.phases}["evaluation"] == 0


# ------------------------------------------------------------------ advice


@pytest.mark.parametrize("name", ["cartpole_ppo", "cartpole_ppg", "cartpole_ppo_offpolicy"])
def test_advice_names_keys_that_the_config_has(name):
    config = compile_config(read_config(find_config(name)))
    for group in set(PHASES.values()) - {"other"}:
        keys = [key for key, _, _ in advice(group, config)]
        assert keys or name == "cartpole_ppo" and group in ("auxiliary", "advantages")
        for key in keys:
            value = config.values
            for part in key.split("."):
                value = value[part]


@pytest.mark.parametrize(
    ("group", "key", "settled", "open_value"),
    [
        ("advantages", "policy.recompute_adv", False, True),
        ("env", "env.manager.double_buffer", True, False),
        ("act", "env.manager.double_buffer", True, False),
    ],
)
def test_what_is_as_advised_is_not_advised(group, key, settled, open_value):
    manager = {"env.manager.type": "subprocess"}
    for value, advised in ((settled, False), (open_value, True)):
        config = compile_config(read_config(find_config("cartpole_ppo")), overrides={**manager, key: value})
        assert (key in [row[0] for row in advice(group, config)]) == advised


def test_every_group_has_advice():
    assert set(ADVICE) == set(PHASES.values()) - {"other"}


@pytest.mark.parametrize(
    ("group", "words"), [("env", "env"), ("updates", "updates (minibatches, gradient, optimiser)")]
)
def test_the_largest_is_named_as_in_the_table(group, words):
    assert group_title(group) == words
