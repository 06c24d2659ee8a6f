"""Where the time of a training iteration goes: the parts of a run, watched from outside.

Nothing in the loop knows of it: the bound methods of one run's parts are wrapped, and a phase's time is
what was spent in its methods, less what was spent in those of other phases. So the phases add up.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from easydict import EasyDict

from ding_lite.config import Config
from ding_lite.pipeline import SerialPipeline
from ding_lite.policies.updater import Updater

FOREVER = 10**15  # env steps; no limit ends what is being measured

# The phases, in the order of an iteration, each with what a verdict counts it to.
PHASES = {
    "env": "env",
    "act": "act",
    "store": "store",
    "advantages": "advantages",
    "minibatches": "updates",
    "gradient": "updates",
    "optimiser": "updates",
    "auxiliary": "auxiliary",
    "logging": "logging",
    "evaluation": "evaluation",
    "checkpoint": "checkpoint",
    "other": "other",
}
MORE_ENVS = ("env.collector_env_num", "more: each call serves more environments")
DOUBLE_BUFFER = ("env.manager.double_buffer", "True, with subprocess: act while half of them step")
DEVICE = (("policy.device", "cuda, for large networks"), ("num_threads", "more, for large networks"))
# What to try where a group is the largest: keys, and in which direction.
ADVICE: dict[str, tuple[tuple[str, str], ...]] = {
    "env": (
        ("env.manager.type", "subprocess for slow environments, base for fast ones"),
        ("env.manager.worker_num", "as many as there are idle cores"),
        DOUBLE_BUFFER,
        MORE_ENVS,
    ),
    "act": (MORE_ENVS, DOUBLE_BUFFER, *DEVICE),
    "store": (
        MORE_ENVS,
        ("policy.collect.n_sample", "more: longer rollouts"),
        ("policy.collect.n_episode", "more: longer rollouts"),
    ),
    "advantages": (("policy.recompute_adv", "False: once an iteration"), *DEVICE),
    "updates": (
        ("policy.learn.batch_size", "larger: fewer updates"),
        ("policy.learn.epoch_per_collect", "fewer passes over the samples"),
        ("policy.learn.actor_epoch_per_collect", "fewer passes over the samples"),
        ("policy.learn.critic_epoch_per_collect", "fewer passes over the samples"),
        *DEVICE,
    ),
    "auxiliary": (
        ("policy.learn.aux_batch_size", "larger: fewer updates"),
        ("policy.learn.aux_train_epoch", "fewer passes over the samples"),
        ("policy.learn.aux_freq", "more iterations between the phases"),
        *DEVICE,
    ),
    "logging": (("logger.freq", "more env steps between TensorBoard rows"),),
    "evaluation": (
        ("policy.eval.eval_freq", "more env steps between evaluations"),
        ("env.n_evaluator_episode", "fewer episodes"),
        ("env.evaluator_env_num", "more: each call serves more environments"),
    ),
    "checkpoint": (
        ("checkpoint.freq", "more env steps between saves"),
        ("checkpoint.keep_freq", "more env steps between snapshots"),
    ),
}


_MISSING = object()
# What leaves nothing to try of a key.
SETTLED = {"policy.recompute_adv": False, "env.manager.double_buffer": True}


class Phase(NamedTuple):
    """What one phase took of all iterations together."""

    name: str
    seconds: float
    calls: int


class Profile(NamedTuple):
    """What was measured: whole iterations, and the phases that they are made of."""

    phases: tuple[Phase, ...]
    iterations: int
    env_steps: int
    updates: int  # optimiser steps
    seconds: float  # of the iterations, by a clock outside of the phases'
    # What the config has come to on this machine.
    device: str
    backend: str  # of the environments, in words
    threads: int  # torch's
    compiled: bool  # the gradient steps

    @property
    def env_steps_per_second(self) -> float:
        """Returns the speed of training as a whole."""
        return self.env_steps / self.seconds

    def largest(self) -> tuple[str, float]:
        """Returns the largest group of phases that there is advice for, and its share of the time."""
        sums = dict.fromkeys(ADVICE, 0.0)
        for phase in self.phases:
            if PHASES[phase.name] in sums:
                sums[PHASES[phase.name]] += phase.seconds
        name = max(sums, key=lambda group: sums[group])
        return name, sums[name] / self.seconds


def words_for(group: str) -> str:
    """Returns the name of a group, and the phases that it is made of where those are others."""
    phases = [phase for phase, counted_to in PHASES.items() if counted_to == group]
    return group if phases == [group] else f"{group} ({', '.join(phases)})"


def advice(group: str, config: Config) -> list[tuple[str, Any, str]]:
    """Returns what to try where ``group`` is the largest: (key, its value now, in which direction)."""
    found, policy = [], config.values.policy
    idle = {"policy.collect.n_sample" if policy.collect.get("n_episode") else "policy.collect.n_episode"}
    if "actor_epoch_per_collect" in policy.learn:  # PPG has two of its own
        idle.add("policy.learn.epoch_per_collect")
    for key, hint in ADVICE[group]:
        value: Any = config.values
        for name in key.split("."):
            value = value.get(name, _MISSING) if value is not _MISSING else value
        if value is not _MISSING and value is not SETTLED.get(key, _MISSING) and key not in idle:
            found.append((key, value, hint))
    return found


class Stopwatch:
    """Adds up seconds and calls of phases; a phase inside another one counts for itself alone.

    Args:
        now: a clock; one that waits for a device first gives its work to the phase that asked for it.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self._inner: list[float] = []  # of each call that is open: seconds of the watched ones inside it
        self._whole = ""  # the phase that takes all that is inside it
        self.clear()

    def clear(self) -> None:
        """Forgets what was measured, such as in the warm-up."""
        self.seconds, self.calls = dict.fromkeys(PHASES, 0.0), dict.fromkeys(PHASES, 0)

    def watched(
        self, method: Callable[..., Any], phase: str, *, whole: bool = False, counts: bool = True
    ) -> Callable[..., Any]:
        """Returns ``method``, timed.

        Args:
            phase: that its time belongs to.
            whole: takes also the time of all other phases inside it.
            counts: whether a call is one of the phase's.
        """

        def timed(*args: Any, **kwargs: Any) -> Any:
            outer, booked = self._whole, self._whole or phase
            self._whole = outer or (phase if whole else "")
            self._inner.append(0.0)
            began = self.now()
            try:
                return method(*args, **kwargs)
            finally:
                took = self.now() - began
                self._whole = outer
                self.seconds[booked] += took - self._inner.pop()
                self.calls[phase] += counts and booked == phase
                if self._inner:
                    self._inner[-1] += took

        return timed

    def watch(self, owner: Any, method: str, phase: str, **options: bool) -> None:
        """Times a method of one object from now on."""
        setattr(owner, method, self.watched(getattr(owner, method), phase, **options))


