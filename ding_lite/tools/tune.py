"""Finds the settings with which a training runs fastest, without changing what is learned.

The search is greedy: each setting is compared with the best one so far, beginning with the settings that
affect the slowest phase. Compiling takes the longest and comes last. The two train in turns, so that other
load on the machine slows down both. Both begin from the start with the same seed, so that the same iterations
are compared.
"""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch

from ding_lite.config.compile import Config
from ding_lite.config.schema import leaves
from ding_lite.envs.make import auto_is_native, backend_of
from ding_lite.envs.workers.cores import cores, default_workers
from ding_lite.tools.jobs import environment, error_message
from ding_lite.tools.profile import Phase, Profile, whole_cycles

SLICE_SECONDS = 0.5  # each training runs at least this long before it is the other one's turn
# Number of pairs of slices that are compared. With these, one in forty settings without an effect is taken.
LEAST_PAIRS = 3
MOST_PAIRS = 7
CLEAR = 3  # the gain, in units of the spread, at which fewer pairs suffice
LEAST_GAIN = 0.02  # a smaller gain is not worth a key in a config
UNCLEAR = 0.2  # a spread of the gains from which on "no difference" cannot be concluded
HOPELESS = -0.5  # a gain at which two short slices suffice
GRACE_SECONDS = 10.0  # for a process to remove its temporary folder

Setting = dict[str, Any]  # overrides, such as {"num_threads": 1}
Pair = tuple[Profile, Profile]  # the same iterations with the best setting so far, and with another one


class TrialError(Exception):
    """Raised when a training with a setting fails; the message says why."""


class OutOfTimeError(Exception):
    """Raised when the time is up before there is a result."""


class Compilation(NamedTuple):
    """The cost of compiling the gradient steps.

    Attributes:
        seconds: that compiling takes.
        pays_after: number of gradient steps that save as much time; infinite if a gain is not certain.
        planned: number of gradient steps of the whole run.
    """

    seconds: float
    pays_after: float
    planned: float


class SettingTrial(NamedTuple):
    """The comparison of one setting with the best one so far.

    Attributes:
        setting: overrides, on top of the best setting so far.
        verdict: "taken", "faster" (but not taken, because compiling would not pay), "slower",
            "no difference", "not clear" (the gains vary too much for "no difference"), "failed" or
            "not tried".
        taken: whether the setting becomes part of the best one.
        speed: median env steps per second with the setting.
        present: the same with the best setting so far.
        gain: median over pairs of the relative gain in speed; 0.5: 50 % faster.
        spread: half of the difference between the largest and the smallest gain.
        compilation: its cost, if exactly one of the two is compiled.
        reason: of a failure.
    """

    setting: Setting
    verdict: str
    taken: bool = False
    speed: float | None = None
    present: float | None = None
    gain: float | None = None
    spread: float | None = None
    compilation: Compilation | None = None
    reason: str = ""


def settings(config: Config, present: Profile) -> list[Setting]:
    """Returns the settings to try, beginning with those that affect the phases with the most time.

    Compiling comes last: it takes the longest, and the time may be up before it is done.
    """
    # Phases, with the settings that affect them.
    factors = (
        ({"env"}, _backends(config.values.env)),
        (
            {"act", "advantages", "minibatches", "gradient", "optimiser", "auxiliary"},
            [*_devices(present), *({"num_threads": n} for n in _counts(cores()) if n != present.threads)],
        ),
    )
    seconds = {phase.name: phase.seconds for phase in present.phases}
    ordered = sorted(factors, key=lambda factor: -sum(seconds[name] for name in factor[0]))
    candidates = [setting for _, of_phases in ordered for setting in of_phases]
    return [
        setting for setting in [*candidates, *_compilations(config, present)] if not _has(config, setting)
    ]


def _has(config: Config, setting: Setting) -> bool:
    """Returns whether a config has all values of a setting."""
    values = dict(leaves(config.values))
    return all(key in values and values[key] == value for key, value in setting.items())


