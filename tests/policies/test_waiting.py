"""Between the gradient steps of a policy phase nothing reads a number that a device would be waited for.

On the host every call that would do so is noted; the same on a GPU, by torch's own word, where there is one.
The auxiliary phase is another matter: its samples are the host's.
"""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from worlds import trainee

from ding_lite import PPOPolicy
from ding_lite.policies.optimizer import GradientSteps, Optimizer
from ding_lite.rl import returns

# What needs the numbers of a tensor to know its result, or that result's size.
READING = (
    *("_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2", "unique_dim", "bincount"),
    *("multinomial", "repeat_interleave"),
)
KINDS = [
    ("ppo", {"recompute_adv": True}),
    ("ppo", {"recompute_adv": False}),
    ("ppo", {"learn": {"clip_schedule": "linear", "skip_bad_steps": 3, "grad_clip_type": "clip_value"}}),
    ("ppg", {"learn": {"aux_freq": 1000, "actor_epoch_per_collect": 2, "critic_epoch_per_collect": 3}}),
]


class Watched(TorchDispatchMode):
    """Notes gradient steps and, by their names, calls that read numbers; each phase ends with "looked"."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.seen = []
        for kind, name, note in (
            (torch.Tensor, "tolist", "tolist"),
            (torch.Tensor, "numpy", "numpy"),
            (torch.Tensor, "cpu", "cpu"),
            (Optimizer, "apply", "step"),
            (GradientSteps, "settle", "looked"),
        ):
            monkeypatch.setattr(kind, name, self.noted(getattr(kind, name), note))

    def noted(self, function, note):
        def call(*args, **kwargs):
            self.seen.append(note)
            return function(*args, **kwargs)

        return call

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        masks = name.startswith("index") and any(
            isinstance(x, torch.Tensor) and x.dtype == torch.bool
            for given in args
            if isinstance(given, list | tuple)
            for x in given
        )
        if name in READING or masks:
            self.seen.append(name)
        return function(*args, **(kwargs or {}))

    def between_steps(self):
        """Returns what was noted from the first to the last step of each phase."""
        found = []
        for k, note in enumerate(self.seen):
            if note == "step" and "step" in self.seen[k + 1 :]:
                rest = self.seen[k + 1 :]
                between = rest[: rest.index("step")]
                found += [] if "looked" in between else between
        return found


def learn_on_a_device(kind, monkeypatch, cls=None, **options):
    """Returns what was seen of one iteration of a policy that takes the host for a device."""
    policy, collector = trainee(kind, cls=cls, **{"model": {"activation": "gelu"}, **options})
    policy.learn_mode.forward(collector.collect())  # what is made once is made by now
    for optimizer, _ in policy.optimized_losses():
        optimizer.on_host = False
    rollout = collector.collect()
    with monkeypatch.context() as patches, Watched(patches) as watched:
        patches.setattr(returns, "_numpy_can_view", lambda x: False)
        policy.learn_mode.forward(rollout)
    assert watched.seen.count("step") >= 2 * 64 // 16
    return watched


@pytest.mark.daily(1)
@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_nothing_is_read_between_the_steps_of_a_phase(kind, options, monkeypatch):
    watched = learn_on_a_device(kind, monkeypatch, **options)
    assert watched.between_steps() == []
    assert watched.seen.count("looked") == {"ppo": 1, "ppg": 2}[kind]
    assert "tolist" in watched.seen, "what is read at the end is seen"


def test_target_kl_is_read_once_an_epoch(monkeypatch):
    watched = learn_on_a_device("ppo", monkeypatch, learn={"target_kl": 1e9, "epoch_per_collect": 3})
    assert watched.between_steps() == ["_local_scalar_dense"] * 2


class Reading(PPOPolicy):
    def policy_loss(self, batch):
        loss, told = super().policy_loss(batch)
        return loss * (1.0 if float(loss.detach()) < 1e9 else 2.0), told


def test_a_loss_that_reads_a_number_is_seen(monkeypatch):
    watched = learn_on_a_device("ppo", monkeypatch, cls=Reading, learn={"epoch_per_collect": 2})
    assert watched.between_steps() == ["_local_scalar_dense"] * 7


# ------------------------------------------------------------------ with a GPU


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_on_a_gpu_nothing_waits_for_it_between_the_steps(kind, options, monkeypatch):
    policy, collector = trainee(kind, device="cuda", **options)
    policy.learn_mode.forward(collector.collect())
    apply, look, steps = Optimizer.apply, GradientSteps.settle, []

    def first_or_later(self, gradient, bad):
        torch.cuda.set_sync_debug_mode("error")
        steps.append(gradient)
        apply(self, gradient, bad)

    def after_the_last(self):
        torch.cuda.set_sync_debug_mode("default")
        return look(self)

    monkeypatch.setattr(Optimizer, "apply", first_or_later)
    monkeypatch.setattr(GradientSteps, "settle", after_the_last)
    try:
        policy.learn_mode.forward(collector.collect())
        torch.cuda.set_sync_debug_mode("error")
        with pytest.raises(RuntimeError, match="synchroniz"):
            float(torch.ones((), device="cuda"))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(steps) >= 2 * 64 // 16
