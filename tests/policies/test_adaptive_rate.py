"""The learning rate that follows the KL: ``lr_schedule="adaptive"``."""

import pytest
from small_worlds import SeededBox, SeededEnv
from worlds import small_config, trainee

from ding_lite import PPOPolicy, SerialPipeline, compile_config
from ding_lite.errors import ConfigError, ContractError
from ding_lite.rl.losses import approx_kl
from ding_lite.rl.schedules import adapted_rate


def adaptive(kind, world, monkeypatch, desired_kl, **learn):
    """Returns a policy, its collector, and the list of (rate before, KL, rate after) of its passes."""
    learn = {"lr_schedule": "adaptive", "desired_kl": desired_kl, "learning_rate": 1e-3, **learn}
    policy, collector = trainee(kind, world, learn=learn)
    seen = []

    def noted(rate, kl, desired):
        seen.append((rate, kl, adapted_rate(rate, kl, desired)))
        assert (rate, desired) == (policy.optimizer.learning_rate, desired_kl)
        return seen[-1][2]

    monkeypatch.setattr("ding_lite.policies.ppo.adapted_rate", noted)
    return policy, collector, seen


@pytest.mark.parametrize("world", [SeededEnv, SeededBox])
@pytest.mark.parametrize("kind", ["ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy"])
def test_each_pass_of_the_policy_changes_the_rate_of_the_next(kind, world, monkeypatch):
    policy, collector, seen = adaptive(kind, world, monkeypatch, 1e-9)
    kls, of_loss = [], policy.policy_loss

    def policy_loss(batch):
        kls.append(float(approx_kl(batch.dist.log_prob(batch.action) - batch.log_prob).detach()))
        return of_loss(batch)

    monkeypatch.setattr(policy, "policy_loss", policy_loss)
    metrics = policy.learn_mode.forward(collector.collect())
    assert metrics["cur_lr"] == seen[-1][2] == policy.optimizer.learning_rate
    assert [after for *_, after in seen[:-1]] == [before for before, *_ in seen[1:]]
    assert seen[-1][2] == pytest.approx(max(1e-5, 1e-3 / 1.5 ** len(seen)), rel=1e-12)
    steps = len(kls) // len(seen)
    found = [sum(kls[i : i + steps]) / steps for i in range(0, len(kls), steps)]
    assert [kl for _, kl, _ in seen] == pytest.approx(found, rel=1e-4)


def test_a_kl_that_is_too_small_raises_the_rate(monkeypatch):
    policy, collector, seen = adaptive("ppo", SeededEnv, monkeypatch, 10.0, epoch_per_collect=3)
    policy.learn_mode.forward(collector.collect())
    assert policy.learning_rate == pytest.approx(1.5**3 * 1e-3)
    policy.learn_mode.forward(collector.collect())
    assert seen[3][0] == pytest.approx(1.5**3 * 1e-3), "the next iteration goes on from there"
    assert policy.learning_rate == 1e-2, "the highest rate"


def test_ppgs_other_optimisers_follow_the_rate(monkeypatch):
    learn = {"critic_epoch_per_collect": 2}
    policy, collector, seen = adaptive("ppg", SeededEnv, monkeypatch, 10.0, **learn)
    policy.learn_mode.forward(collector.collect())
    rates = {policy.value_optimizer.learning_rate, policy.auxiliary.optimizer.learning_rate}
    assert rates == {policy.learning_rate} == {seen[-1][2]}


def test_the_rate_brings_the_kl_near_the_desired_one():
    learn = {"lr_schedule": "adaptive", "desired_kl": 0.01, "learning_rate": 1e-5}
    policy, collector = trainee("ppo", SeededBox, n_sample=256, learn=learn)
    kls = [policy.learn_mode.forward(collector.collect())["approx_kl"] for _ in range(12)]
    assert kls[0] < 0.002
    assert 0.004 < sum(kls[6:]) / 6 < 0.025


def test_a_resumed_run_goes_on_with_its_rate(tmp_path):
    learn = {"lr_schedule": "adaptive", "desired_kl": 10.0, "learning_rate": 1e-4}
    pipeline = SerialPipeline(small_config(policy={"learn": learn}), folder=tmp_path / "run")
    next(iter(pipeline))
    pipeline.close()
    assert pipeline.policy.learning_rate > 2e-4
    with SerialPipeline.resume(tmp_path / "run", trust=["small_worlds"]) as resumed:
        assert resumed.policy.learning_rate == pipeline.policy.learning_rate


def test_a_policy_that_does_not_say_its_kl_is_refused():
    class Silent(PPOPolicy):
        def policy_loss(self, batch):
            return -(batch.dist.log_prob(batch.action) * batch.advantage).mean(), {}

    policy, collector = trainee("ppo", cls=Silent, learn={"lr_schedule": "adaptive"})
    with pytest.raises(ContractError, match=r"lr_schedule.*approx_kl.*Silent\.policy_loss"):
        policy.learn_mode.forward(collector.collect())


def test_a_dual_clip_beside_a_penalty_is_refused():
    learn = {"kl_penalty": 1.0, "dual_clip": 3.0}
    with pytest.raises(ConfigError, match=r"policy\.learn\.dual_clip.*kl_penalty"):
        compile_config({"env": {"env_id": "CartPole-v1"}, "policy": {"learn": learn}})
