"""Detects common faults of a training run from its metrics, and names the config key to change.

Each rule looks at the means of the last iterations. The run reports a finding when it appears, and again at
the end. The thresholds are wide: a finding deserves attention; that there is none proves nothing.

Some rules are suspended while the returns improve, and none applies once the mean return is at
``env.stop_value``. Where the returns have risen to their best and stay there, small steps, a low explained
variance and large normalised errors are expected.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean as mean
from typing import Any

from ding_lite.run.hooks import Hook

WINDOW = 10  # iterations that the rules average over
IMPROVEMENT = 0.1  # of the range of all returns
STEADY = 0.02  # of the range of all returns: returns this near to the best are equal to it


@dataclass(frozen=True)
class Finding:
    """A fault of a run: its cause, the numbers that show it, and what to try."""

    cause: str
    evidence: str
    advice: str

    def __str__(self) -> str:
        return f"{self.cause}: {self.evidence}. Try: {self.advice}"


@dataclass(frozen=True)
class Recent:
    """What the rules see of a run.

    Attributes:
        means, last, first: each metric: its mean over the last iterations, and its values in the last and in
            the first iteration.
        fraction: share of max_env_step that is done.
        returns: the mean return of each iteration in which episodes ended.
        policy: the section ``policy`` of the config.
        numbers: how many numbers of a Box an action has.
        is_whole: whether ``returns`` has all iterations; after a resume it has not.
    """

    means: Mapping[str, float]
    last: Mapping[str, float]
    first: Mapping[str, float]
    fraction: float
    returns: Sequence[float]
    policy: Mapping[str, Any]
    numbers: int
    is_whole: bool

    def __getitem__(self, name: str) -> float:
        """Returns the mean of ``learn/<name>``; nan if the policy lacks it, so that no comparison holds."""
        return self.means.get(f"learn/{name}", math.nan)


def are_improving(returns: Sequence[float]) -> bool:
    """Returns whether the last returns are better than those after two thirds of the iterations.

    Better means by a tenth of the range of all returns, since they are noisy.
    """
    count, half = len(returns), WINDOW // 2
    if count < WINDOW:
        return False
    middle = min(2 * count // 3, count - half)
    gain = mean(returns[-half:]) - mean(returns[middle - half : middle])
    return gain > IMPROVEMENT * (max(returns) - min(returns))


def are_at_best(returns: Sequence[float]) -> bool:
    """Returns whether the last returns are all the best ones, and the first one was far below them."""
    if len(returns) < WINDOW:
        return False
    best = max(returns)
    spread = best - min(returns)
    return min(returns[-WINDOW:]) >= best - STEADY * spread and returns[0] < best - spread / 2


def findings_of(recent: Recent) -> Iterator[Finding]:
    """Yields what the rules find."""
    learn, done, returns = recent.policy["learn"], recent.fraction, recent.returns
    improving, at_best = are_improving(returns), are_at_best(returns)
    equal = bool(returns) and math.isclose(min(returns), max(returns), rel_tol=1e-9)  # but for rounding
    if equal and done > 0.2 and recent.is_whole:
        yield Finding(
            "all returns are equal",
            f"{recent.means['collect/episode_return']:g} in every episode so far",
            "rewards that tell good actions from bad ones (ding-lite check-env --rollout); if a reward is "
            'only hard to find, policy.intrinsic.type="rnd" or a higher policy.learn.entropy_weight',
        )

    kl, clipped = recent["approx_kl"], recent["clipfrac"]
    if kl > 0.1 or clipped > 0.5:
        yield Finding(
            "the policy moves too far in one iteration",
            f"approx_kl {kl:.3g} (usual: below 0.03), clipfrac {clipped:.2f} (usual: below 0.3)",
            "a lower policy.learn.learning_rate, fewer epochs, or policy.learn.target_kl=0.02",
        )

    entropy, start = recent["entropy_loss"], recent.first.get("learn/entropy_loss", math.nan)
    deterministic = not recent.numbers and entropy < 0.05  # so it cannot move any more
    hardly_moves = kl < 1e-6 and recent["cur_lr"] > 0 and done < 0.9
    if hardly_moves and not (deterministic or improving or at_best or equal):
        yield Finding(
            "the policy hardly moves",
            f"approx_kl {kl:.1e} at learning rate {recent['cur_lr']:.1e}",
            "a higher policy.learn.learning_rate",
        )

    # If all returns are nearly equal, there is no variance to explain, and the error is small: a twentieth of
    # the variance of normalised returns, or of the squared mean of returns that are not. While returns
    # improve, a network that learned the last ones lags behind: half, still below the error of a constant.
    scale = 1.0 if learn.get("value_norm") else recent["value_mean"] ** 2
    small_error = recent["value_loss"] < (0.5 if improving else 0.05) * scale
    explained = recent["explained_variance"]
    if explained < 0.0 and done > 0.2 and not (small_error or at_best):
        scaled = learn.get("value_norm") or recent.policy.get("normalize", {}).get("reward")
        yield Finding(
            "the value network predicts worse than a constant would",
            f"explained_variance {explained:.2f} over the last {WINDOW} iterations (1 is perfect)",
            "a lower policy.collect.discount_factor, a higher policy.learn.learning_rate"
            + ("" if scaled else ", or policy.learn.value_norm=True: the returns are not normalised"),
        )

    # The entropy of a Box has no lower bound: a loss of 4 nats in a number is a standard deviation 55 times
    # smaller. Runs of Reacher that reach the published return lose 3.9.
    bound = start - 4.0 * recent.numbers if recent.numbers else 0.02 * start
    if entropy < bound and done < 0.5 and not improving:
        yield Finding(
            "the policy has stopped exploring early",
            f"entropy {entropy:.3g}, at first {start:.3g}, with {1 - done:.0%} of the run left",
            "a higher policy.learn.entropy_weight, or a lower policy.learn.learning_rate",
        )

    if recent["obs_clipped"] > 0.02:
        yield Finding(
            "observations lie outside their scale",
            f"{recent['obs_clipped']:.1%} of the numbers are clipped at policy.normalize.obs_clip",
            'policy.normalize.obs="initial", a larger policy.normalize.obs_samples, or a higher '
            "policy.normalize.obs_clip: a running scale follows the observations that are frequent, not "
            "those that episodes start with",
        )

    if (aux_kl := recent.last.get("learn/aux_kl", math.nan)) > 0.03:
        yield Finding(
            "the auxiliary phase moves the policy",
            f"KL {aux_kl:.3g} from the policy before it (usual: below 0.01)",
            "a higher policy.learn.aux_bc_weight, a lower policy.learn.aux_learning_rate, or "
            "policy.learn.value_norm=True",
        )


class HealthCheck(Hook):
    """Applies the rules to the metrics of every iteration, and keeps the findings.

    Args:
        policy: the section ``policy`` of a complete config.
        max_env_step: of the run.
        numbers: how many numbers of a Box an action has.
        stop_value: return at which the task is solved; None if there is none.

    Attributes:
        findings: all findings so far, by their causes.
    """

    def __init__(
        self, policy: Mapping[str, Any], max_env_step: int, numbers: int, stop_value: float | None = None
    ) -> None:
        self.policy = policy
        self.max_env_step = max_env_step
        self.numbers = numbers
        self.stop_value = math.inf if stop_value is None else stop_value
        self.findings: dict[str, Finding] = {}
        self._first: dict[str, float] = {}
        self._recent: dict[str, deque[float]] = {}
        self._iterations = 0
        self._returns: list[float] = []

    def after_iter(self, pipeline: Any) -> None:
        progress = pipeline.progress
        is_whole = progress.iteration == self._iterations + 1
        for finding in self.check(progress.metrics, progress.env_step, is_whole=is_whole):
            pipeline.say(f"health: {finding}")

    def after_run(self, pipeline: Any) -> None:
        for finding in self.findings.values():
            pipeline.say(f"health, in this run: {finding}")

    def check(self, metrics: Mapping[str, float], env_step: int, *, is_whole: bool = True) -> list[Finding]:
        """Adds the metrics of one iteration, and returns the findings that are new.

        Args:
            metrics: of the iteration.
            env_step: of the run.
            is_whole: whether the iterations before it were added, too.
        """
        self._iterations += 1
        for name, value in metrics.items():
            self._recent.setdefault(name, deque(maxlen=WINDOW)).append(value)
        if self._iterations == 1:
            self._first = dict(metrics)
        if not math.isnan(episode_return := metrics.get("collect/episode_return", math.nan)):
            self._returns.append(episode_return)
        if self._iterations < WINDOW:
            return []
        means = {name: mean(values) for name, values in self._recent.items()}
        if means.get("collect/episode_return", math.nan) >= self.stop_value:
            return []
        recent = Recent(
            means=means,
            last={name: values[-1] for name, values in self._recent.items()},
            first=self._first,
            fraction=env_step / self.max_env_step,
            returns=self._returns,
            policy=self.policy,
            numbers=self.numbers,
            is_whole=is_whole,
        )
        new = [finding for finding in findings_of(recent) if finding.cause not in self.findings]
        self.findings |= {finding.cause: finding for finding in new}
        return new
