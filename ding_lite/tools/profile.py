"""Measures where the time of a training iteration goes.

The bound methods of one run's parts are wrapped by a stopwatch; the code of the training loop does not
change. The time of a phase is the time in its methods without the time in methods of other phases inside
them, so the phases add up to the whole iteration.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from easydict import EasyDict

from ding_lite.config.compile import Config
from ding_lite.config.registry import as_choice, name_of
from ding_lite.config.schema import leaves
from ding_lite.data.modes import CollectMode
from ding_lite.policies.optimizer import Optimizer
from ding_lite.run.pipeline import SerialPipeline

LOCAL = ("tensorboard",)  # trackers that write to the run's folder, which is removed
NO_LIMIT = 10**15  # env steps: the run does not end while it is measured

# The phases in the order of an iteration, each with the group under which advice is given for it.
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
DOUBLE_BUFFER = ("env.manager.double_buffer", "True, with subprocess or ray: act while the other half steps")
DEVICE = (("policy.device", "cuda, for large networks"), ("num_threads", "more, for large networks"))
# What to try if a group takes the most time: keys of the config, and how to change them.
ADVICE: dict[str, tuple[tuple[str, str], ...]] = {
    "env": (
        (
            "env.manager.type",
            "subprocess for slow environments (ray: on several machines), base for fast ones",
        ),
        ("env.manager.worker_num", "the number of idle cores"),
        DOUBLE_BUFFER,
        MORE_ENVS,
    ),
    "act": (MORE_ENVS, DOUBLE_BUFFER, *DEVICE),
    "store": (
        MORE_ENVS,
        ("policy.collect.n_sample", "more: longer rollouts"),
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
        ("policy.learn.aux_batch_size", "larger (None is batch_size): fewer updates"),
        ("policy.learn.aux_train_epoch", "fewer passes over the samples"),
        ("policy.learn.aux_freq", "more iterations between the phases"),
        *DEVICE,
    ),
    "logging": (("logger.freq", "more env steps between rows of the trackers"),),
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
# Values of keys that already follow the advice.
ADVISED_VALUES = {
    "policy.recompute_adv": False,
    "env.manager.double_buffer": True,
}


class Phase(NamedTuple):
    """The time of one phase in all measured iterations."""

    name: str
    seconds: float
    calls: int


class Profile(NamedTuple):
    """The time of whole iterations, and of the phases that they consist of.

    Attributes:
        phases: in the order of ``PHASES``.
        iterations, env_steps, updates: how many were measured; an update is one optimiser step.
        seconds: time of the iterations, measured apart from the phases.
        device: of the policy.
        backend: of the environments, as text.
        threads: number of torch's threads.
        compiled: whether the gradient steps are compiled.
    """

    phases: tuple[Phase, ...]
    iterations: int
    env_steps: int
    updates: int
    seconds: float
    device: str
    backend: str
    threads: int
    compiled: bool

    @property
    def env_steps_per_second(self) -> float:
        """Returns the speed of training, with all phases."""
        return self.env_steps / self.seconds

    def largest(self) -> tuple[str, float]:
        """Returns the group with advice that takes the most time, and its share of the time (0 to 1)."""
        sums = dict.fromkeys(ADVICE, 0.0)
        for phase in self.phases:
            group = PHASES[phase.name]
            if group in sums:
                sums[group] += phase.seconds
        name = max(sums, key=lambda group: sums[group])
        return name, sums[name] / self.seconds


def group_title(group: str) -> str:
    """Returns the name of a group, with its phases in brackets if they have other names."""
    phases = [phase for phase, phase_group in PHASES.items() if phase_group == group]
    return group if phases == [group] else f"{group} ({', '.join(phases)})"


def advice(group: str, config: Config) -> list[tuple[str, Any, str]]:
    """Returns the keys to try if ``group`` takes the most time.

    Keys that the config does not have, does not use, or has at the advised value are left out.

    Returns:
        a list of ``(key, its value, how to change it)``.
    """
    policy = config.values.policy
    unused = set()
    if "actor_epoch_per_collect" in policy.learn:  # PPG has two keys in place of this one
        unused.add("policy.learn.epoch_per_collect")
    values = {key: value for key, value in leaves(config.values) if key not in unused}
    return [
        (key, values[key], hint)
        for key, hint in ADVICE[group]
        if key in values and (key, values[key]) not in ADVISED_VALUES.items()
    ]


class Stopwatch:
    """Adds up seconds and calls of phases; time in a phase inside another one counts for the inner one only.

    Args:
        now: a clock, in seconds. For a GPU it must wait for the device first, so that asynchronous work
            counts for the phase that started it.

    Attributes:
        seconds, calls: sums since the last ``clear``, by phase.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        # For each timed call in progress: the seconds of the timed calls that it has made.
        self._inner: list[float] = []
        # The phase in progress that counts everything inside it as its own time; "" if there is none.
        self._whole = ""
        self.clear()

    def clear(self) -> None:
        """Sets all sums to 0, such as after the warm-up."""
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.calls = dict.fromkeys(PHASES, 0)

    def timed(
        self, method: Callable[..., Any], phase: str, *, whole: bool = False, counts: bool = True
    ) -> Callable[..., Any]:
        """Returns ``method`` with a timer around it.

        Args:
            method: to time.
            phase: to which its time is added.
            whole: whether the time of other phases inside it is added to this phase too.
            counts: whether its calls are added to the calls of the phase.
        """

        def with_timer(*args: Any, **kwargs: Any) -> Any:
            outer = self._whole
            booked = outer or phase
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

        return with_timer

    def watch(self, owner: Any, method: str, phase: str, **options: bool) -> None:
        """Replaces a method of one object by :meth:`timed` of it."""
        setattr(owner, method, self.timed(getattr(owner, method), phase, **options))

    def watch_result(self, owner: Any, method: str, phase: str) -> None:
        """Replaces a method that returns a function, so that it returns :meth:`timed` of the function."""
        original = getattr(owner, method)
        setattr(owner, method, lambda *args: self.timed(original(*args), phase))


