"""The settings that make a training faster and leave alone what is learned, found by trying them.

Greedy: one setting after the other is tried against the best so far, beginning with those that the largest
phase hangs on. The two train in turns, so that both get their share of whatever else the machine does, and
each begins anew, from the same seed, so that the same iterations are compared.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple, Protocol

from ding_lite.config import Config
from ding_lite.envs.make import backend_of, has_native
from ding_lite.envs.worker_process import cores, default_workers
from ding_lite.profiling import Phase, Profile, whole_cycles

SLICE_SECONDS = 0.5  # of training, at least, before it is the other one's turn
# Pairs of slices. So many, and one setting in forty that changes nothing is taken for a faster one.
LEAST_PAIRS, MOST_PAIRS = 3, 7
CLEAR = 3  # the gain in spreads at which fewer will do
LEAST_GAIN = 0.02  # less is not worth a key in a config
UNCLEAR = 0.2  # a spread of the gains at which "no difference" would be too much said
HOPELESS = -0.5  # a gain at which two glimpses are enough
GRACE_SECONDS = 10.0  # for a process to put away its folder

Setting = dict[str, Any]  # overrides, such as {"num_threads": 1}
Pair = tuple[Profile, Profile]  # the same iterations under the best setting so far, and under another one


class TrialError(Exception):
    """Raised when a setting does not train; the message says why."""


class OutOfTimeError(Exception):
    """Raised when the time is up before there is anything to tell."""


class Contestant(Protocol):
    """A training under some setting that goes on, iteration by iteration, as it is asked to."""

    def measure(self, iterations: int) -> Profile:
        """Trains on, and returns where the time went."""

    def close(self) -> None:
        """Ends it."""


class Compilation(NamedTuple):
    """What compiling the gradient steps costs, and when it has paid."""

    seconds: float
    pays_after: float  # gradient steps; infinite where they are not faster for certain
    planned: float  # gradient steps of the whole run


class Trial(NamedTuple):
    """One setting against the best so far.

    Attributes:
        speed, present: env steps a second, of the setting and of the best so far; medians.
        gain: 0.5 where the setting is half as fast again; the median over pairs.
        spread: by how much the pairs differ: half of what lies between the least and the greatest gain.
        verdict: "taken", "faster" (and yet not taken), "slower", "no difference", "not clear" (where the
            pairs differ too much to say so), "failed" or "not tried".
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
    """Returns what to try, what the most of the ``present`` time hangs on first."""
    factors = (
        ({"env"}, _backends(config.values.env)),
        ({"gradient", "auxiliary"}, _compilations(config, present)),
        ({"act", "advantages", "minibatches", "optimiser"}, _thread_counts(present)),
    )
    seconds = {phase.name: phase.seconds for phase in present.phases}
    ordered = sorted(factors, key=lambda factor: -sum(seconds[name] for name in factor[0]))
    return [setting for _, found in ordered for setting in found]


def _backends(env_cfg: Mapping[str, Any]) -> list[Setting]:
    now, manager = backend_of(env_cfg), env_cfg["manager"]
    if now == "env_pool":  # its names and rules are its own: no other backend makes the same environments
        return []
    found: list[Setting] = []
    if now != "vector" and has_native(env_cfg):
        found.append({"env.manager.type": "vector"})
    if now != "base":
        found.append({"env.manager.type": "base"})
    num_envs, present = env_cfg["collector_env_num"], (0, False)
    if now == "subprocess":
        double = manager["double_buffer"]
        present = min(num_envs, manager["worker_num"] or default_workers(double)), double
    tried = [(count, False) for count in _counts(min(num_envs, cores()))]
    if num_envs > 1:
        tried.append((min(num_envs, default_workers(double_buffer=True)), True))
    return found + [_in_workers(*one, manager) for one in tried if one != present]


def _in_workers(count: int, double_buffer: bool, manager: Mapping[str, Any]) -> Setting:
    setting = {"env.manager.type": "subprocess", "env.manager.worker_num": count}
    if double_buffer == manager["double_buffer"]:
        return setting
    return {**setting, "env.manager.double_buffer": double_buffer}


