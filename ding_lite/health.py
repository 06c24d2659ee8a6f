"""From the metrics of a run to a cause with a name, and the config key to change.

Each rule looks at the means of the last iterations; what it finds is said once, when it is found, and
again at the end of the run. The thresholds are wide: a finding is worth reading, silence proves nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

WINDOW = 10  # iterations that a rule looks back on


@dataclass(frozen=True)
class Finding:
    """What is wrong, by which numbers, and what to try."""

    cause: str
    evidence: str
    advice: str

    def __str__(self) -> str:
        return f"{self.cause}: {self.evidence}. Try: {self.advice}"


@dataclass(frozen=True)
class Glance:
    """What a rule sees: the mean of each metric over the window, its last value, and how far the run is."""

    means: Mapping[str, float]
    last: Mapping[str, float]
    first: Mapping[str, float]  # of the run
    share: float  # of max_env_step that is done
    policy: Mapping[str, Any]  # the section of the config
    continuous: bool  # whether a Box is among the actions

    def __getitem__(self, name: str) -> float:
        """Returns a metric's mean; nan, which no comparison holds for, where the policy has none."""
        return self.means.get(f"learn/{name}", math.nan)

    def newest(self, name: str) -> float:
        """Returns the last value of a metric that not every iteration has; nan where none had."""
        return self.last.get(f"learn/{name}", math.nan)


def _steps_too_large(seen: Glance) -> Finding | None:
    kl, clipped = seen["approx_kl"], seen["clipfrac"]
    if not (kl > 0.1 or clipped > 0.5):
        return None
    return Finding(
        "the policy moves too far in one iteration",
        f"approx_kl {kl:.3g} (usual: below 0.03), clipfrac {clipped:.2f} (usual: below 0.3)",
        "a lower policy.learn.learning_rate, fewer epochs, or policy.learn.target_kl=0.02",
    )


def _steps_too_small(seen: Glance) -> Finding | None:
    decided = not seen.continuous and seen["entropy_loss"] < 0.05  # nothing is left to move
    if decided or not (seen["approx_kl"] < 1e-6 and seen["cur_lr"] > 0 and seen.share < 0.9):
        return None
    return Finding(
        "the policy hardly moves",
        f"approx_kl {seen['approx_kl']:.1e} at learning rate {seen['cur_lr']:.1e}",
        "a higher policy.learn.learning_rate; and see whether rewards ever differ (collect/episode_return)",
    )


def _value_learns_nothing(seen: Glance) -> Finding | None:
    explained = seen["explained_variance"]
    # Where all returns are nearly alike there is nothing to explain, and the error is small all the same.
    small = seen.policy["learn"].get("value_norm") and seen["value_loss"] < 0.05
    if small or not (explained < 0.0 and seen.share > 0.2):
        return None
    scaled = seen.policy["learn"].get("value_norm") or seen.policy["normalize"]["reward"]
    return Finding(
        "the value network predicts worse than a constant would",
        f"explained_variance {explained:.2f} over the last {WINDOW} iterations (1 is perfect, 0 a constant)",
        "a lower policy.collect.discount_factor, a higher policy.learn.learning_rate"
        + ("" if scaled else ", or policy.learn.value_norm=True: returns have no scale here"),
    )


def _entropy_gone(seen: Glance) -> Finding | None:
    entropy, start = seen["entropy_loss"], seen.first.get("learn/entropy_loss", math.nan)
    # Of a Box the entropy has no bottom: three nats are a std twenty times smaller.
    gone = entropy < start - 3.0 if seen.continuous else entropy < 0.02 * start
    if not (gone and seen.share < 0.5):
        return None
    return Finding(
        "the policy has stopped exploring early",
        f"entropy {entropy:.3g}, at first {start:.3g}, with {1 - seen.share:.0%} of the run to go",
        "a higher policy.learn.entropy_weight, or a lower policy.learn.learning_rate",
    )


