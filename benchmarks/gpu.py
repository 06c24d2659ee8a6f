"""Everything that waits for a GPU, step by step; a stopped measurement continues.

    python benchmarks/gpu.py                 every step that is not done
    python benchmarks/gpu.py STEP ...        only these steps
    python benchmarks/gpu.py --minutes 9     stop after nine minutes; a training saves first
    python benchmarks/gpu.py --dry-run       each step on the CPU with little work; stores nothing

    tests        the tests that need a GPU
    waits        how often the host waits for the device in one iteration of each policy
    gradients    gradient steps: eager, as a CUDA graph, in bfloat16; their numbers and their speed
    atari        steps per second with LeanRL's settings of PPO on Atari
    procgen      steps per second of PPG with the network of arXiv:2009.04416
    bigfish_ppo, bigfish_ppg, starpilot_ppo, starpilot_ppg
                 trainings of 25M steps with the paper's network

Results are in gpu/STEP.json (remove the file to measure again), the trainings in runs/gpu. RESULTS.md is
rewritten between its markers.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import report
import torch
from speed_rows import GPU_ROWS
from timing import run_system

from ding_lite.config.compile import compile_config
from ding_lite.config.registry import POLICY_REGISTRY
from ding_lite.data.rollout import as_rollout
from ding_lite.policies.ppo import PPOPolicy
from ding_lite.run.pipeline import SerialPipeline

HERE = Path(__file__).parent
STORE = HERE / "gpu"
RUNS = Path("runs") / "gpu"
LEANRL = "LeanRL on one H100, frames/s: 1,022 eager, 3,728 compiled, 6,809 with CUDA graphs (its README)."
SAVING = 60.0  # seconds that a training has to save
POLICIES = ("ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy")

# Networks of the step "gradients": shape of the observations, samples of a minibatch, policy.model.
NETWORKS: dict[str, tuple[tuple[int, ...], int, dict[str, Any]]] = {
    "two layers of 64": ((8,), 256, {}),
    "Nature CNN": (
        (4, 84, 84),
        256,
        {"encoder": {"type": "nature_cnn"}, "share_encoder": True, "encoder_hidden_size_list": [512]},
    ),
    "IMPALA CNN": ((3, 64, 64), 2048, {"encoder": {"type": "impala_cnn"}, "share_encoder": True}),
}
ARMS: dict[str, dict[str, Any]] = {
    "eager": {"cuda_graph": False},
    "CUDA graph": {"cuda_graph": True},
    "bfloat16": {"cuda_graph": False, "dtype": "bfloat16"},
    "bfloat16, CUDA graph": {"cuda_graph": True, "dtype": "bfloat16"},
}


class Out:
    """Where and how long a step runs.

    Args:
        deadline: time.monotonic() at which a step should end.
        dry: whether to do little work, on the CPU.
    """

    def __init__(self, deadline: float, dry: bool) -> None:
        self.deadline, self.dry = deadline, dry
        self.device = "cpu" if dry else "cuda"

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()


Result = dict[str, Any]  # {"done": bool, "lines": of the section in RESULTS.md, and the numbers}


def tests(out: Out) -> Result:
    """Runs the tests that need a GPU."""
    # A file that needs a package that is not installed counts as an error, and the others run.
    options = ("-m", "gpu", "-p", "no:cacheprovider", "--continue-on-collection-errors")
    command = [sys.executable, "-m", "pytest", "-q", *options]
    process = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parent)
    summary = process.stdout.strip().splitlines()[-1]
    counts = {kind: int(n) for n, kind in re.findall(r"(\d+) (passed|failed|skipped|error)", summary)}
    if not counts:
        raise RuntimeError(f"pytest ran no test: {process.stdout[-2000:]}{process.stderr[-2000:]}")
    failed = [line for line in process.stdout.splitlines() if line.startswith("FAILED")]
    lines = [f"`pytest -m gpu`: {', '.join(f'{n} {kind}' for kind, n in counts.items())}.", *failed]
    return {"done": True, "counts": counts, "lines": lines}


def waits(out: Out) -> Result:
    """Counts the waits for the device in one iteration of each policy (torch's sync debug mode)."""
    counts = {}
    for kind in POLICIES:
        pipeline = SerialPipeline(
            dict(
                max_env_step=1,
                env=dict(env_id="CartPole-v1", n_evaluator_episode=1, max_eval_steps=1),
                policy=dict(type=kind, device=out.device, learn=dict(batch_size=256)),
            ),
            folder=RUNS / f"waits_{kind}_{time.time_ns()}",
        )
        rollout = pipeline.collector.collect()
        learned = pipeline.policy.learn_mode.forward(rollout)  # the first iteration also warms up
        counts[kind] = {
            "collect": _waits_in(pipeline.collector.collect, out),
            "learn": _waits_in(lambda p=pipeline: p.policy.learn_mode.forward(p.collector.collect()), out),
            "gradient steps": learned["updates"],
        }
        counts[kind]["learn"] -= counts[kind]["collect"]
        pipeline.close()
    lines = [
        "| policy | waits while collecting | waits while learning | gradient steps |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {kind} | {of['collect']} | {of['learn']} | {of['gradient steps']} |"
        for kind, of in counts.items()
    ]
    return {"done": True, "counts": counts, "lines": lines}


def _waits_in(work: Callable[[], Any], out: Out) -> int:
    if out.dry:
        work()
        return 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(each.message) for each in caught)


