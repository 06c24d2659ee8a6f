"""The KL penalty whose coefficient adapts: arXiv:1707.06347, section 4."""

import pytest
import torch
from small_worlds import SeededBox, SeededEnv
from worlds import digest, small_config, trainee

from ding_lite import SerialPipeline, compile_config
from ding_lite.errors import ConfigError
from ding_lite.rl.schedules import AdaptivePenalty

KINDS = ("ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy")


@pytest.mark.parametrize(
    ("kl", "factor"),
    [(0.0, 0.5), (0.0066, 0.5), (0.0067, 1.0), (0.01, 1.0), (0.0149, 1.0), (0.0151, 2.0), (1.0, 2.0)],
)
def test_beta_is_halved_and_doubled_outside_of_a_factor_of_1_5(kl, factor):
    penalty = AdaptivePenalty(3.0, 0.01, torch.device("cpu"))
    penalty.update(kl)
    assert float(penalty.value) == 3.0 * factor


@pytest.mark.parametrize("kl", [0.0, 1e9])
def test_beta_returns_however_long_the_kl_was_on_one_side(kl):
    penalty = AdaptivePenalty(3.0, 0.01, torch.device("cpu"))
    for _ in range(2000):
        penalty.update(kl)
    for _ in range(20):
        penalty.update(1.0 if kl == 0 else 0.0)
    assert float(penalty.value) == 3.0


@pytest.mark.parametrize("world", [SeededEnv, SeededBox])
@pytest.mark.parametrize("kind", KINDS)
def test_the_kl_is_that_from_the_policy_before_the_iteration_to_the_one_after(kind, world):
    learn = {"kl_penalty": 0.25, "kl_target": 0.01, "learning_rate": 1e-2}
    if kind.startswith("ppg"):
        learn["aux_train_epoch"] = 0
    policy, collector = trainee(kind, world, learn=learn)
    expected = 0.25
    for _ in range(3):
        sample = policy.collect_mode.get_train_sample(collector.collect())
        data = sample
        with torch.no_grad():
            obs = sample.obs.flatten(0, 1)
            before = policy.distribution(obs, policy.model.compute_actor(obs))
        metrics = policy.learn_mode.forward(sample)
        assert metrics["kl_coefficient"] == expected
        if policy.cfg.on_policy:
            with torch.no_grad():
                after = policy.distribution(obs, policy.model.compute_actor(obs))
                kl = float(before.kl(after)[data.valid.flatten()].mean())
            assert metrics["kl_of_iteration"] == pytest.approx(kl, rel=1e-4)
            assert kl > 1e-4
        kl = metrics["kl_of_iteration"]
        expected *= 0.5 if kl < 0.01 / 1.5 else 2.0 if kl > 0.015 else 1.0
        assert float(policy.adaptive_penalty.value) == expected
    assert set(metrics) >= {"kl_coefficient", "kl_of_iteration"}
    assert {"kl_coefficient", "kl_of_iteration"} <= set(policy.learn_mode.monitor_vars())


def test_the_coefficient_is_in_the_loss():
    policy, collector = trainee("ppo", learn={"kl_penalty": 1.0, "kl_target": 0.01, "adv_norm": False})
    sample = policy.collect_mode.get_train_sample(collector.collect())
    policy.sources["policy"].push(sample)
    batch = next(iter(next(policy.sources["policy"].passes(policy.clip_ratio))))
    with torch.no_grad():
        for parameter in policy.model.actor_head.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    loss, metrics = policy.loss(batch)
    policy.adaptive_penalty.update(1.0)
    more, _ = policy.loss(batch)
    assert float((more - loss).detach()) == pytest.approx(float(metrics["kl"].detach()), rel=1e-3)


def test_a_policy_that_does_not_learn_has_the_coefficient_of_its_losses():
    policy, _ = trainee("ppo", learn={"kl_penalty": 1.0, "kl_target": 0.01})
    policy.adaptive_penalty.update(1.0)
    spaces = policy.obs_space, policy.action_space
    other = type(policy)(policy.cfg, *spaces, enable_field=["collect", "eval"])  # as replay_step makes it
    other.load_state_dict(policy.state_dict())
    assert float(other.adaptive_penalty.value) == 2.0


