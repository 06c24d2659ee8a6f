"""Compiled and captured steps: the same numbers, and nothing that changes is taken for a constant."""

import pytest
import torch
from worlds import trainee

from ding_lite import PPOPolicy
from ding_lite.errors import ConfigError
from ding_lite.fast.gradients import Gradients, by_autograd


@pytest.mark.slow
def test_compiled_steps_agree_with_autograd_while_schedules_and_sizes_change(monkeypatch):
    found, by_compiled = [], Gradients._by_compiled

    def compared(self, arguments, batch):
        mine, its = by_compiled(self, arguments, batch), by_autograd(*arguments, batch)
        assert list(mine.metrics) == list(its.metrics)
        pairs = list(zip(mine.values, its.values, strict=True))
        pairs += zip(mine.metrics.values(), its.metrics.values(), strict=True)
        found.append(max(float((a - b).abs().max() / b.abs().max().clamp_min(1)) for a, b in pairs))
        return mine

    monkeypatch.setattr(Gradients, "_by_compiled", compared)
    torch._dynamo.utils.counters.clear()
    schedules = {"clip_schedule": "linear", "entropy_schedule": "linear", "lr_schedule": "linear"}
    learn = {"compile": True, "epoch_per_collect": 2, "batch_size": 24, "value_clip": 0.3, **schedules}
    policy, collector = trainee("ppo", learn={**learn, "schedule_env_step": 192})
    told = [policy.learn_mode.forward(collector.collect()) for _ in range(3)]
    assert [round(one["clip_ratio"], 4) for one in told] == [0.2, 0.1333, 0.0667]
    assert len(found) == 3 * 2 * 3
    assert 0 < max(found) < 1e-5, "0: it was not compiled"
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2, "full minibatches, and all others"


class Peeking(PPOPolicy):
    """A loss that waits for a number, which no graph can hold."""

    def policy_loss(self, batch):
        loss, metrics = super().policy_loss(batch)
        return (loss if float(loss) > -100 else 2 * loss), metrics


@pytest.mark.slow
def test_a_loss_that_cannot_be_compiled_is_an_error_that_names_the_key():
    policy, collector = trainee("ppo", learn={"compile": True}, cls=Peeking)
    with pytest.raises(ConfigError, match="policy.learn.compile: .* set it to False"):
        policy.learn_mode.forward(collector.collect())


class Overwriting:
    """Puts the results of all calls where those of the first one lie, as a replay does."""

    def __init__(self, pool, function, name):
        self.function, self.calls = function, []

    def __call__(self, arguments):
        self.calls.append(self.function(arguments))
        old, new = ([*x.values, *x.metrics.values(), x.total] for x in (self.calls[0], self.calls[-1]))
        torch._foreach_copy_(old, new)
        return self.calls[0]


def test_results_that_the_next_replay_writes_over_are_kept(monkeypatch):
    monkeypatch.setattr("ding_lite.fast.gradients.CapturedFunction", Overwriting)
    learn = {"epoch_per_collect": 2, "batch_size": 24}
    (plain, collector), (policy, _) = (
        trainee("ppo", learn=learn, model={"activation": "gelu"}) for _ in range(2)
    )
    policy.optimizer.gradients.captured = True
    plain.optimizer.on_host, policy.optimizer.on_host = False, False
    rollout = collector.collect()
    expected, told = plain.learn_mode.forward(rollout), policy.learn_mode.forward(rollout)
    assert told == pytest.approx(expected, rel=1e-5)
    assert all(
        torch.equal(a, b) for a, b in zip(plain.model.parameters(), policy.model.parameters(), strict=True)
    )