def gradients(out: Out) -> Result:
    """Compares gradient steps of three networks: parameters after ten steps, and steps per second."""
    lines = [
        "| network, samples | arm | gradient steps/s | largest difference of a parameter after 10 steps |",
        "|---|---|---|---|",
    ]
    rows = []
    for network, (shape, samples, model) in NETWORKS.items():
        size = 2 if out.dry else samples
        eager: torch.Tensor | None = None
        for arm, options in ARMS.items():
            if "dtype" in options and len(shape) == 1:
                continue  # encoders of vectors have no other precision
            policy = _policy(shape, size, model, options, out)
            steps = 2 if out.dry else 10
            batches = list(policy.minibatches(_rollout(policy, shape, steps, size)).batches)
            policy.optimizer.steps(policy.objective, batches)
            parameters = torch.cat([p.detach().flatten().float() for p in policy.model.parameters()])
            eager = parameters if eager is None else eager
            speed = _steps_per_second(policy, batches, out)
            difference = float((parameters - eager).abs().max())
            rows.append({"network": network, "arm": arm, "speed": speed, "difference": difference})
            lines.append(f"| {network}, {size} | {arm} | {speed:,.0f} | {difference:.1e} |")
    return {"done": True, "rows": rows, "lines": lines}


def _policy(
    shape: tuple[int, ...], size: int, model: dict[str, Any], options: dict[str, Any], out: Out
) -> PPOPolicy:
    low, high, dtype = (0, 255, np.uint8) if len(shape) > 1 else (-1.0, 1.0, np.float32)
    own = {"encoder_dtype": options["dtype"]} if "dtype" in options else {}
    policy = dict(
        device=out.device,
        cuda_graph=options["cuda_graph"],
        model={**model, **own},
        learn=dict(batch_size=size, compile=False, value_norm=False),
    )
    cfg = compile_config(dict(env=dict(env_id="CartPole-v1"), policy=policy)).values.policy
    spaces = gym.spaces.Box(low, high, shape, dtype), gym.spaces.Discrete(6)
    made: PPOPolicy = POLICY_REGISTRY.get("ppo")(cfg, *spaces, seed=0)
    return made


def _rollout(policy: PPOPolicy, shape: tuple[int, ...], steps: int, envs: int) -> Any:
    """Returns a rollout of one minibatch for each step, of random observations and the policy's actions."""
    rng = np.random.default_rng(0)
    shape = (steps, envs, *shape)
    numbers = rng.integers(0, 256, shape) if len(shape) > 3 else rng.normal(size=shape)
    obs = torch.from_numpy(numbers.astype(policy.obs_space.dtype))
    output = [policy.collect_mode.forward(row.numpy()) for row in obs]
    no = torch.zeros(steps, envs, dtype=torch.bool)
    return policy.collect_mode.get_train_sample(
        as_rollout(
            {
                "obs": obs,
                "action": torch.stack([row["action"] for row in output]).cpu(),
                "log_prob": torch.stack([row["log_prob"] for row in output]).cpu(),
                "reward": torch.from_numpy(rng.normal(size=(steps, envs)).astype(np.float32)),
                "terminated": no,
                "truncated": no.clone(),
                "valid": ~no,
                "last_obs": obs[-1],
            }
        )
    )


def _steps_per_second(policy: PPOPolicy, batches: list[Any], out: Out) -> float:
    steps, began = 0, time.perf_counter()
    seconds = 0.0 if out.dry else 3.0
    while not steps or time.perf_counter() - began < seconds:
        policy.optimizer.steps(policy.objective, batches)  # its end waits for the device
        steps += len(batches)
    return steps / (time.perf_counter() - began)