@pytest.mark.slow
def test_a_run_keeps_the_kl_near_its_target_and_resumes_bit_equal(tmp_path):
    config = dict(
        num_threads=1,
        max_env_step=4096,
        env=dict(env_id="CartPole-v1", collector_env_num=4, evaluator_env_num=1, n_evaluator_episode=1),
        policy=dict(
            collect=dict(n_sample=256),
            learn=dict(kl_penalty=100.0, kl_target=0.01, learning_rate=1e-3),
            eval=dict(eval_freq=0),
        ),
    )
    kls, straight = [], SerialPipeline(config, folder=tmp_path / "straight")
    for progress in straight:
        kls.append(progress.metrics["learn/kl_of_iteration"])
    assert 0.005 < sum(kls[8:]) / len(kls[8:]) < 0.02, (
        "from 16 of them, with a first coefficient far too large"
    )
    for _ in SerialPipeline(config, folder=tmp_path / "resumed", max_env_step=2048):
        pass
    resumed = SerialPipeline.resume(tmp_path / "resumed", max_env_step=4096)
    for _ in resumed:
        pass
    assert digest(straight.state_dict()["policy"]) == digest(resumed.state_dict()["policy"])
    assert float(straight.policy.adaptive_penalty.value) < 100.0


def test_a_resumed_run_begins_the_coefficient_anew_if_its_start_changed_or_it_had_none(tmp_path):
    def saved(name, **learn):
        pipeline = SerialPipeline(small_config(policy={"learn": learn}), folder=tmp_path / name)
        for progress in pipeline:
            if progress.iteration == 3:
                break
        pipeline.close()
        penalty = pipeline.policy.adaptive_penalty
        return None if penalty is None else float(penalty.value)

    def resumed(name, **changes):
        changes = {f"policy.learn.{key}": value for key, value in changes.items()}
        with SerialPipeline.resume(tmp_path / name, changes=changes) as pipeline:
            found = float(pipeline.policy.adaptive_penalty.value)
            next(iter(pipeline))
            return found

    adapted = saved("adaptive", kl_penalty=1.0, kl_target=0.01)
    assert adapted != 1.0
    assert resumed("adaptive", learning_rate=1e-3) == adapted
    assert resumed("adaptive", kl_penalty=50.0) == 50.0
    saved("plain")
    assert resumed("plain", kl_penalty=2.0, kl_target=0.01) == 2.0


def test_a_dual_clip_beside_a_penalty_is_refused():
    learn = {"kl_penalty": 1.0, "dual_clip": 3.0}
    with pytest.raises(ConfigError, match=r"policy\.learn\.dual_clip.*kl_penalty"):
        compile_config({"env": {"env_id": "CartPole-v1"}, "policy": {"learn": learn}})


def test_a_target_without_a_penalty_is_refused():
    with pytest.raises(ConfigError, match=r"kl_target.*kl_penalty.*target_kl"):
        compile_config({"env": {"env_id": "CartPole-v1"}, "policy": {"learn": {"kl_target": 0.01}}})


@pytest.mark.parametrize("kind", ["ppo", "ppo_offpolicy"])
def test_rows_that_are_not_valid_are_not_in_the_kl_of_an_iteration(kind):
    learn = {"kl_penalty": 0.25, "kl_target": 0.01, "learning_rate": 1e-2}
    policy, collector = trainee(kind, autoreset="next_step", learn=learn)
    sample = collector.collect()
    valid = sample.valid.flatten()
    assert not valid.all()
    obs = sample.obs.flatten(0, 1).clone()
    with torch.no_grad():
        before = policy.distribution(obs, policy.model.compute_actor(obs))
    metrics = policy.learn_mode.forward(sample)
    with torch.no_grad():
        kl = before.kl(policy.distribution(obs, policy.model.compute_actor(obs)))
    assert metrics["kl_of_iteration"] == pytest.approx(float(kl[valid].mean()), rel=1e-4)
    assert float(kl.mean()) != pytest.approx(float(kl[valid].mean()), rel=1e-3)
