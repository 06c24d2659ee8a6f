"""Detects common faults of a training run from its metrics, and names the config key to change.

Each rule looks at the means of the last iterations; a learning rate of 0 is a finding at once, and a wait for
slow environments after ten seconds. The run reports a finding once, when it appears. The thresholds are wide:
a finding deserves attention; the absence of findings proves nothing. While all returns are equal, other rules
do not apply: there is nothing to learn from.

Some rules are suspended while the returns improve. Once the mean return is at ``env.stop_value``, only those
about the learning rate and the wait apply. Where the returns have risen to their best and stay there, small
steps, a low explained variance and large normalised errors are expected.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean as mean
from typing import Any

from ding_lite.run.hooks import Hook
from ding_lite.trees import box_size

WINDOW = 10  # iterations that the rules average over
EPISODES = 100  # number of equal returns that is a finding
IMPROVEMENT = 0.1  # of the range of all returns
LONG = 10.0  # seconds in environments after which waiting is a finding, even before the window is full
WAITING = 0.3  # CPU seconds per second in environments; below it they wait, as for a simulator
STEADY = 0.02  # of the range of all returns: returns this near to the best count as the best


def are_improving(returns: Sequence[float]) -> bool:
    """Returns whether the mean of the last returns is above the mean around two thirds of the iterations.

    It must be higher by a tenth of the range of all returns, since they are noisy.
    """
    count, half = len(returns), WINDOW // 2
    if count < WINDOW:
        return False
    middle = min(2 * count // 3, count - half)
    gain = mean(returns[-half:]) - mean(returns[middle - half : middle])
    return gain > IMPROVEMENT * (max(returns) - min(returns))


def are_at_best(returns: Sequence[float]) -> bool:
    """Returns whether all of the last returns are near the best one, and the first one was far below it."""
    if len(returns) < WINDOW:
        return False
    best = max(returns)
    spread = best - min(returns)
    return min(returns[-WINDOW:]) >= best - STEADY * spread and returns[0] < best - spread / 2


class HealthCheck(Hook):
    """Applies the rules to the metrics of every iteration, and keeps the findings.

    Attributes:
        findings: all findings so far: a line for each cause, with the numbers that show it and what to try.
    """

    def __init__(self) -> None:
        self.findings: dict[str, str] = {}
        self._start_entropy = math.nan
        self._recent: deque[Mapping[str, float]] = deque(maxlen=WINDOW)
        self._returns: list[float] = []  # the mean return of each iteration in which episodes ended
        self._iterations = 0

    def after_iter(self, pipeline: Any) -> None:
        progress = pipeline.progress
        if not self._iterations:
            self._start_entropy = progress.metrics.get("learn/entropy_loss", math.nan)
        self._iterations += 1
        self._recent.append(dict(progress.metrics))
        if progress.episodes:
            self._returns.append(progress.metrics["collect/episode_return"])
        for finding in self._rules(pipeline):
            cause = finding.partition(":")[0]
            if cause not in self.findings:
                self.findings[cause] = finding
                pipeline.say(f"health: {finding}")

    def _mean(self, name: str) -> float:
        """Returns the mean of a metric over the last iterations; nan without any, so comparisons fail."""
        values = [metrics[name] for metrics in self._recent if name in metrics]
        return mean(values) if values else math.nan

    def _rules(self, pipeline: Any) -> Iterator[str]:
        """Yields a line for each cause: the cause, the numbers that show it, and what to try."""
        cfg, progress, returns, last = pipeline.cfg, pipeline.progress, self._returns, self._recent[-1]
        learn, numbers = cfg.policy["learn"], box_size(pipeline.policy.action_space)
        done = progress.env_step / cfg.max_env_step
        left = f"with {max(0.0, 1 - done):.0%} of the run left"
        if last.get("learn/cur_lr") == 0.0:
            yield (
                f"the learning rate is 0: cur_lr 0 {left}, so nothing is learned. Try: a higher "
                "policy.learn.schedule_env_step, or policy.learn.lr_final above 0"
            )
        waited, computed = self._mean("time/env_s"), self._mean("time/cpu_s")
        is_long = self._iterations >= WINDOW or waited * self._iterations > LONG
        if cfg.env.manager.type in ("auto", "base") and is_long and computed < WAITING * waited:
            yield (
                f"the run waits for its environments: they take {waited:.2g} s of an iteration, which has "
                f"{computed:.2g} s of CPU time. Try: env.manager.type=subprocess, env.manager.worker_num as "
                "large as env.collector_env_num; ding-lite profile --tune finds the fastest numbers"
            )
        stop_value = math.inf if cfg.env.stop_value is None else cfg.env.stop_value
        if self._iterations < WINDOW or self._mean("collect/episode_return") >= stop_value:
            return

        unseen = [key for key in cfg.env.info_keys if key != "is_success" and f"collect/{key}" not in last]
        if unseen and last["collect/episode_count"] >= EPISODES:
            names = ", ".join(unseen)
            yield f"env.info_keys: no last info of {EPISODES} episodes had {names}. Try: another name"

        # Equal up to rounding. The returns before a resume are not known.
        equal = len(returns) > 1 and math.isclose(min(returns), max(returns), rel_tol=1e-9)
        is_whole = self._iterations == progress.iteration
        if equal and is_whole and last["collect/episode_count"] >= EPISODES:
            yield (
                f"no action has made a difference yet: all of the last {EPISODES} episodes returned "
                f"{returns[-1]:g}. Try: policy.intrinsic.type=rnd, start states that are nearer to the goal, "
                "or rewards that tell good actions from bad ones (ding-lite check-env)"
            )
            return

        improving, at_best = are_improving(returns), are_at_best(returns)
        kl, clipped = self._mean("learn/approx_kl"), self._mean("learn/clipfrac")
        if kl > 0.1 or clipped > 0.5:
            yield (
                f"the policy moves too far in one iteration: approx_kl {kl:.3g} (usual: below 0.03), "
                f"clipfrac {clipped:.2f} (usual: below 0.3). Try: a lower policy.learn.learning_rate, fewer "
                "epochs, or policy.learn.target_kl=0.02"
            )

        # If all returns are nearly equal, there is no variance to explain. The error is then small: below a
        # twentieth of the variance of normalised returns, or of the squared mean of raw ones. While returns
        # improve, the network lags behind: below a half, which is still less than the error of a constant.
        scale = 1.0 if learn.get("value_norm") else self._mean("learn/value_mean") ** 2
        small_error = self._mean("learn/value_loss") < (0.5 if improving else 0.05) * scale
        explained = self._mean("learn/explained_variance")
        if explained < 0.0 and done > 0.2 and not (small_error or at_best):
            scaled = learn.get("value_norm") or cfg.policy.get("normalize", {}).get("reward")
            unscaled = "" if scaled else ", or policy.learn.value_norm=True: the returns are not normalised"
            yield (
                f"the value network predicts worse than a constant would: explained_variance {explained:.2f} "
                f"over the last {WINDOW} iterations (1 is perfect). Try: a lower "
                f"policy.collect.discount_factor, a higher policy.learn.learning_rate{unscaled}"
            )

        # The entropy of a Box has no lower bound: 4 nats less for a number of an action are
        # a standard deviation 55 times smaller. Runs of Reacher that reach the published return lose 3.9.
        entropy, start = self._mean("learn/entropy_loss"), self._start_entropy
        bound = start - 4.0 * numbers if numbers else 0.02 * start
        if entropy < bound and done < 0.5 and not improving:
            yield (
                f"the policy has stopped exploring early: entropy {entropy:.3g}, at first {start:.3g}, "
                f"{left}. Try: a higher policy.learn.entropy_weight, or a lower policy.learn.learning_rate"
            )

        if (outside := self._mean("learn/obs_clipped")) > 0.02:
            yield (
                f"observations lie outside their scale: {outside:.1%} of the numbers are clipped at "
                "policy.normalize.obs_clip. Try: policy.normalize.obs=initial, since a running scale follows "
                "frequent observations, not the first ones of episodes; a larger obs_samples or obs_clip"
            )

        if (aux_kl := last.get("learn/aux_kl", math.nan)) > 0.03:
            yield (
                f"the auxiliary phase moves the policy: KL {aux_kl:.3g} from the policy before it (usual: "
                "below 0.01). Try: a higher policy.learn.aux_bc_weight, a lower "
                "policy.learn.aux_learning_rate, or policy.learn.value_norm=True"
            )