def _compilations(config: Config, present: Profile) -> list[Setting]:
    has_key = "compile" in config.values.policy.learn
    return [{"policy.learn.compile": not present.compiled}] if has_key else []


def _thread_counts(present: Profile) -> list[Setting]:
    return [{"num_threads": count} for count in _counts(cores()) if count != present.threads]


def _counts(most: int) -> list[int]:
    """Returns 1, 2, 4, ... and ``most``."""
    return sorted({most, *(2**power for power in range(most.bit_length()))} - {0})


class Tuner:
    """Looks for the fastest setting of a config.

    Args:
        config: of the run.
        present: how it trains as it is.
        start: starts a training with a setting; what cannot train raises a TrialError when it is measured.
        seconds: that the search may take.
        now: a clock.

    Attributes:
        best: the fastest setting so far; empty: the config as it is.
        gain: its env steps a second against those of the config as it is: 1.5 is half as fast again.
    """

    def __init__(
        self,
        config: Config,
        present: Profile,
        start: Callable[[Setting], Contestant],
        seconds: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config, self.present = config, present
        self.best: Setting = {}
        self.gain = 1.0
        self._start, self._now, self._deadline = start, now, now() + seconds
        values = config.values
        self._warm_up = whole_cycles(config, 2)
        per_slice = math.ceil(SLICE_SECONDS * present.iterations / present.seconds)
        self._slice = whole_cycles(config, per_slice)
        planned = values.max_env_step * present.updates / present.env_steps
        self._planned = min(planned, values.max_train_iter or math.inf)

    def trials(self) -> Iterator[Trial]:
        """Tries one setting after the other; each is told as soon as it is known."""
        for setting in settings(self.config, self.present):
            if self._now() >= self._deadline:
                yield Trial(setting, "not tried")
                continue
            try:
                trial = self._tried(setting)
            except TrialError as error:
                trial = Trial(setting, "failed", reason=str(error))
            except OutOfTimeError:
                trial = Trial(setting, "not tried")
            if trial.taken:
                self.best |= setting
                self.gain *= 1 + (trial.gain or 0)
            yield trial

    def _tried(self, setting: Setting) -> Trial:
        with contextlib.ExitStack() as stack:
            ours = stack.enter_context(contextlib.closing(self._start(self.best)))
            theirs = stack.enter_context(contextlib.closing(self._start({**self.best, **setting})))
            first = _pair(ours, theirs, self._warm_up)
            return self._judged(setting, first, self._pairs(ours, theirs))

    def _pairs(self, ours: Contestant, theirs: Contestant) -> list[Pair]:
        """Lets both train in turns until it is clear which is faster, or has been tried often enough."""
        glimpses = [_pair(ours, theirs, self._warm_up) for _ in range(2)]
        if max(_gains(glimpses)) < HOPELESS:  # a whole slice could take a minute
            return glimpses
        pairs: list[Pair] = []
        try:
            while len(pairs) < MOST_PAIRS and not _is_clear(pairs):
                pairs.append(_pair(ours, theirs, self._slice, swapped=len(pairs) % 2 == 1))
        except OutOfTimeError:
            if len(pairs) < LEAST_PAIRS:
                raise
        return pairs

    def _judged(self, setting: Setting, first: Pair, pairs: Sequence[Pair]) -> Trial:
        gain, spread = gain_and_spread(pairs)
        certain = abs(gain) > max(spread, LEAST_GAIN)
        faster = taken = certain and gain > 0
        compilation = None
        if first[0].compiled != first[1].compiled:
            compiled = int(first[1].compiled)
            pays = certain and faster == compiled
            compilation = self._compilation(first, pairs, compiled, pays)
            if pays and compilation.pays_after > compilation.planned:
                taken = not compiled
        unsure = "no difference" if spread <= UNCLEAR else "not clear"
        verdict = "taken" if taken else "faster" if faster else "slower" if certain else unsure
        present, speed = (median(pair[side].env_steps_per_second for pair in pairs) for side in (0, 1))
        return Trial(setting, verdict, taken, speed, present, gain, spread, compilation)

    def _compilation(self, first: Pair, pairs: Sequence[Pair], compiled: int, pays: bool) -> Compilation:
        """Returns what it costs, where of each pair the one numbered ``compiled`` is compiled."""

        def usual(side: int, count: str) -> float:  # seconds
            return median(pair[side].seconds / max(1, getattr(pair[side], count)) for pair in pairs)

        # What the first iterations took longer than later ones; some of it has nothing to do with compiling.
        slow = [
            begun.seconds - begun.iterations * usual(side, "iterations") for side, begun in enumerate(first)
        ]
        seconds = max(0.0, slow[compiled] - slow[1 - compiled])
        saved = usual(1 - compiled, "updates") - usual(compiled, "updates")
        return Compilation(seconds, seconds / saved if pays and saved > 0 else math.inf, self._planned)


def _pair(ours: Contestant, theirs: Contestant, iterations: int, *, swapped: bool = False) -> Pair:
    """Lets both train; ``swapped``, so that neither is always the one that comes after the other."""
    if swapped:
        second = theirs.measure(iterations)
        return ours.measure(iterations), second
    return ours.measure(iterations), theirs.measure(iterations)


def _gains(pairs: Sequence[Pair]) -> list[float]:
    return [theirs.env_steps_per_second / ours.env_steps_per_second - 1 for ours, theirs in pairs]


def gain_and_spread(pairs: Sequence[Pair]) -> tuple[float, float]:
    """Returns by how much the second of each pair is faster, the median, and by how much the pairs differ."""
    gains = _gains(pairs)
    return median(gains), (max(gains) - min(gains)) / 2


def _is_clear(pairs: Sequence[Pair]) -> bool:
    """Returns whether more pairs would hardly change the verdict; fewer must differ less among themselves."""
    if len(pairs) < LEAST_PAIRS:
        return False
    gain, spread = gain_and_spread(pairs)
    return abs(gain) > max(CLEAR * spread, LEAST_GAIN)


class TrainingProcess:
    """A contestant in a process of its own.

    One that has run with other threads is no fair place: compiled code, thread pools and the allocator
    keep what they began with.

    Args:
        command: arguments of ``ding-lite`` that start one that takes numbers of iterations from standard
            input, a line each, and answers with a profile as JSON.
        deadline: by ``time.monotonic``; the process is ended then.
    """

    def __init__(self, command: Sequence[str], deadline: float) -> None:
        self._deadline, self._asked = deadline, False
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in close
        # What can be imported here, such as the module of --import, can be there.
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ding_lite", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )

    def measure(self, iterations: int) -> Profile:
        """Trains on, and returns where the time went.

        Raises:
            TrialError: if the process has ended.
            OutOfTimeError: if it has not answered by the deadline.
        """
        assert self._process.stdin
        assert self._process.stdout
        alarm = threading.Timer(max(0.0, self._deadline - time.monotonic()), self._process.terminate)
        alarm.start()
        self._asked = True
        try:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(f"{iterations}\n")
                self._process.stdin.flush()
            # A module of the user's own may print something while it is imported.
            answer = next((line for line in self._process.stdout if line.startswith("{")), "")
        finally:
            alarm.cancel()
        if not answer:
            if time.monotonic() >= self._deadline:
                raise OutOfTimeError
            raise TrialError(self._last_words())
        self._asked = False
        told = json.loads(answer)
        return Profile(**{**told, "phases": tuple(Phase(*phase) for phase in told["phases"])})

    def _last_words(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        lines = [line for line in self._errors.read().splitlines() if line.strip()]
        said = lines[-1].partition(": error: ")[2] or lines[-1] if lines else ""
        return said or f"the process ended with code {code}"

    def close(self) -> None:
        """Ends the process: at once if it has not answered, and by itself otherwise."""
        assert self._process.stdin
        assert self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        for end in (self._process.terminate if self._asked else lambda: None, self._process.kill):
            end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_SECONDS)
                break
        self._process.stdout.close()
        self._errors.close()