def _backends(env_cfg: Mapping[str, Any]) -> list[Setting]:
    present = backend_of(env_cfg)
    manager = env_cfg["manager"]
    num_envs = env_cfg["collector_env_num"]
    if present == "env_pool":  # no other backend makes the same environments
        return []
    candidates: list[Setting] = []
    if present != "vector" and auto_is_native(env_cfg):
        candidates.append({"env.manager.type": "vector"})
    if present != "base":
        candidates.append({"env.manager.type": "base"})
    # (number of workers, double_buffer)
    present_workers = (0, False)
    if present == "subprocess":
        double = manager["double_buffer"]
        present_workers = (min(num_envs, manager["worker_num"] or default_workers(double)), double)
    workers = [(count, False) for count in _counts(min(num_envs, cores()))]
    if num_envs > 1:
        workers.append((min(num_envs, default_workers(double_buffer=True)), True))
    for count, double_buffer in workers:
        if (count, double_buffer) != present_workers:
            candidates.append(_in_workers(count, double_buffer, manager))
    if present == "subprocess" and not manager["double_buffer"]:
        candidates += _twice_the_workers(_in_workers(present_workers[0], False, manager), num_envs)
    return candidates


def _in_workers(count: int, double_buffer: bool, manager: Mapping[str, Any]) -> Setting:
    """Returns the setting for environments in ``count`` worker processes."""
    setting = {"env.manager.type": "subprocess", "env.manager.worker_num": count}
    if double_buffer == manager["double_buffer"]:
        return setting
    return {**setting, "env.manager.double_buffer": double_buffer}


def _twice_the_workers(setting: Setting, num_envs: int) -> list[Setting]:
    """Returns what to try if ``setting`` is the fastest: twice as many workers, if it keeps all cores busy.

    More workers than cores pay where environments wait, such as for a simulator on another machine.
    """
    workers = setting.get("env.manager.worker_num", num_envs)
    if workers < cores() or workers >= num_envs or setting.get("env.manager.double_buffer"):
        return []
    return [{**setting, "env.manager.worker_num": min(2 * workers, num_envs)}]


def _compilations(config: Config, present: Profile) -> list[Setting]:
    policy = config.values.policy
    on_cpu = present.device == "cpu"  # on a GPU kernels are captured, and nothing is compiled
    compiles = on_cpu and "compile" in policy.learn and not policy.model.get("rnn")
    return [{"policy.learn.compile": not present.compiled}] if compiles else []


def _devices(present: Profile) -> list[Setting]:
    other = "cuda" if present.device == "cpu" else "cpu"
    return [{"policy.device": other}] if torch.cuda.is_available() else []


def _counts(limit: int) -> list[int]:
    """Returns the powers of 2 up to ``limit``, and ``limit``: 1, 2, 4, 6 for 6."""
    return sorted({limit, *(2**power for power in range(limit.bit_length()))} - {0})