def profile(
    config: Config, *, iterations: int | None = None, warm_up: int = 2, seed: int | None = None
) -> Profile:
    """Trains for some iterations in a folder that does not stay, and returns where the time went.

    Evaluations, checkpoints and auxiliary phases are those that fall due meanwhile.

    Args:
        config: of the run.
        iterations: that are measured; None is 10, and as many more as make auxiliary cycles whole.
        warm_up: iterations before them.
        seed: in place of the config's.

    Raises:
        DingLiteError: as the run itself.
    """
    with training(config, seed) as measure:
        measure(warm_up)
        return measure(whole_cycles(config, 10) if iterations is None else iterations)


def whole_cycles(config: Config, iterations: int) -> int:
    """Returns ``iterations``, or as many more as make auxiliary cycles whole."""
    cycle = int(config.values.policy.learn.get("aux_freq", 1))
    return -(-iterations // cycle) * cycle


@contextmanager
def training(config: Config, seed: int | None = None) -> Iterator[Callable[[int], Profile]]:
    """Opens a training without an end, in a folder that does not stay.

    Yields:
        a function that takes so many iterations more, and returns where their time went.
    """
    endless = Config(EasyDict({**config.values, "max_env_step": FOREVER}), config.source)  # else as it is
    with _open_pipeline(endless, seed) as pipeline:
        pipeline.progress.past_solved = True  # a solved task is as long a training as any
        progress, watch = pipeline.progress, _watched(pipeline)

        def measure(iterations: int) -> Profile:
            watch.clear()
            env_step, train_iter, began = progress.env_step, progress.train_iter, watch.now()
            for _ in range(iterations):
                pipeline.step()
            return Profile(
                iterations=iterations,
                env_steps=progress.env_step - env_step,
                updates=progress.train_iter - train_iter,
                seconds=watch.now() - began,
                phases=tuple(Phase(name, watch.seconds[name], watch.calls[name]) for name in PHASES),
                device=str(pipeline.policy.device),
                backend=pipeline.collector.envs.backend,
                threads=torch.get_num_threads(),
                compiled=getattr(pipeline.policy, "_compiles", False),
            )

        yield measure


@contextmanager
def _open_pipeline(config: Config, seed: int | None) -> Iterator[SerialPipeline]:
    with tempfile.TemporaryDirectory(prefix="ding_lite_profile_") as folder:
        pipeline = SerialPipeline(config, seed=seed, folder=Path(folder) / "run")
        try:
            yield pipeline
        finally:
            pipeline.close()


def _watched(pipeline: SerialPipeline) -> Stopwatch:
    """Wraps what a turn is made of; what is left of a phase's caller is the caller's own."""
    policy: Any = pipeline.policy
    collector = pipeline.collector
    watch = Stopwatch(_synchronized if policy.device.type == "cuda" else time.perf_counter)
    mode = collector.mode
    collector.mode = mode._replace(
        forward=watch.watched(mode.forward, "act"),
        to_env=watch.watched(mode.to_env, "act"),
        get_train_sample=watch.watched(mode.get_train_sample, "advantages"),
        acting=lambda _: mode.acting(mode),  # to be timed changes nothing of what it does
    )
    watch.watch(collector.envs, "send", "env", counts=False)
    watch.watch(collector.envs, "receive", "env")
    watch.watch(collector, "collect", "store")
    watch.watch(pipeline.learner, "train", "minibatches")
    if hasattr(policy, "_credit"):
        watch.watch(policy, "_credit", "advantages")
    if hasattr(policy, "_auxiliary_phase"):
        watch.watch(policy, "_auxiliary_phase", "auxiliary", whole=True, counts=False)
    if getattr(policy, "auxiliary", None) is not None:
        watch.watch(policy.auxiliary, "run", "auxiliary")
    for updater in (part for part in vars(policy).values() if isinstance(part, Updater)):
        watch.watch(updater, "gradient", "gradient")
        watch.watch(updater, "apply", "optimiser")
    watch.watch(pipeline, "_evaluate", "evaluation", whole=True)
    watch.watch(pipeline, "_write_row", "logging")
    watch.watch(pipeline.parts.health, "look", "logging")
    watch.watch(pipeline.checkpoints, "save_due", "checkpoint", counts=False)
    watch.watch(pipeline.checkpoints, "save", "checkpoint")
    watch.watch(pipeline, "step", "other")
    return watch


def _synchronized() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()