def _gradient_cut(seen: Glance) -> Finding | None:
    learn = seen.policy["learn"]
    if learn.get("grad_clip_type") != "clip_norm" or not seen["grad_norm"] > 50 * learn["grad_clip_value"]:
        return None
    return Finding(
        "nearly all of the gradient is clipped away",
        f"grad_norm {seen['grad_norm']:.3g}, policy.learn.grad_clip_value {learn['grad_clip_value']:g}",
        "policy.learn.value_norm=True or policy.normalize.reward=True: the scale of the returns is large",
    )


def _units_dead(seen: Glance) -> Finding | None:
    dead = seen.newest("dead_units")
    if not dead > 0.5:
        return None
    return Finding(
        "most units of the network are the same for every observation",
        f"dead_units {dead:.2f} (share of hidden units that are 0, or at a bound of tanh)",
        'a lower policy.learn.learning_rate, policy.model.activation="tanh", or policy.normalize.obs=True',
    )


def _observations_clipped(seen: Glance) -> Finding | None:
    if not seen["obs_clipped"] > 0.02:
        return None
    return Finding(
        "observations lie outside their scale",
        f"{seen['obs_clipped']:.1%} of the numbers are cut at policy.normalize.obs_clip",
        'policy.normalize.obs="initial", a larger policy.normalize.obs_samples, or a higher '
        "policy.normalize.obs_clip: a running scale follows what the policy sees often, not what it starts "
        "from",
    )


def _auxiliary_phase_moves_the_policy(seen: Glance) -> Finding | None:
    epochs = seen.policy["learn"].get("aux_train_epoch", 0)
    kl = seen.newest(f"aux_kl_epoch_{epochs}")
    if not (epochs and kl > 0.03):
        return None
    return Finding(
        "the auxiliary phase moves the policy",
        f"KL {kl:.3g} from the policy before it (usual: below 0.01)",
        "a higher policy.learn.aux_bc_weight, a lower policy.learn.aux_learning_rate, or "
        "policy.learn.value_norm=True",
    )


RULES: tuple[Callable[[Glance], Finding | None], ...] = (
    _steps_too_large,
    _steps_too_small,
    _value_learns_nothing,
    _entropy_gone,
    _gradient_cut,
    _units_dead,
    _observations_clipped,
    _auxiliary_phase_moves_the_policy,
)


class HealthCheck:
    """Looks at every iteration of a run, and remembers what it found.

    Args:
        policy: the section ``policy`` of a complete config.
        max_env_step: of the run.
        continuous: whether a Box is among the actions.
    """

    def __init__(self, policy: Mapping[str, Any], max_env_step: int, continuous: bool) -> None:
        self.policy, self.max_env_step, self.continuous = policy, max_env_step, continuous
        self.say: Callable[[str], None] = lambda line: None
        self.found: dict[str, Finding] = {}
        self._first: dict[str, float] = {}
        self._recent: dict[str, deque[float]] = {}
        self._looks = 0

    def look(self, metrics: Mapping[str, float], env_step: int) -> None:
        """Takes in the metrics of one iteration, and says what they show for the first time."""
        self._looks += 1
        for name, value in metrics.items():
            self._recent.setdefault(name, deque(maxlen=WINDOW)).append(value)
        if self._looks == 1:
            self._first = dict(metrics)
        if self._looks < WINDOW:
            return
        means = {name: sum(values) / len(values) for name, values in self._recent.items()}
        last = {name: values[-1] for name, values in self._recent.items()}
        seen = Glance(means, last, self._first, env_step / self.max_env_step, self.policy, self.continuous)
        for rule in RULES:
            finding = rule(seen)
            if finding is not None and finding.cause not in self.found:
                self.found[finding.cause] = finding
                self.say(f"health: {finding}")

    def remind(self) -> None:
        """Says again, at the end of a run, what was found."""
        for finding in self.found.values():
            self.say(f"health, in this run: {finding}")
