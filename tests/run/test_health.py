"""The health check names the cause of real runs that were set up wrongly, and is silent on a good one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cases import slow_but
from gymnasium.spaces import Box, Discrete
from slow_worlds import SlowEnv
from small_worlds import LengthEnv
from worlds import finished

from ding_lite import SerialPipeline, compile_config
from ding_lite.run.health import WINDOW, HealthCheck
from ding_lite.run.progress import Progress

SICK = {
    "the policy moves too far in one iteration": dict(learn=dict(learning_rate=0.05)),
    "the value network predicts worse than a constant would": dict(
        learn=dict(learning_rate=1e-9), model=dict(init_gain=dict(value=10.0))
    ),
    "the policy has stopped exploring early": dict(learn=dict(learning_rate=0.5, entropy_weight=0.0)),
    "observations lie outside their scale": dict(normalize=dict(obs=True, obs_clip=0.5)),
    "the auxiliary phase moves the policy": dict(
        type="ppg",
        learn=dict(aux_bc_weight=0.0, aux_freq=2, aux_learning_rate=3e-2),
        model=dict(init_gain=dict(policy=1.0)),
    ),
}


def trained(policy, folder, n_sample=128, **env):
    env = env if "type" in env else {"env_id": "CartPole-v1"} | env
    config = dict(
        max_env_step=32 * n_sample,
        num_threads=1,
        env=dict(n_evaluator_episode=1, evaluator_env_num=1, max_eval_steps=20) | env,
        policy=dict(collect=dict(n_sample=n_sample), eval=dict(eval_freq=0)) | {"type": "ppo"} | policy,
        logger=dict(trackers=[]),
    )
    pipeline = finished(SerialPipeline(config, folder=folder))
    health = pipeline._all_hooks[0]
    return health.findings, (pipeline.folder / "log.txt").read_text()


@pytest.mark.parametrize("cause", slow_but(["the policy moves too far in one iteration"], SICK))
def test_cause_of_a_run_that_was_set_up_wrongly_is_named(cause, tmp_path):
    findings, log = trained(SICK[cause], tmp_path / "run")
    assert cause in findings
    assert log.count(f"{cause}: ") == 1, "reported once, when it appears"
    assert "policy." in findings[cause].split("Try: ")[1], "a key to change"


def test_keys_that_no_info_has_are_named(tmp_path):
    findings, _ = trained({}, tmp_path / "run", n_sample=512, info_keys=["is_success", "distence"])
    assert "had distence" in findings["env.info_keys"]


@pytest.mark.parametrize("kind", ["ppo", "ppg"])
def test_equal_returns_are_the_only_finding_of_a_constant_reward(kind, tmp_path):
    policy = dict(type=kind, learn=dict(value_norm=True))
    one_step = dict(type=LengthEnv, kwargs=dict(length=1))
    findings, log = trained(policy, tmp_path / "run", **one_step)
    assert set(findings) == {"no action has made a difference yet"}
    assert "health: no action has made a difference yet: all of the last 100 episodes returned 1" in log


@pytest.mark.parametrize("kind", ["base", pytest.param("subprocess", marks=pytest.mark.slow)])
def test_a_run_that_waits_for_its_environments_says_so(kind, tmp_path):
    env = dict(type=SlowEnv, kwargs=dict(pause=0.002), manager=dict(type=kind, worker_num=1))
    findings, log = trained({}, tmp_path / "run", 64, **env)
    assert ("the run waits for its environments" in findings) == (kind == "base")
    assert log.count("env.manager.type=subprocess, env.manager.worker_num") == (kind == "base")


@pytest.mark.parametrize(("seconds", "is_said"), [(20.0, True), (5.0, False)])
def test_a_wait_of_many_seconds_is_said_in_the_first_iteration(seconds, is_said):
    found = findings({"learn": {}}, [(1000, {"time/env_s": seconds, "time/cpu_s": 1.0})], max_env_step=10_000)
    assert ("the run waits for its environments" in found) == is_said


@pytest.mark.slow
def test_run_with_the_defaults_has_no_findings(tmp_path):
    findings, log = trained({}, tmp_path / "run", n_sample=512)
    assert not findings
    assert "health" not in log


def findings(policy, rows, max_env_step=1000, numbers=0, stop_value=None, first=1):
    """Returns the findings of a run whose config has this section ``policy``, by env steps and metrics."""
    env = SimpleNamespace(stop_value=stop_value, manager=SimpleNamespace(type="auto"), info_keys=[])
    space = Box(-1, 1, (numbers,)) if numbers else Discrete(2)
    pipeline = SimpleNamespace(
        cfg=SimpleNamespace(policy=policy, max_env_step=max_env_step, env=env),
        policy=SimpleNamespace(action_space=space),
        say=lambda line: None,
    )
    check = HealthCheck()
    for iteration, (env_step, metrics) in enumerate(rows, first):
        episodes = [None] if "collect/episode_return" in metrics else []
        metrics = {"collect/episode_count": 0.0, **metrics}
        pipeline.progress = Progress(env_step, iteration=iteration, metrics=metrics, episodes=episodes)
        check.after_iter(pipeline)
    return check.findings


RISING = [10.0 * i for i in range(40)]
STANDING = [10.0 * min(i, 12) for i in range(40)]


def findings_of(returns, entropy=0.001, stop_value=None, numbers=0):
    """The findings of a run whose entropy collapses after its first iteration, by the returns of episodes."""
    policy = {"learn": {"value_norm": False}, "normalize": {"reward": False}}
    rows = [
        (100 * (i + 1), {"learn/entropy_loss": entropy if i else 0.69, "collect/episode_return": value})
        for i, value in enumerate(returns)
    ]
    return set(findings(policy, rows, 10_000, numbers, stop_value))


@pytest.mark.parametrize(
    ("returns", "stop_value", "found"),
    [
        (RISING, None, False),
        (STANDING, None, True),
        (STANDING, 130.0, True),
        (STANDING, 45.0, False),  # 45 is the mean of the first ten
        ([-value for value in RISING], None, True),
        ([5.0, 6.0] * 20, None, True),
    ],
)
def test_a_policy_may_stop_exploring_while_its_returns_improve(returns, stop_value, found):
    cause = "the policy has stopped exploring early"
    assert findings_of(returns, stop_value=stop_value) == ({cause} if found else set())
    assert findings_of(returns, entropy=0.6, stop_value=stop_value) == set()


@pytest.mark.parametrize("numbers", [1, 6])
def test_each_number_of_a_box_may_lose_four_nats(numbers):
    """The entropy is the sum over the numbers; it starts at 0.69 here."""
    assert findings_of(STANDING, entropy=0.69 - 3.9 * numbers, numbers=numbers) == set()
    assert findings_of(STANDING, entropy=0.69 - 4.1 * numbers, numbers=numbers) != set()


NOTHING_TO_LEARN = {
    "learn/entropy_loss": 0.4,
    "learn/explained_variance": -2.0,
    "learn/value_loss": 1.0,
    "learn/value_mean": 100.0,
}
TO_THE_BEST = [min(20.0 + 20 * i, 500.0) for i in range(60)]


@pytest.mark.parametrize(
    ("returns", "found"),
    [
        (TO_THE_BEST, False),
        ([value - 8 * (i % 2) for i, value in enumerate(TO_THE_BEST)], False),  # sampled actions fail
        ([*TO_THE_BEST, *[400.0] * 30], True),  # it has fallen
        ([20.0 + (i % 7) for i in range(60)], True),  # it has never learned
        ([*[500.0] * 10, *[300.0] * 20, *[500.0] * 30], True),  # it has learned nothing that it did not have
    ],
)
def test_a_run_that_stays_at_its_best_returns_need_not_explain_their_variance(returns, found):
    policy = {"learn": {"value_norm": True}, "normalize": {"reward": False}}
    rows = []
    for i, value in enumerate(returns):
        metrics = {"learn/entropy_loss": 0.69} if i < 40 else NOTHING_TO_LEARN
        rows.append((10 * i, {**metrics, "collect/episode_return": value}))
    worse = {"the value network predicts worse than a constant would"}
    assert set(findings(policy, rows)) == (worse if found else set())


def test_a_policy_without_scales_is_checked_too():
    """One of a user's own, from Policy, has no section normalize."""
    cfg = compile_config({"env": {"env_id": "CartPole-v1"}, "policy": {"type": "ppo"}}).values.policy
    del cfg["normalize"]
    cfg.learn.value_norm = False
    metrics = {"learn/explained_variance": -2.0, "learn/value_loss": 9.0, "learn/value_mean": 1.0}
    found = findings(cfg, [(step, metrics) for step in range(1, 1001, 20)]).values()
    assert any("worse than a constant" in line and "value_norm=True" in line for line in found)


@pytest.mark.parametrize("is_whole", [True, False])
def test_equal_returns_since_a_resume_say_nothing_about_those_before(is_whole):
    rows = [(500, {"collect/episode_return": 500.0, "collect/episode_count": 100.0})] * WINDOW
    assert bool(findings({"learn": {}}, rows, first=1 if is_whole else 7)) == is_whole


@pytest.mark.parametrize(("loss", "found"), [(4.0, False), (6.0, True)])
def test_an_error_below_a_twentieth_of_the_squared_mean_is_small(loss, found):
    cause = "the value network predicts worse than a constant would"
    metrics = {"learn/explained_variance": -2.0, "learn/value_loss": loss, "learn/value_mean": 10.0}
    assert set(findings({"learn": {}}, [(500, metrics)] * WINDOW)) == ({cause} if found else set())
