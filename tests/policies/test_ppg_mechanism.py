"""What PPG is for, on real environments: the policy's network learns the value, and the policy stays.

Each bound has a run that breaks it: no cloning (aux_bc_weight 0), and values without a scale.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ding_lite import SerialPipeline

BOUND = 0.01  # of the mean KL(old || new) at the end of a phase
PHASES = 2


def phases(folder, kind="ppg", arch="dual", **learn):
    """Trains over two auxiliary phases; returns the KL of each, and the value error of the policy's net."""
    learn = dict(learning_rate=2e-3, aux_freq=4) | learn
    config = dict(
        num_threads=1,
        env=dict(env_id="CartPole-v1"),
        policy=dict(
            type=kind,
            model=dict(arch=arch),
            learn=learn,
            collect=dict(n_sample=512),
            eval=dict(eval_freq=0),
        ),
        logger=dict(trackers=[]),
    )
    told = []
    with SerialPipeline(config, folder=folder) as pipeline:
        for progress in pipeline:
            metrics = {name.removeprefix("learn/"): value for name, value in progress.metrics.items()}
            if "auxiliary_loss" in metrics:
                # The error of the auxiliary head, as a share of the targets' variance.
                before, after = (1 - metrics[f"aux_explained_variance{name}"] for name in ("_before", ""))
                told.append(SimpleNamespace(kl=metrics["aux_kl"], before=before, after=after))
            if len(told) == PHASES:
                break
    return told


@pytest.mark.parametrize(("kind", "arch"), [("ppg", "dual"), ("ppg_offpolicy", "detach")])
def test_cartpole_value_error_falls_and_the_policy_stays(kind, arch, tmp_path):
    for phase in phases(tmp_path / "run", kind, arch):
        assert phase.after < 0.9 * phase.before
        assert 0 < phase.kl < BOUND


@pytest.mark.parametrize("learn", [dict(aux_bc_weight=0.0), dict(value_norm=False)])
def test_cartpole_policy_does_not_stay_without_cloning_or_where_values_have_no_scale(learn, tmp_path):
    assert max(phase.kl for phase in phases(tmp_path / "run", **learn)) > BOUND
