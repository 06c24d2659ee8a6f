"""Cases that several processes share: each has some of the environments.

python -m torch.distributed.run --nproc-per-node=K ranks.py FOLDER FAULT SEED...

writes the record of each rank. FAULT is "none", or "alone": each rank takes steps along its own gradient.

The reference replays what the ranks did together, as one process with all their environments: a minibatch has
the samples that the ranks have in their own at the same step.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import torch

from ding_lite.policies.optimizer import Optimizer
from reference import sweep, taps
from reference.recording import map_tree


def merged(records: list[taps.Record]) -> taps.Record:
    """Returns the record of all ranks, as that of one process, with the metrics of the first."""
    first = records[0]
    whole = taps.Record(
        [log for record in records for log in record.logs],
        sum(record.warm_up for record in records),
        first.parameters,
        first.frozen,
        first.intrinsic,
    )
    for parts in zip(*(record.iterations for record in records), strict=True):
        draws = {}
        for name in parts[0].draws:
            together = zip(*(part.draws[name] for part in parts), strict=True)
            draws[name] = [sum(minibatches, []) for minibatches in together]
        whole.iterations.append(
            taps.Iteration(
                _joined([part.rollout for part in parts]),
                [calls for part in parts for calls in part.calls],
                draws,
                parts[0].metrics,
                tuple(each for part in parts for each in part.parameters),
            )
        )
    return whole


def _joined(rollouts: list[dict]) -> dict:
    """Returns rollouts (T, B) side by side."""
    width = rollouts[0]["valid"].shape[1]
    finals = [rollout.pop("final", None) for rollout in rollouts]
    last = [{"last_obs": rollout.pop("last_obs")} for rollout in rollouts]
    for rank, final in enumerate(finals):
        if final is not None:
            final["env"] = final["env"] + rank * width
    found = {
        name: map_tree(lambda *leaves: np.concatenate(leaves, 1), *(rollout[name] for rollout in rollouts))
        for name in (
            "obs",
            "action",
            "log_prob",
            "reward",
            "terminated",
            "truncated",
            "valid",
            *taps.CREDIT[:3],
        )
    }
    found |= map_tree(lambda *leaves: np.concatenate(leaves), *last)
    if finals := [final for final in finals if final is not None]:
        found["final"] = map_tree(lambda *leaves: np.concatenate(leaves), *finals)
    return found


def compare(folder: Path, seed: int, ranks: int) -> sweep.Outcome:
    """Compares what the ranks wrote to a folder with the reference."""
    records = [pickle.loads((folder / f"{seed}_{rank}").read_bytes()) for rank in range(ranks)]
    return sweep.Comparison(sweep.random_case(seed, ranks), merged(records), ranks).run()


def main(folder: str, fault: str, *seeds: str) -> None:
    """Runs the library as one rank."""
    torch.set_num_threads(1)
    with taps.joined() as ranks:
        if fault == "alone":
            averaged = Optimizer._averaged

            def alone(self, gradient, samples):
                own = gradient.flat.clone()
                result = averaged(self, gradient, samples)
                gradient.flat.copy_(own)
                return result

            Optimizer._averaged = alone
        for seed in map(int, seeds):
            found = sweep.random_case(seed, ranks.size).record(ranks)
            (Path(folder) / f"{seed}_{ranks.rank}").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