def profile(
    config: Config, *, iterations: int | None = None, warm_up: int = 2, seed: int | None = None
) -> Profile:
    """Trains for some iterations in a temporary folder, and returns where the time went.

    Evaluations, checkpoints and auxiliary phases are included if they fall due in these iterations.

    Args:
        config: of the run.
        iterations: number of iterations to measure; None: 10, rounded up to whole auxiliary cycles.
        warm_up: number of iterations before the measured ones.
        seed: of the run; None: the seed of the config.

    Raises:
        DingLiteError: as in the run itself.
    """
    with training(config, seed) as measure:
        measure(warm_up)
        return measure(whole_cycles(config, 10) if iterations is None else iterations)


def whole_cycles(config: Config, iterations: int) -> int:
    """Returns ``iterations``, rounded up to a multiple of PPG's auxiliary cycle (``aux_freq``)."""
    cycle = int(config.values.policy.learn.get("aux_freq", 1))
    return -(-iterations // cycle) * cycle


@contextmanager
def training(config: Config, seed: int | None = None) -> Iterator[Callable[[int], Profile]]:
    """Opens a training without limits, in a temporary folder.

    Yields:
        a function that trains for another number of iterations, and returns where their time went.
    """
    # A tracker on a server would keep the rows of a run that is none.
    local = [item for item in config.values.logger.trackers if name_of(as_choice(item)["type"]) in LOCAL]
    logger = {**config.values.logger, "trackers": local}
    # Config.replaced would also decide policy.learn.compile anew.
    endless = {"env": {**config.values.env, "stop_value": None}}
    limits = {"max_env_step": NO_LIMIT, "max_train_iter": None, **endless}
    unlimited = dataclasses.replace(config, values=EasyDict({**config.values, **limits, "logger": logger}))
    with (
        tempfile.TemporaryDirectory(prefix="ding_lite_profile_") as folder,
        SerialPipeline(unlimited, seed=seed, folder=Path(folder) / "run", own_process=True) as pipeline,
    ):
        progress = pipeline.progress
        watch = _watch_pipeline(pipeline)
        pipeline._call("before_run")

        def measure(iterations: int) -> Profile:
            watch.clear()
            env_step = progress.env_step
            train_iter = progress.train_iter
            began = watch.now()
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
                compiled=bool(pipeline.policy.cfg.learn.get("compile")),
            )

        yield measure


def _watch_pipeline(pipeline: SerialPipeline) -> Stopwatch:
    """Wraps the methods that an iteration consists of, and returns the stopwatch."""
    policy: Any = pipeline.policy
    collector = pipeline.collector
    watch = Stopwatch(partial(_synchronized, policy.device))
    mode = collector.mode

    def timed(mode: CollectMode) -> CollectMode:
        return mode._replace(
            forward=watch.timed(mode.forward, "act"),
            to_env=watch.timed(mode.to_env, "act"),
            get_train_sample=watch.timed(mode.get_train_sample, "advantages"),
        )

    collector.mode = mode._replace(specialize=lambda _: timed(mode.for_rollout()))
    watch.watch(collector.envs, "send", "env", counts=False)
    watch.watch(collector.envs, "receive", "env")
    watch.watch(collector, "collect", "store")
    watch.watch(pipeline.learner, "train", "minibatches")
    if hasattr(policy, "renew_credit"):
        watch.watch(policy, "renew_credit", "advantages")
    if hasattr(policy, "auxiliary_phase"):
        watch.watch(policy, "auxiliary_phase", "auxiliary", whole=True)
    optimizers = [part for part in vars(policy).values() if isinstance(part, Optimizer)]
    optimizers += [
        x.optimizer for x in vars(policy).values() if isinstance(getattr(x, "optimizer", None), Optimizer)
    ]
    for optimizer in optimizers:
        watch.watch_result(optimizer.gradients, "of", "gradient")
        watch.watch(optimizer, "_take", "optimiser")
    watch.watch(pipeline, "_evaluate", "evaluation", whole=True)
    watch.watch(pipeline, "_call", "logging")
    watch.watch(pipeline, "_save_what_is_due", "checkpoint")
    watch.watch(pipeline, "step", "other")
    return watch


def _synchronized(device: torch.device) -> float:
    """Returns the time when a device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()
