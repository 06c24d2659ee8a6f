"""Straight through, or half, saved, a new process, and the other half: the whole state is the same."""

import copy
import json
import os
import subprocess
import sys
import textwrap

import pytest
from small_worlds import SeededEnv
from worlds import digest, merged, small_config

from ding_lite import SerialPipeline
from ding_lite.errors import CheckpointError, DingLiteError
from ding_lite.run.checkpoint import load_checkpoint, save_checkpoint
from ding_lite.run.load import as_tensors

EVERYTHING = {
    "normalize": {"obs": True, "reward": True, "reward_clip": 5.0},
    "learn": {
        "value_norm": True,
        "value_clip": 0.3,
        "lr_schedule": "linear",
        "clip_schedule": "linear",
        "clip_final": 0.1,
        "entropy_schedule": "linear",
        "entropy_weight": 0.01,
    },
}
# Its episodes take 200 steps: two of them end in the first half.
PENDULUM = small_config(
    "Pendulum-v1", max_env_step=3000, env={"collector_env_num": 3}, policy={"collect": {"n_sample": 450}}
)
WORLDS = {
    "native CartPole": small_config(),
    "base CartPole": small_config(env={"manager": {"type": "base"}}),
    "Pendulum": PENDULUM,
}
WORLDS["Pendulum in workers"] = merged(
    PENDULUM, {"env": {"manager": {"type": "subprocess", "worker_num": 2}}}
)
WORLDS["Pendulum in two halves"] = merged(
    PENDULUM, {"env": {"manager": {"type": "subprocess", "worker_num": 2, "double_buffer": True}}}
)
for name in list(WORLDS):
    WORLDS[name] = merged(WORLDS[name], {"policy": EVERYTHING})
# Cut between two auxiliary phases, with old rollouts in the buffers.
PHASES = {"aux_freq": 4, "aux_train_epoch": 2, "critic_epoch_per_collect": 2}
OTHERS = {
    "ppo_offpolicy": {"reuse": 2},
    "ppg": PHASES,
    "ppg_offpolicy": PHASES,
}
for kind, learn in OTHERS.items():
    for name in ("native CartPole", "base CartPole", "Pendulum in workers"):
        world = merged(WORLDS[name], {"policy": {"type": kind, "learn": learn}})
        del world["policy"]["learn"]["epoch_per_collect"]
        WORLDS[f"{name}, {kind}"] = world
# Compiling takes most of a minute a world: here one of them, all with DING_LITE_COMPILED=1.
COMPILED = ["native CartPole"]
for name in list(WORLDS) if os.environ.get("DING_LITE_COMPILED") else COMPILED:
    WORLDS[f"{name}, compiled"] = merged(WORLDS[name], {"policy": {"learn": {"compile": True}}})
WORLDS["native CartPole, evaluated"] = small_config(policy={"eval": {"eval_freq": 256}})
WORLDS["Pendulum, plain"] = merged(PENDULUM, {"policy": {"learn": {"value_norm": False}}})
ITERATIONS = 6


def train(config, folder, iterations):
    """Runs some iterations and stops as a script would, by ``break``."""
    pipeline = SerialPipeline(config, folder=folder)
    for progress in pipeline:
        if progress.iteration == iterations:
            break
    pipeline.close()
    return folder


