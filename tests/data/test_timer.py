"""Seconds of phases: they add up, and go where the time went."""

import time

import pytest
from worlds import trainee

from ding_lite.data.timer import PHASES, Timer


def test_phases_add_up_to_all_of_the_time():
    timer = Timer()
    clock = iter([1.0, 3.0, 7.0, 8.0, 10.0])
    timer.now = lambda: next(clock)
    for phase in ("env", "act", "env"):
        timer(phase)
    assert timer.take() == {"env": 2.0 + 1.0, "act": 4.0}
    assert timer.take() == {"env": 2.0}


@pytest.mark.parametrize("phase", ["env", "act", "advantages"])
def test_time_of_collecting_is_that_of_its_phase(phase):
    policy, collector = trainee("ppo", n_sample=32)

    def slow(function):
        seconds = 0.5 if phase == "advantages" else 0.01  # it is called once
        return lambda *arguments: (time.sleep(seconds), function(*arguments))[1]

    owner, method = {
        "env": (collector.envs, "receive"),
        "act": (policy, "_forward_collect"),
        "advantages": (policy, "_complete_rollout"),
    }[phase]
    setattr(owner, method, slow(getattr(owner, method)))
    collector.timer(PHASES[-1])
    collector.timer.take()
    collector.collect()
    collector.timer(PHASES[-1])
    seconds = collector.timer.take()
    assert max(seconds, key=seconds.get) == phase
