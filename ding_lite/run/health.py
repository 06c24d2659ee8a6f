"""Detects common faults of a training run from its metrics, and names the config key to change.

Each rule looks at the means of the last iterations. The run reports a finding when it appears, and again at
the end. The thresholds are wide: a finding deserves attention; that there is none proves nothing.

Some rules are suspended while the returns improve, and none applies once the mean return is at
``env.stop_value``. Where the returns have risen to their best and stay there, small steps, a low explained
variance and large normalised errors are expected. ``benchmarks/health.py`` counts the findings of finished
runs.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean as mean
from typing import Any

import gymnasium as gym

from ding_lite.data.episodes import SUCCESS
from ding_lite.envs.vector import RECENT_EPISODES
from ding_lite.models.encoders import has_image
from ding_lite.trees import box_size

WINDOW = 10  # iterations that the rules average over
IMPROVEMENT = 0.1  # of the range of all returns
STEADY = 0.02  # of the range of all returns: returns this near to the best are equal to it
# The prefixes of metrics of buffers, each with the section of the config that may limit its buffer.
BUFFERS = (
    *(("buffer", "replay_buffer"), ("buffer", "replay_buffer.policy")),
    *(("policy_buffer", "replay_buffer.policy"), ("value_buffer", "replay_buffer.value")),
)


@dataclass(frozen=True)
class Finding:
    """A fault of a run: its cause, the numbers that show it, and what to try."""

    cause: str
    evidence: str
    advice: str

    def __str__(self) -> str:
        return f"{self.cause}: {self.evidence}. Try: {self.advice}"


@dataclass(frozen=True)
class RecentMetrics:
    """The metrics of the last iterations and the settings of the run, as the rules see them.

    Attributes:
        means: mean of each metric over the last iterations.
        last: last value of each metric.
        first: metrics of the first iteration of this session.
        run_fraction: share of max_env_step that is done.
        improving: whether the returns of episodes have become better in the last third of this session.
        at_best: whether the returns of episodes have risen to their best, and stay there.
        equal_returns: whether no return of an episode has differed from the others.
        policy: the section ``policy`` of the config.
        has_images: whether the observation contains an image.
        numbers: how many numbers of a Box an action has.
        info_keys: keys of infos that the config names.
    """

    means: Mapping[str, float]
    last: Mapping[str, float]
    first: Mapping[str, float]
    run_fraction: float
    improving: bool
    at_best: bool
    equal_returns: bool
    policy: Mapping[str, Any]
    has_images: bool
    numbers: int
    info_keys: Sequence[str]

    def __getitem__(self, name: str) -> float:
        """Returns the mean of ``learn/<name>``; nan if the policy lacks it, so that no comparison holds."""
        return self.means.get(f"learn/{name}", math.nan)

    def newest(self, name: str) -> float:
        """Returns the last value of a metric that only some iterations have; nan if none had it."""
        return self.last.get(f"learn/{name}", math.nan)


def _returns_are_equal(recent: RecentMetrics) -> Finding | None:
    if not (recent.equal_returns and recent.run_fraction > 0.2):
        return None
    return Finding(
        "all returns are equal",
        f"{recent.means['collect/episode_return']:g} in every episode so far",
        "rewards that tell good actions from bad ones (ding-lite check-env --rollout); if a reward is only "
        'hard to find, policy.intrinsic.type="rnd" or a higher policy.learn.entropy_weight',
    )


def _steps_too_large(recent: RecentMetrics) -> Finding | None:
    kl, clipped = recent["approx_kl"], recent["clipfrac"]
    if not (kl > 0.1 or clipped > 0.5):
        return None
    return Finding(
        "the policy moves too far in one iteration",
        f"approx_kl {kl:.3g} (usual: below 0.03), clipfrac {clipped:.2f} (usual: below 0.3)",
        "a lower policy.learn.learning_rate, fewer epochs, or policy.learn.target_kl=0.02",
    )


def _steps_too_small(recent: RecentMetrics) -> Finding | None:
    deterministic = not recent.numbers and recent["entropy_loss"] < 0.05  # so it cannot move any more
    hardly_moves = recent["approx_kl"] < 1e-6 and recent["cur_lr"] > 0 and recent.run_fraction < 0.9
    if deterministic or recent.improving or recent.at_best or recent.equal_returns or not hardly_moves:
        return None
    return Finding(
        "the policy hardly moves",
        f"approx_kl {recent['approx_kl']:.1e} at learning rate {recent['cur_lr']:.1e}",
        "a higher policy.learn.learning_rate",
    )


def _value_worse_than_constant(recent: RecentMetrics) -> Finding | None:
    explained = recent["explained_variance"]
    # If all returns are nearly equal, there is no variance to explain, and the error is small: a twentieth of
    # the variance of normalised returns, or of the squared mean of returns that are not. While returns
    # improve, a network that learned the last ones lags behind: half, still below the error of a constant.
    scale = 1.0 if recent.policy["learn"].get("value_norm") else recent["value_mean"] ** 2
    small_error = recent["value_loss"] < (0.5 if recent.improving else 0.05) * scale
    if small_error or recent.at_best or not (explained < 0.0 and recent.run_fraction > 0.2):
        return None
    scaled = recent.policy["learn"].get("value_norm") or recent.policy.get("normalize", {}).get("reward")
    return Finding(
        "the value network predicts worse than a constant would",
        f"explained_variance {explained:.2f} over the last {WINDOW} iterations (1 is perfect, 0 a constant)",
        "a lower policy.collect.discount_factor, a higher policy.learn.learning_rate"
        + ("" if scaled else ", or policy.learn.value_norm=True: the returns are not normalised"),
    )


def _entropy_collapsed(recent: RecentMetrics) -> Finding | None:
    entropy, start = recent["entropy_loss"], recent.first.get("learn/entropy_loss", math.nan)
    # The entropy of a Box has no lower bound: a loss of 4 nats in a number is a standard deviation 55 times
    # smaller. Runs of Reacher that reach the published return lose 3.9.
    bound = start - 4.0 * recent.numbers if recent.numbers else 0.02 * start
    collapsed = entropy < bound
    if recent.improving or not (collapsed and recent.run_fraction < 0.5):
        return None
    return Finding(
        "the policy has stopped exploring early",
        f"entropy {entropy:.3g}, at first {start:.3g}, with {1 - recent.run_fraction:.0%} of the run left",
        "a higher policy.learn.entropy_weight, or a lower policy.learn.learning_rate",
    )


def _gradient_clipped_away(recent: RecentMetrics) -> Finding | None:
    learn = recent.policy["learn"]
    # Adam divides by the scale of the gradients, so raw returns of some hundreds, whose gradients are up to
    # about 1,000 times the bound, are learned from all the same.
    times = 1000 if recent.improving else 100
    large = (
        learn.get("grad_clip_type") == "clip_norm" and recent["grad_norm"] > times * learn["grad_clip_value"]
    )
    if recent.at_best or not large:
        return None
    return Finding(
        "nearly all of the gradient is clipped away",
        f"grad_norm {recent['grad_norm']:.3g}, policy.learn.grad_clip_value {learn['grad_clip_value']:g}",
        "policy.learn.value_norm=True or policy.normalize.reward=True: the scale of the returns is large",
    )


def _observations_clipped(recent: RecentMetrics) -> Finding | None:
    if not recent["obs_clipped"] > 0.02:
        return None
    return Finding(
        "observations lie outside their scale",
        f"{recent['obs_clipped']:.1%} of the numbers are clipped at policy.normalize.obs_clip",
        'policy.normalize.obs="initial", a larger policy.normalize.obs_samples, or a higher '
        "policy.normalize.obs_clip: a running scale follows the observations that are frequent, not those "
        "that episodes start with",
    )


def _auxiliary_phase_moves_the_policy(recent: RecentMetrics) -> Finding | None:
    epochs = recent.policy["learn"].get("aux_train_epoch", 0)
    kl = recent.newest("aux_kl")
    if not (epochs and kl > 0.03):
        return None
    return Finding(
        "the auxiliary phase moves the policy",
        f"KL {kl:.3g} from the policy before it (usual: below 0.01)",
        "a higher policy.learn.aux_bc_weight, a lower policy.learn.aux_learning_rate, or "
        "policy.learn.value_norm=True",
    )


def _buffer_holds_one_rollout(recent: RecentMetrics) -> Finding | None:
    kept = recent.policy.get("other", {}).get("replay_buffer", {})
    # PPG has a buffer for each network, or one for both, whose metrics have the names of PPO's.
    of_ppg = {f"replay_buffer.{name}": kept[name] for name in ("policy", "value") if name in kept}
    sections = {"replay_buffer": kept, **of_ppg}
    for prefix, section in BUFFERS:
        buffer, samples = sections.get(section, {}), recent[f"{prefix}_samples"]
        # With a smaller rollout nothing is kept because the settings say so; the first lines of the run tell
        # it.
        if not (recent[f"{prefix}_age"] == 0 and buffer.get("max_staleness")):
            continue
        capacity = buffer.get("replay_buffer_size")
        if capacity is not None and 2 * samples > capacity:
            return Finding(
                "the replay buffer holds the newest rollout only",
                f"rollouts of {samples:,.0f} samples, replay_buffer_size {capacity:,.0f}",
                f"policy.other.{section}.replay_buffer_size of several rollouts",
            )
    return None


def _unknown_info_keys(recent: RecentMetrics) -> Finding | None:
    # An environment without a notion of success need not say so.
    missing = [key for key in recent.info_keys if key != SUCCESS and f"collect/{key}" not in recent.last]
    count = "collect/episode_count"
    if not missing or recent.last.get(count, 0.0) - recent.first.get(count, 0.0) < RECENT_EPISODES:
        return None
    return Finding(
        "a key of env.info_keys is in no info",
        f"the last {RECENT_EPISODES} episodes ended without {', '.join(map(repr, missing))}",
        "the key as the environment writes it: only the info of an episode's last step counts",
    )


RULES: tuple[Callable[[RecentMetrics], Finding | None], ...] = (
    _returns_are_equal,
    _steps_too_large,
    _steps_too_small,
    _value_worse_than_constant,
    _entropy_collapsed,
    _gradient_clipped_away,
    _observations_clipped,
    _auxiliary_phase_moves_the_policy,
    _buffer_holds_one_rollout,
    _unknown_info_keys,
)


class Returns:
    """The mean returns of the iterations so far, those without one left out."""

    def __init__(self) -> None:
        self._all: list[float] = []
        self._lowest, self._best = math.inf, -math.inf

    def append(self, value: float) -> None:
        """Adds the mean return of an iteration; nan is none."""
        if not math.isnan(value):
            self._all.append(value)
            self._lowest, self._best = min(self._lowest, value), max(self._best, value)

    def are_improving(self) -> bool:
        """Returns whether the last returns are better than those after two thirds of the iterations.

        Better means by a tenth of the range of all returns, since they are noisy.
        """
        count, half = len(self._all), WINDOW // 2
        if count < WINDOW:
            return False
        middle = min(2 * count // 3, count - half)
        gain = mean(self._all[-half:]) - mean(self._all[middle - half : middle])
        return gain > IMPROVEMENT * (self._best - self._lowest)

    def are_at_best(self) -> bool:
        """Returns whether the last returns are all the best ones, and the first one was far below them."""
        if len(self._all) < WINDOW:
            return False
        spread = self._best - self._lowest
        first, worst_of_last = self._all[0], min(self._all[-WINDOW:])
        return worst_of_last >= self._best - STEADY * spread and first < self._best - spread / 2

    def are_equal(self) -> bool:
        """Returns whether there are returns, and all are equal but for rounding."""
        return bool(self._all) and math.isclose(self._lowest, self._best, rel_tol=1e-9)


class HealthCheck:
    """Applies the rules to the metrics of every iteration, and keeps the findings.

    Args:
        policy: the section ``policy`` of a complete config.
        max_env_step: of the run.
        obs_space, action_space: of one environment.
        stop_value: return at which the task is solved; None if there is none.
        info_keys: keys of infos that the config names.

    Attributes:
        findings: all findings so far, by their causes.
    """

    def __init__(
        self,
        policy: Mapping[str, Any],
        max_env_step: int,
        obs_space: gym.Space,
        action_space: gym.Space,
        stop_value: float | None = None,
        info_keys: Sequence[str] = (),
    ) -> None:
        self.policy = policy
        self.max_env_step = max_env_step
        self.has_images = has_image(obs_space)
        self.numbers = box_size(action_space)
        self.stop_value = math.inf if stop_value is None else stop_value
        self.info_keys = info_keys
        self.findings: dict[str, Finding] = {}
        self._first: dict[str, float] = {}
        self._recent: dict[str, deque[float]] = {}
        self._iterations = 0
        self._returns = Returns()

    def check(self, metrics: Mapping[str, float], env_step: int) -> list[Finding]:
        """Adds the metrics of one iteration, and returns the findings that are new."""
        self._iterations += 1
        for name, value in metrics.items():
            self._recent.setdefault(name, deque(maxlen=WINDOW)).append(value)
        if self._iterations == 1:
            self._first = dict(metrics)
        self._returns.append(metrics.get("collect/episode_return", math.nan))
        if self._iterations < WINDOW:
            return []
        means = {name: mean(values) for name, values in self._recent.items()}
        if means.get("collect/episode_return", math.nan) >= self.stop_value:
            return []
        recent = RecentMetrics(
            means=means,
            last={name: values[-1] for name, values in self._recent.items()},
            first=self._first,
            run_fraction=env_step / self.max_env_step,
            improving=self._returns.are_improving(),
            at_best=self._returns.are_at_best(),
            equal_returns=self._returns.are_equal(),
            policy=self.policy,
            has_images=self.has_images,
            numbers=self.numbers,
            info_keys=self.info_keys,
        )
        new_findings = []
        for rule in RULES:
            finding = rule(recent)
            if finding is not None and finding.cause not in self.findings:
                self.findings[finding.cause] = finding
                new_findings.append(finding)
        return new_findings