class Tuner:
    """Searches for the fastest setting of a config.

    Args:
        config: of the run.
        present: the profile of the config without changes.
        start: starts a training with a setting. Its ``measure`` raises TrialError if the training fails, and
            OutOfTimeError if the time is up.
        seconds: time limit of the search.
        now: a clock, in seconds.

    Attributes:
        best: the fastest setting so far; empty: the config without changes.
        gain: speed of ``best`` divided by the speed of the config without changes; 1.5: 50 % faster.
    """

    def __init__(
        self,
        config: Config,
        present: Profile,
        start: Callable[[Setting], TrainingProcess],
        seconds: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.present = present
        self.best: Setting = {}
        self.gain = 1.0
        self._start = start
        self._now = now
        self._deadline = now() + seconds
        self._cut_after = 0.0  # seconds after which the time was up for a comparison
        values = config.values
        self._warm_up = whole_cycles(config, 2)
        per_slice = math.ceil(SLICE_SECONDS * present.iterations / present.seconds)
        self._slice = whole_cycles(config, per_slice)
        planned = values.max_env_step * present.updates / present.env_steps
        self._planned = min(planned, values.max_train_iter or math.inf)

    def trials(self) -> Iterator[SettingTrial]:
        """Tries one setting after the other, and yields each result as soon as it is known."""
        untried = deque(settings(self.config, self.present))
        while untried:
            setting = untried.popleft()
            began = self._now()
            if began >= self._deadline:
                yield SettingTrial(setting, "not tried")
                continue
            try:
                trial = self._compare(setting)
            except TrialError as error:
                trial = SettingTrial(setting, "failed", reason=str(error))
            except OutOfTimeError:
                self._cut_after = self._now() - began
                trial = SettingTrial(setting, "not tried")
            if trial.taken:
                self.best |= setting
                self.gain *= 1 + (trial.gain or 0)
                more = _twice_the_workers(setting, self.config.values.env.collector_env_num)
                untried.extendleft(setting for setting in more if not _has(self.config, setting))
            yield trial

    def seconds_per_trial(self, start: float) -> float:
        """Returns an estimate of the seconds that it takes to compare a setting, if none could be compared.

        The comparison that was cut short has spent its time on starting its two trainings, and was not done:
        twice that time is counted.

        Args:
            start: seconds that the start takes at least.
        """
        iterations = 3 * self._warm_up + LEAST_PAIRS * self._slice
        training = 2 * iterations * self.present.seconds / self.present.iterations
        return max(start, 2 * self._cut_after) + training

    def _compare(self, setting: Setting) -> SettingTrial:
        with contextlib.ExitStack() as stack:
            present = stack.enter_context(contextlib.closing(self._start(self.best)))
            other = stack.enter_context(contextlib.closing(self._start({**self.best, **setting})))
            first = _pair(present, other, self._warm_up)
            return self._trial(setting, first, self._pairs(present, other))

    def _pairs(self, present: TrainingProcess, other: TrainingProcess) -> list[Pair]:
        """Trains both in turns until it is clear which is faster, or ``MOST_PAIRS`` is reached."""
        short_pairs = [_pair(present, other, self._warm_up) for _ in range(2)]
        if max(_gains(short_pairs)) < HOPELESS:  # a whole slice could take a minute
            return short_pairs
        pairs: list[Pair] = []
        try:
            while len(pairs) < MOST_PAIRS and not _is_clear(pairs):
                pairs.append(_pair(present, other, self._slice, swapped=len(pairs) % 2 == 1))
        except OutOfTimeError:
            if len(pairs) < LEAST_PAIRS:
                raise
        return pairs

    def _trial(self, setting: Setting, first: Pair, pairs: Sequence[Pair]) -> SettingTrial:
        """Returns the verdict on a setting.

        Args:
            setting: to compare.
            first: the first iterations of both trainings, in which steps are compiled.
            pairs: later iterations.
        """
        gain, spread = gain_and_spread(pairs)
        certain = abs(gain) > max(spread, LEAST_GAIN)
        faster = certain and gain > 0
        taken = faster
        compilation = None
        if first[0].compiled != first[1].compiled:
            compiled_side = int(first[1].compiled)
            compiled_is_faster = certain and faster == compiled_side
            compilation = self._compilation(first, pairs, compiled_side, compiled_is_faster)
            if compiled_is_faster and compilation.pays_after > compilation.planned:
                taken = not compiled_side
        if taken:
            verdict = "taken"
        elif faster:
            verdict = "faster"
        elif certain:
            verdict = "slower"
        else:
            verdict = "no difference" if spread <= UNCLEAR else "not clear"
        return SettingTrial(
            setting,
            verdict,
            taken=taken,
            speed=median(pair[1].env_steps_per_second for pair in pairs),
            present=median(pair[0].env_steps_per_second for pair in pairs),
            gain=gain,
            spread=spread,
            compilation=compilation,
        )

    def _compilation(
        self, first: Pair, pairs: Sequence[Pair], compiled_side: int, compiled_is_faster: bool
    ) -> Compilation:
        """Returns the cost of compiling, where ``pair[compiled_side]`` of each pair is compiled."""

        def typical_seconds(side: int, unit: str) -> float:
            """Returns the median seconds per iteration or update."""
            return median(pair[side].seconds / max(1, getattr(pair[side], unit)) for pair in pairs)

        # The first iterations take longer than later ones. Part of that has other causes than compiling, and
        # the side that is not compiled shows how much.
        extra = [
            start.seconds - start.iterations * typical_seconds(side, "iterations")
            for side, start in enumerate(first)
        ]
        seconds = max(0.0, extra[compiled_side] - extra[1 - compiled_side])
        saved = typical_seconds(1 - compiled_side, "updates") - typical_seconds(compiled_side, "updates")
        pays_after = seconds / saved if compiled_is_faster and saved > 0 else math.inf
        return Compilation(seconds, pays_after, self._planned)


def _pair(
    present: TrainingProcess, other: TrainingProcess, iterations: int, *, swapped: bool = False
) -> Pair:
    """Trains both for the same iterations, one after the other; ``swapped`` changes the order."""
    if swapped:
        second = other.measure(iterations)
        return present.measure(iterations), second
    return present.measure(iterations), other.measure(iterations)


def _gains(pairs: Sequence[Pair]) -> list[float]:
    return [other.env_steps_per_second / present.env_steps_per_second - 1 for present, other in pairs]


def gain_and_spread(pairs: Sequence[Pair]) -> tuple[float, float]:
    """Returns the median over pairs of the relative gain of the second one, and the spread.

    The spread is half of the difference between the largest and the smallest gain.
    """
    gains = _gains(pairs)
    return median(gains), (max(gains) - min(gains)) / 2


def _is_clear(pairs: Sequence[Pair]) -> bool:
    """Returns whether more pairs would hardly change the verdict."""
    if len(pairs) < LEAST_PAIRS:
        return False
    gain, spread = gain_and_spread(pairs)
    return abs(gain) > max(CLEAR * spread, LEAST_GAIN)


class TrainingProcess:
    """A training with some setting, in a process of its own, which continues on request.

    Each setting gets a new process, because compiled code, thread pools and the allocator keep the settings
    that they began with.

    Args:
        command: arguments of ``ding-lite`` for a process that reads numbers of iterations from standard
            input, one per line, and answers each with a profile as a line of JSON.
        deadline: when the process is ended, by ``time.monotonic``.
    """

    def __init__(self, command: Sequence[str], deadline: float) -> None:
        self._deadline = deadline
        self._is_training = False
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in close
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ding_lite", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment(),  # it must find the modules of --import, too
        )

    def measure(self, iterations: int) -> Profile:
        """Trains for another number of iterations, and returns where the time went.

        Raises:
            TrialError: if the process has ended.
            OutOfTimeError: if it has not answered by the deadline.
        """
        assert self._process.stdin
        assert self._process.stdout
        alarm = threading.Timer(max(0.0, self._deadline - time.monotonic()), self._process.terminate)
        alarm.start()
        self._is_training = True
        try:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(f"{iterations}\n")
                self._process.stdin.flush()
            # Other lines come from user modules that print something when they are imported.
            answer = next((line for line in self._process.stdout if line.startswith("{")), "")
        finally:
            alarm.cancel()
        if not answer:
            if time.monotonic() >= self._deadline:
                raise OutOfTimeError
            raise TrialError(self._error_message())
        self._is_training = False
        fields = json.loads(answer)
        fields["phases"] = tuple(Phase(*phase) for phase in fields["phases"])
        return Profile(**fields)

    def _error_message(self) -> str:
        """Waits for the end of the process, and returns its error."""
        code = self._process.wait()
        self._errors.seek(0)
        return error_message(self._errors.read(), code, "profile") or f"ended with exit code {code}"

    def close(self) -> None:
        """Ends the process; it is terminated if it is training, and killed after ``GRACE_SECONDS``."""
        assert self._process.stdin
        assert self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        if self._is_training:
            self._process.terminate()
        try:
            self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()
