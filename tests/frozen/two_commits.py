"""Compares what two commits train, bit for bit: the proof of value of a refactor.

    python tests/frozen/two_commits.py COMMIT              COMMIT against the working tree, every case
    python tests/frozen/two_commits.py COMMIT -k cartpole  the cases whose name has "cartpole" in it

Each case is trained by the command line of both trees, on this machine, one after the other. What must be
equal is metrics.csv without the columns under ``time/``, episodes.csv, and the state in ``ckpt/last`` without
the clock. A run that COMMIT has saved at its half is resumed by the working tree and must end as a straight
run.
The working tree may have more columns and more parts of the state than COMMIT; it may not lack one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests"))
# Several episodes in each environment, so that their order matters.
SMALL = ("env.stop_value=None", "env.evaluator_env_num=2", "env.n_evaluator_episode=7")
SCALES = ("policy.normalize.obs=True", "policy.normalize.reward=True", "policy.normalize.reward_clip=10.0")
NEWEST = (  # values of the newest network, scaled
    *("policy.recompute_adv=True", "policy.learn.value_norm=True", "policy.learn.value_norm_std=1.0"),
)


ITERATIONS = 4


def _case(config: str, n_sample: int, *overrides: str) -> tuple[str, ...]:
    """Returns the arguments of ``train`` for a shipped config, evaluated at the half and at the end."""
    end = ITERATIONS * n_sample
    sizes = (f"policy.collect.n_sample={n_sample}", f"policy.learn.schedule_env_step={end}")
    return ("-c", config, *SMALL, *sizes, f"policy.eval.eval_freq={end // 2}", *overrides)


CASES: dict[str, tuple[str, ...]] = {
    "cartpole, NumPy, native": _case("cartpole_ppo", 512),
    "cartpole, autograd": _case("cartpole_ppo", 512, "policy.model.activation=gelu"),
    "cartpole, subprocess": _case("cartpole_ppo", 512, "env.manager=subprocess", "env.collector_env_num=4"),
    "cartpole, every option": _case(
        "cartpole_ppo",
        512,
        *("policy.learn.target_kl=0.01", "policy.learn.dual_clip=3.0", "policy.learn.value_clip=0.2"),
        *("policy.learn.adv_norm=batch", "policy.learn.clip_schedule=linear", "policy.recompute_adv=True"),
    ),
    "pendulum, scales": _case("pendulum_ppo", 512, *SCALES, *NEWEST),
    "pendulum, tanh-normal, same step": _case(
        "pendulum_ppo",
        512,
        "policy.model.box_distribution=tanh_normal",
        "env.manager.type=base",
    ),
    "hybrid actions": _case(str(ROOT / "examples" / "hybrid_actions.py"), 512),
    "masks": _case(str(ROOT / "examples" / "masked_actions.py"), 512),
    "Tuple observations": _case("cliffwalking_ppo", 512, "env.env_id=Blackjack-v1", "env.wrappers=[]"),
    "Dict observations": _case("minigrid_ppo", 256),
    "images": _case("minatar_ppo", 512),
    "images, ppg": _case("minatar_ppg", 512, "policy.learn.aux_freq=2", "policy.model.arch=dual"),
    "ppo_offpolicy": _case("cartpole_ppo_offpolicy", 512),
    "ppo_offpolicy, n-step": _case("pendulum_ppo_offpolicy", 512, "policy.nstep_return=True"),
    "ppg, dual": _case("cartpole_ppg", 512, "policy.learn.aux_freq=2"),
    "ppg, detach, two optimisers": _case(
        "pendulum_ppg",
        512,
        *("policy.model.arch=detach", "policy.learn.aux_freq=2", "policy.learn.critic_epoch_per_collect=2"),
    ),
    "ppg_offpolicy, shared": _case(
        "pendulum_ppg_offpolicy", 512, "policy.model.arch=shared", "policy.learn.aux_freq=2", *SCALES
    ),
}


def train(tree: Path, work: Path, *arguments: str) -> None:
    """Trains by the command line of ``tree``, in a process of its own, with its folders in ``work``."""
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", "ding_lite", "train", "-q", *arguments]
    done = subprocess.run(command, cwd=work, env=one_thread, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} in {tree}: exit {done.returncode}\n{done.stdout}{done.stderr}")


def facts(run: Path) -> dict[str, str]:
    """Returns a hash of each column of a run's tables and of each leaf of its state."""
    from worlds import digest, rows_of, timeless_rows

    from ding_lite.run.checkpoint import load_checkpoint

    found = {}
    for table, rows in (("metrics", timeless_rows(run)), ("episodes", rows_of(run, "episodes.csv"))):
        for column in rows[0] if rows else ():
            found[f"{table} {column}"] = digest([row[column] for row in rows])
    state, _ = load_checkpoint(run / "ckpt" / "last.safetensors")
    del state["wall_time"]
    return found | {path: digest(leaf) for path, leaf in _leaves(state, "state")}


def _leaves(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from _leaves(value, f"{path}/{name}")
    elif isinstance(tree, list) and not all(isinstance(value, (int, float, str)) for value in tree):
        for number, value in enumerate(tree):
            yield from _leaves(value, f"{path}/{number}")
    else:
        yield path, tree


def differences(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """Returns the names of what the new run lacks, or has otherwise."""
    return [name for name, fact in old.items() if new.get(name) != fact]


def compare(old: Path, new: Path, arguments: tuple[str, ...], work: Path) -> dict[str, list[str]]:
    """Returns what differs between both trees, and between a straight and a resumed run."""
    end = next(int(a.split("=")[1]) for a in arguments if a.startswith("policy.learn.schedule_env_step="))
    whole, half = (("--max-env-step", str(steps)) for steps in (end, end // 2))
    train(old, work, *arguments, "--exp-name", "old", *whole)
    train(new, work, *arguments, "--exp-name", "new", *whole)
    train(old, work, *arguments, "--exp-name", "half", *half)
    train(new, work, *arguments[:2], "--resume", "half", *whole)  # -c lets it import the config's own module
    expected, straight, resumed = (facts(work / name) for name in ("old", "new", "half"))
    return {"straight": differences(expected, straight), "resumed": differences(expected, resumed)}


def main() -> int:
    """Compares the cases that were asked for, and says which differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", help="to compare the working tree with")
    parser.add_argument("-k", default="", metavar="TEXT", help="only the cases whose name has TEXT in it")
    args = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "tree"
        subprocess.run(["git", "clone", "-q", "--no-checkout", str(ROOT), str(old)], check=True)
        subprocess.run(["git", "checkout", "-q", args.commit], cwd=old, check=True)
        for number, (name, arguments) in enumerate(CASES.items()):
            if args.k not in name:
                continue
            work = Path(folder) / str(number)
            work.mkdir()
            found = {kind: names for kind, names in compare(old, ROOT, arguments, work).items() if names}
            failed += bool(found)
            print(f"{name}: {found or 'equal'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