def resume_elsewhere(folders, iterations):
    """Goes on with each run in one new process until ``iterations``."""
    code = """
        import sys
        from ding_lite import SerialPipeline
        for folder in sys.argv[2:]:
            pipeline = SerialPipeline.resume(folder)
            for progress in pipeline:
                if progress.iteration == int(sys.argv[1]):
                    break
            pipeline.close()
    """
    command = [
        sys.executable,
        "-W",
        "error",
        "-c",
        textwrap.dedent(code),
        str(iterations),
        *map(str, folders),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr


def state_of(folder):
    """Returns the saved state without the clock."""
    state, _ = load_checkpoint(folder / "ckpt" / "last")
    assert state.pop("clock")["wall_time"] > 0
    return state


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """For each world the metrics after the first half, and the run after both, in two processes."""
    root = tmp_path_factory.mktemp("halves")
    folders = {name: train(config, root / name, ITERATIONS // 2) for name, config in WORLDS.items()}
    metrics = {name: (folder / "metrics.csv").read_bytes() for name, folder in folders.items()}
    resume_elsewhere(folders.values(), ITERATIONS)
    return {name: (metrics[name], folder) for name, folder in folders.items()}


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_half_and_half_in_two_processes_equal_straight_through(world, halves, tmp_path):
    expected = state_of(train(WORLDS[world], tmp_path / "straight", ITERATIONS))
    state = state_of(halves[world][1])
    assert {name: digest(part) for name, part in state.items()} == {
        name: digest(part) for name, part in expected.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_metrics_of_the_first_half_are_kept_byte_for_byte(world, halves):
    before, folder = halves[world]
    after = (folder / "metrics.csv").read_bytes()
    assert after.startswith(before)
    assert after.count(b"\n") == 1 + ITERATIONS


def resumed(folder, iterations, **options):
    pipeline = SerialPipeline.resume(folder, **options)
    for progress in pipeline:
        if progress.iteration == iterations:
            break
    pipeline.close()
    return folder


@pytest.mark.slow
def test_any_iteration_may_be_the_cut(tmp_path):
    config = WORLDS["base CartPole"]
    expected = digest(state_of(train(config, tmp_path / "straight", ITERATIONS)))
    for cut in range(1, ITERATIONS):
        folder = train(config, tmp_path / f"cut_{cut}", cut)
        assert digest(state_of(resumed(folder, ITERATIONS))) == expected


def test_two_cuts_are_as_good_as_one(tmp_path):
    config = WORLDS["native CartPole"]
    expected = digest(state_of(train(config, tmp_path / "straight", ITERATIONS)))
    folder = train(config, tmp_path / "run", 2)
    resumed(folder, 4)
    assert digest(state_of(resumed(folder, ITERATIONS))) == expected


def test_loading_and_saving_again_changes_nothing(tmp_path):
    folder = train(WORLDS["Pendulum"], tmp_path / "run", 2)
    before = digest(state_of(folder))
    pipeline = SerialPipeline.resume(folder)
    pipeline.save("last")
    pipeline.close()
    assert digest(state_of(folder)) == before


def test_metrics_are_the_same_rows_as_straight_through(tmp_path):
    config = WORLDS["native CartPole, evaluated"]
    straight = train(config, tmp_path / "straight", ITERATIONS)
    halves = resumed(train(config, tmp_path / "halves", 3), ITERATIONS)

    def rows(folder):
        first, *lines = (folder / "metrics.csv").read_text().splitlines()
        keep = [i for i, name in enumerate(first.split(",")) if not name.startswith("time/")]
        return [[line.split(",")[i] for i in keep] for line in (first, *lines)]

    assert rows(straight) == rows(halves)
    assert (straight / "episodes.csv").read_bytes() == (halves / "episodes.csv").read_bytes()


def test_rows_past_the_checkpoint_are_cut_before_going_on(tmp_path):
    """As after a crash: metrics.csv got further than the last save."""
    config = WORLDS["native CartPole"]
    folder = train(config, tmp_path / "run", 2)
    kept = {name: (folder / name).read_bytes() for name in ("metrics.csv", "episodes.csv")}
    pipeline = SerialPipeline.resume(folder)
    pipeline.step()
    pipeline.close()  # no save
    with (folder / "metrics.csv").open("a") as stream:
        stream.write("99999,12,torn")
    SerialPipeline.resume(folder).close()
    assert {name: (folder / name).read_bytes() for name in kept} == kept


def test_new_limit_of_a_resumed_run_leaves_its_schedules_alone(tmp_path):
    config = WORLDS["native CartPole"]
    folder = train(config, tmp_path / "run", 2)
    pipeline = SerialPipeline.resume(folder, max_env_step=10**6)
    assert pipeline.cfg.max_env_step == 10**6
    assert pipeline.cfg.policy.learn.schedule_env_step == config["max_env_step"]
    pipeline.close()


def test_wall_time_goes_on(tmp_path):
    folder = train(WORLDS["native CartPole"], tmp_path / "run", 2)
    saved = load_checkpoint(folder / "ckpt" / "last")[0]["clock"]["wall_time"]
    pipeline = SerialPipeline.resume(folder)
    assert pipeline.wall_time >= saved
    pipeline.close()


# ---------------------------------------------------------------------- the tests above would notice


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Half a run, its state, and what the hash is after the other half."""
    folder = train(WORLDS["base CartPole"], tmp_path_factory.mktemp("runs") / "run", 3)
    state, config = load_checkpoint(folder / "ckpt" / "last")
    return state, config, outcome(state, config, tmp_path_factory.mktemp("runs") / "whole")


def outcome(state, config, folder):
    """Returns the hash of the whole state after the other half, or "refused"."""
    save_checkpoint(folder / "ckpt" / "last", state, config)
    (folder / "config.json").write_text(json.dumps(config))
    try:
        return digest(state_of(resumed(folder, ITERATIONS)))
    except DingLiteError:
        return "refused"


TOP = ["policy", "collector", "learner", "progress", "scores", "clock"]
GENERATORS = [f"generator of {name}" for name in ("action", "layers", "minibatch")]
OF_POLICY = [
    *("model", "optimizer", "replay", "progress", *GENERATORS),
    *("obs_norm", "reward_scale", "value_norm"),
]
OF_PARTS = [
    *[("collector", name) for name in ("envs", "finished", "episode_count")],
    *[("collector", "envs", name) for name in ("stream", "pending_reset", "obs", "envs")],
    ("learner", "train_iter"),
    *[("progress", name) for name in ("env_step", "train_iter", "iteration", "solved", "past_solved")],
    *[("scores", name) for name in ("best", "iteration", "last")],
    *[("policy", "progress", name) for name in ("env_step", "learning_rate", "configured")],
    *[("policy", "reward_scale", name) for name in ("mean", "var", "count", "running_return")],
    *[("policy", "value_norm", name) for name in ("mean", "var", "count")],
    *[("policy", "optimizer", name) for name in ("learning_rate", "counts", "moments")],
    *[("policy", "optimizer", "moments", *path) for path in (("0",), ("0", "mean"), ("3", "square"))],
    *[("policy", name, "state") for name in GENERATORS],
    ("clock", "wall_time"),
]


def test_every_part_of_the_state_is_listed_here(saved):
    assert sorted(saved[0]) == sorted(TOP)
    assert sorted(saved[0]["policy"]) == sorted(OF_POLICY)


@pytest.mark.daily(20)
@pytest.mark.parametrize(
    "path",
    [*[(name,) for name in TOP], *[("policy", name) for name in OF_POLICY], *OF_PARTS],
    ids=lambda path: ".".join(map(str, path)),
)
def test_state_that_lacks_anything_is_refused(saved, path, tmp_path):
    state, config, _ = saved
    state = copy.deepcopy(state)
    parent = state
    for name in path[:-1]:
        parent = parent[name]
    del parent[path[-1]]
    assert outcome(state, config, tmp_path / "run") == "refused"


CHANGES = {
    "model": lambda s: s["policy"]["model"]["actor_head.layers.0.bias"].__setitem__(0, 0.25),
    "actions": lambda s: s["policy"][GENERATORS[0]].update(state=s["policy"][GENERATORS[2]]["state"]),
    "minibatches": lambda s: s["policy"][GENERATORS[2]].update(state=s["policy"][GENERATORS[0]]["state"]),
    "counts": lambda s: s["policy"]["optimizer"].update(counts=0 * s["policy"]["optimizer"]["counts"]),
    "moments": lambda s: s["policy"]["optimizer"]["moments"].update(
        {"1": s["policy"]["optimizer"]["moments"]["0"], "0": s["policy"]["optimizer"]["moments"]["1"]}
    ),
    "obs_norm": lambda s: next(iter(s["policy"]["obs_norm"].values())).update(count=5.0),
    "reward_scale": lambda s: s["policy"]["reward_scale"].update(running_return=None),
    "value_norm": lambda s: s["policy"]["value_norm"].update(count=5.0),
    "schedule": lambda s: s["policy"]["progress"].update(env_step=0),
    "learning_rate": lambda s: s["policy"]["progress"].update(learning_rate=1e-5),
    "episodes": lambda s: s["collector"]["envs"]["envs"][1].update(episode=77),
    "finished": lambda s: s["collector"].update(finished=s["collector"]["finished"][:1]),
    "train_iter": lambda s: s["learner"].update(train_iter=0),
    "scores": lambda s: s["scores"].update(best=3.0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_state_that_differs_anywhere_is_refused_or_ends_elsewhere(saved, change, tmp_path):
    state, config, expected = saved
    state = copy.deepcopy(state)
    change(state)
    assert outcome(state, config, tmp_path / "run") != expected


def test_unchanged_state_ends_where_it_should(saved, tmp_path):
    state, config, expected = saved
    assert expected != "refused"
    assert outcome(copy.deepcopy(state), config, tmp_path / "run") == expected


def test_state_of_another_model_is_refused(saved, tmp_path):
    state, _, _ = saved
    other = merged(WORLDS["base CartPole"], {"policy": {"model": {"encoder_hidden_size_list": [8]}}})
    pipeline = SerialPipeline(other, folder=tmp_path / "run")
    with pytest.raises(CheckpointError, match="'model' does not fit"):
        pipeline.policy.load_state_dict(as_tensors(copy.deepcopy(state["policy"])))
    pipeline.close()


def test_state_of_another_number_of_environments_is_refused(saved, tmp_path):
    state, config, _ = saved
    config = merged(config, {"config": {"env": {"collector_env_num": 3}}})
    assert outcome(copy.deepcopy(state), config, tmp_path / "run") == "refused"


def test_environments_of_ones_own_are_resumed_through_env_setting(tmp_path):
    config = small_config(SeededEnv)
    setting = (lambda cfg: SeededEnv(), [0, 1, 2, 3], [0, 1])

    def half(folder, iterations):
        pipeline = SerialPipeline(config, folder=folder, env_setting=setting)
        for progress in pipeline:
            if progress.iteration == iterations:
                break
        pipeline.close()
        return folder

    straight, halves = half(tmp_path / "straight", 4), half(tmp_path / "halves", 2)
    resumed(halves, 4, env_setting=setting, trust=["small_worlds"])
    assert digest(state_of(straight)) == digest(state_of(halves))
