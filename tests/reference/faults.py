"""Faults of the library's formulas, which the sweep must find.

Each replaces a public function of ``ding_lite.rl``, or a loss of a policy, by one that calls it and is wrong.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch

import ding_lite.policies.ppg  # noqa: F401  (all that imports these functions, before a fault is planted)
from reference.sweep import Case


class Fault(NamedTuple):
    """A fault.

    Attributes:
        where: module and name of a function, or of a class and a method.
        wrong: the faulty function, given the right one before its arguments.
        shows: whether a case may show it.
    """

    name: str
    where: str
    wrong: Callable[..., Any]
    shows: Callable[[Case], bool] = lambda case: True

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """Plants the fault inside of the block, wherever the library has imported the function."""
        module, _, path = self.where.partition(":")
        *owners, name = path.split(".")
        owner = importlib.import_module(module)
        for part in owners:
            owner = getattr(owner, part)
        right = vars(owner)[name]

        def wrong(*arguments: Any, **options: Any) -> Any:
            return self.wrong(right, *arguments, **options)

        modules = [module for key, module in sys.modules.items() if key.startswith("ding_lite")]
        with contextlib.ExitStack() as stack:
            for each in [owner, *modules]:
                if vars(each).get(name) is right:
                    stack.enter_context(mock.patch.object(each, name, wrong))
            yield


def no_gamma_in_delta(gae, reward, value, next_value, *flags, gamma, **options):
    return gae(reward, value, next_value / gamma, *flags, gamma=gamma, **options)


def own_weight_in_the_advantage(gae, *fields, weight=None, **options):
    advantage, target = gae(*fields, weight=weight, **options)
    return advantage if weight is None else weight * advantage, target


def ends_with_the_rollout(following_rows, valid):
    return following_rows(valid).clamp(max=len(valid) - 1)


def no_maximum_of_the_errors(value_error, value, target, old_value=None, value_clip=None, kind="mse"):
    if value_clip is not None:
        value = old_value + torch.clamp(value - old_value, -value_clip, value_clip)
    return value_error(value, target, kind=kind)


def no_gradient_of_the_ratio(reference_kl, log_prob, reference, collected, kind):
    return reference_kl(log_prob, reference, log_prob - (log_prob - collected).detach(), kind)


def no_value_in_the_auxiliary_phase(auxiliary_loss, policy, batch):
    total, terms = auxiliary_loss(policy, batch)
    return total - policy.cfg.learn.aux_value_weight * terms["aux_value_loss"], terms


def no_std_of_the_targets(value_loss, policy, batch):
    loss, terms = value_loss(policy, batch)
    return loss / policy.cfg.learn.value_norm_std**2, terms


def reversed_kl(kl, dist, other):
    return kl(other, dist)


GAE, LOSSES = "ding_lite.rl.returns:gae", "ding_lite.rl.losses"
FAULTS = (
    Fault("no gamma in delta", GAE, no_gamma_in_delta),
    Fault(
        "V-trace has a step's own weight in its advantage",
        GAE,
        own_weight_in_the_advantage,
        lambda case: "offpolicy" in case.policy["type"] and case.policy["recompute_adv"],
    ),
    Fault(
        "intrinsic returns end with the rollout",
        "ding_lite.rl.returns:following_rows",
        ends_with_the_rollout,
        lambda case: "intrinsic" in case.policy,
    ),
    Fault(
        "the value clip is no maximum",
        f"{LOSSES}:value_error",
        no_maximum_of_the_errors,
        lambda case: case.policy["learn"]["value_clip"] is not None,
    ),
    Fault(
        "no gradient of the ratio in kl_beta",
        f"{LOSSES}:reference_kl",
        no_gradient_of_the_ratio,
        lambda case: case.policy["learn"].get("kl_type") in ("k1", "k2", "k3"),
    ),
    Fault(
        "the auxiliary phase leaves the value",
        "ding_lite.policies.ppg:PPGPolicy.auxiliary_loss",
        no_value_in_the_auxiliary_phase,
        lambda case: case.policy["learn"].get("aux_train_epoch") and case.policy["learn"]["aux_value_weight"],
    ),
    Fault(
        "the value loss is weighed for targets of std 1",
        "ding_lite.policies.ppo:PPOPolicy.value_loss",
        no_std_of_the_targets,
        lambda case: case.policy["learn"]["value_norm"] and case.policy["learn"]["value_norm_std"] != 1,
    ),
    Fault(
        "the KL is reversed",
        "ding_lite.rl.distributions:Categorical.kl",
        reversed_kl,
        lambda case: (
            case.policy["learn"].get("kl_type") == "exact"
            and case.world.action in ("discrete", "multi_discrete", "tuple")
        ),
    ),
)