def speed(name: str, out: Out) -> Result:
    """Measures the systems of a row in interleaved rounds; each measurement is a process of its own."""
    row = GPU_ROWS[name]
    if out.dry:
        first, *_, last = row.systems.items()  # the others differ from the first by an option
        for arm, system in [first, last] if first[1].work.samples < 4_096 else [last]:
            process, _ = run_system(name, arm, system.work.samples, system.work.threads)
            print(f"{name}  {arm}: {process.skipped or 'runs'}", flush=True)
        return {"done": True, "lines": []}
    file = STORE / f"{name}.json"
    stored = json.loads(file.read_text()) if file.exists() else {"arms": {}, "skipped": {}}
    finished = True
    for number in range(row.rounds):
        for arm in row.arms:
            done = stored["arms"].setdefault(arm, [])
            if len(done) > number or arm in stored["skipped"]:
                continue
            if out.seconds_left < 2 * SAVING:
                finished = False
                continue
            measured = row.measure(arm, number)
            if "skipped" in measured:
                stored["skipped"][arm] = measured["skipped"]
            else:
                done.append(measured)
            _store(name, stored)
            print(f"{name}  round {number + 1}  {arm}: {measured}", flush=True)
    lines = row.lines(stored["arms"], stored["skipped"])
    return {**stored, "done": finished, "lines": [*lines, *(["", LEANRL] if name == "atari" else [])]}


def learn(name: str, out: Out) -> Result:
    """Trains a shipped config of Procgen, or continues it; an interrupted training saves."""
    game, kind = name.split("_")
    folder = RUNS / name
    command = [sys.executable, "-m", "ding_lite", "train", "-q", f"policy.device={out.device}"]
    if out.dry:
        folder = RUNS / f"dry_{name}_{time.time_ns()}"
        small = ("max_env_step=256", "policy.collect.n_sample=256", "policy.learn.batch_size=64")
        small += ("env.collector_env_num=4", "env.n_evaluator_episode=1", "env.evaluator_env_num=1")
        small += ("env.max_eval_steps=2",)
        command += small
    if (folder / "ckpt").is_dir():
        command += ["--resume", str(folder)]
    else:
        command += ["-c", f"procgen_{game}_{kind}", "--exp-name", str(folder)]
    process = subprocess.Popen(command)
    try:
        process.wait(max(0.0, out.seconds_left - SAVING))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        process.wait()
    if process.returncode not in (0, 130):
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    result = json.loads((folder / "result.json").read_text())
    line = (
        f"`train -c procgen_{game}_{kind}`: {result['status']} after {result['env_step']:,} steps, "
        f"{result['env_steps_per_second'] or 0:,.0f} steps/s; last evaluation {result['eval_value']}, "
        f"best {result['best_eval_value']}."
    )
    return {"done": result["status"] in ("finished", "solved"), "result": result, "lines": [line]}


STEPS: dict[str, Callable[[Out], Result]] = {
    "tests": tests,
    "waits": waits,
    "gradients": gradients,
    **{name: lambda out, name=name: speed(name, out) for name in GPU_ROWS},
    **{
        f"{game}_{kind}": lambda out, name=f"{game}_{kind}": learn(name, out)
        for game in ("bigfish", "starpilot")
        for kind in ("ppo", "ppg")
    },
}


def _store(name: str, result: dict[str, Any]) -> None:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    report.store(STORE / f"{name}.json", {**result, "gpu": gpu})


def run_step(name: str, out: Out) -> bool:
    """Runs a step unless it is done; stores its result and writes its lines. Returns whether it is done."""
    file = STORE / f"{name}.json"
    if not out.dry and file.exists() and json.loads(file.read_text()).get("done"):
        print(f"{name}: done before", flush=True)
        return True
    began = time.monotonic()
    result = STEPS[name](out)
    print(f"{name}: {time.monotonic() - began:.0f} s", *result["lines"], sep="\n", flush=True)
    if not out.dry:
        _store(name, result)
        stored = json.loads(file.read_text())
        note = f"Commit {stored['commit']}, {stored['date']}, {stored['gpu']}, {stored['machine']}."
        report.put(f"gpu {name}", [*result["lines"], "", note])
    return bool(result["done"])


def main() -> int:
    """Runs the steps; returns 1 if a step is not done yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(STEPS)}")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so many minutes")
    parser.add_argument("--dry-run", action="store_true", help="little work on the CPU; stores nothing")
    args = parser.parse_args()
    unknown = [name for name in args.steps if name not in STEPS]
    if unknown:
        parser.error(f"unknown step {unknown[0]!r}; there are {', '.join(STEPS)}")
    if not args.dry_run and not torch.cuda.is_available():
        parser.error("there is no GPU that torch can use; --dry-run tries each step on the CPU")
    if args.dry_run:
        torch.set_num_threads(1)
    out = Out(time.monotonic() + 60 * args.minutes, args.dry_run)
    left = []
    for name in args.steps or STEPS:
        if out.seconds_left < 2 * SAVING or not run_step(name, out):
            left.append(name)
    print(f"not done yet: {', '.join(left)}" if left else "all of it is done")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
