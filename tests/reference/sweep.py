"""Random configurations, and the comparison of library and reference on each of them.

python -m reference.sweep 0 600        compares these seeds; prints those that differ
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from reference import taps
from reference.algorithm import Draws, Reference
from reference.credit import Credit
from reference.distributions import handed_to_env
from reference.losses import Watch
from reference.networks import Networks
from reference.recording import (
    ACTION_SPACES,
    Mismatch,
    Reader,
    RecordingEnv,
    Step,
    World,
    map_tree,
    mask_shapes,
)

# Relative tolerances. The library computes in float32, with a relative error of about 1e-7 per operation. The
# error of the parameters grows from step to step.
OF_RESULTS = 1e-4  # log-probs, values, advantages, targets: relative to the largest number compared
OF_A_STEP = 0.01  # parameters: relative to the learning rate, about the length of one step of Adam,
OF_PARAMETERS = 1e-5  # plus relative to the largest number in the tensor, which PopArt multiplies
OF_METRICS = 5e-4
# Nats: the library's sum over 41 points errs by up to 2.0e-3 a dimension at the largest sigma, e^2, and an
# action has at most two such dimensions.
OF_TANH_ENTROPY = 2 * 2e-3
# A sample this near to a corner of its loss may be on different sides of it in float32 and in float64. A case
# that differs afterwards is not counted as a disagreement.
TIE = 1e-5
KINDS = ("ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy")
MOST_TRIES = 50  # to draw a configuration that the library accepts
METRICS = (
    *("cur_lr", "clip_ratio", "epochs", "updates", "policy_loss", "value_loss", "total_loss", "approx_kl"),
    *("clipfrac", "grad_norm", "value_grad_norm", "buffer_missing_updates", "entropy_loss"),
    *("policy_buffer_missing_updates", "value_buffer_missing_updates", "aux_updates", "aux_grad_norm"),
    *("auxiliary_loss", "behavioral_cloning_loss", "aux_value_loss", "reference_kl", "intrinsic_reward"),
    *("intrinsic_scale", "intrinsic_loss", "intrinsic_value_loss", "intrinsic_grad_norm"),
)
# Mechanisms, each of which must occur in at least OFTEN cases: else the agreement would not test it.
OFTEN = 5
MECHANISMS = (
    *("terminated", "truncated", "filler", "filler in row 0"),
    *("the clip", "the dual clip", "the value clip", "the straight part of smooth L1", "target_kl"),
    *("grad_clip_type=clip_norm", "grad_clip_type=clip_value", "log sigma at its bound"),
    *("the observation clip", "the reward clip", "V-trace", "the weight bound"),
    *("a sample alone joins a minibatch", "the last pass is cut short", "a rollout makes room"),
    *("too little to draw", "the auxiliary phase", "the auxiliary phase, again", "an intrinsic reward"),
    "another learning rate",
    *("kl_type=exact", "kl_type=k1", "kl_type=k2", "kl_type=k3", "a hidden state of an open episode"),
)
KLS = ("approx_kl", "behavioral_cloning_loss", "reference_kl")


@dataclass
class Case:
    """One configuration; ``chosen`` has the values of the options that were drawn from a list."""

    seed: int
    world: World
    envs: int
    iterations: int
    policy: dict[str, Any]
    log_sigma: float  # at the start
    chosen: dict[str, Any]
    config: Any = None  # complete

    def record(self, ranks: Any = None) -> taps.Record:
        """Returns what the library does with this case."""
        return taps.record(
            self.config,
            lambda: RecordingEnv(self.world),
            autoreset=self.world.autoreset,
            seed=self.seed,
            iterations=self.iterations,
            log_sigma=self.log_sigma,
            ranks=ranks,
        )


class Chooser:
    """Draws options, and records those that are drawn from a list of values."""

    offered: dict[str, set[str]] = {}  # the values of each option, over all choosers

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.chosen = rng, {}

    def one(self, name: str, *values: Any) -> Any:
        """Returns one of ``values``; repeated values are drawn more often."""
        self.chosen[name] = value = values[int(self.rng.integers(len(values)))]
        self.offered.setdefault(name, set()).update(map(str, values))
        return value

    def number(self, low: float, high: float) -> float:
        """Returns a log-uniform number."""
        return float(np.exp(self.rng.uniform(np.log(low), np.log(high))))

    def whole(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))


def random_case(seed: int, ranks: int = 1) -> Case:
    """Returns the configuration of a seed: the first one that the library accepts.

    That of several ranks has equally many environments for each, and minibatches that can be shared.
    """
    rng = np.random.default_rng([20_240_917, seed])
    for _ in range(MOST_TRIES):
        case = _draw_case(seed, Chooser(rng), ranks)
        try:
            case.config = taps.compiled_config(_env_type(case.world), case.envs, case.policy)
            return case
        except taps.Refused as error:
            refused = error
    raise refused


def _env_type(world: World) -> type:
    return type("OneEnv", (RecordingEnv,), {"__init__": lambda self: RecordingEnv.__init__(self, world)})


def _draw_case(seed: int, choose: Chooser, ranks: int) -> Case:
    kind = choose.one("type", KINDS[seed % len(KINDS)])
    action = choose.one("action", *ACTION_SPACES, *["discrete", "box"] * 3)
    world = World(
        action=action,
        masked=choose.one("masked", False, True) if mask_shapes(ACTION_SPACES[action]) else False,
        tree=choose.one("tree", *[False] * 6, True),
        ends=choose.one("ends", (0.12, 0.12), (0.3, 0.05), (0.03, 0.3), (0.0, 0.15), (0.15, 0.0)),
        reward_scale=choose.number(0.5, 3.0),
        reward_shift=choose.one("reward_shift", 0.0, 0.5, -1.0),
        autoreset=choose.one("autoreset", "own", "same_step", "next_step", "disabled"),
    )
    if world.autoreset == "same_step" and seed % 2:
        world = replace(world, autoreset="tensors")
    envs, rows = choose.whole(3, 5) if ranks == 1 else 2 * ranks, choose.whole(6, 12)
    n_sample = max(20, envs * rows - choose.one("rounded_up", 0, 0, 1))
    rows = -(-n_sample // envs)
    iterations = 3
    policy: dict[str, Any] = {"type": kind}
    rnn = choose.one("rnn", *[None] * 6, "lstm", "gru")
    intrinsic = choose.one("intrinsic", *[None] * 6, "rnd")
    policy["nstep_return"] = choose.one("nstep_return", False, False, True)
    policy["nstep"] = choose.one("nstep", 1, 2, 3, 5)
    policy["recompute_adv"] = choose.one("recompute_adv", True, True, False)
    policy["collect"] = {
        "n_sample": n_sample,
        "unroll_len": 1 if rnn or intrinsic else choose.one("unroll_len", 1, 1, 2, 3, 4, 5),
        "discount_factor": choose.one("discount_factor", 0.7, 0.9, 0.99),
        "gae_lambda": choose.one("gae_lambda", 0.0, 0.5, 0.95, 1.0),
    }
    policy["normalize"] = {
        "obs": choose.one("normalize.obs", False, True, "initial"),
        "obs_samples": choose.whole(20, 50),
        "obs_clip": choose.one("obs_clip", 10.0, 1.0),
        "reward": choose.one("normalize.reward", False, True),
        "reward_discount": choose.one("reward_discount", None, 0.5, 0.99),
        "reward_clip": choose.one("reward_clip", None, None, 0.7),
    }
    policy["model"] = _draw_model(kind, action, choose)
    policy["learn"] = _draw_learn(kind, choose, n_sample)
    if policy["model"].get("box_distribution") == "tanh_normal":
        policy["learn"]["entropy_weight"] = 0.0  # the library's entropy is a quadrature
    if rnn:
        policy["model"] |= {"rnn": rnn, "rnn_hidden_size": 4, "rnn_layers": choose.one("rnn_layers", 1, 1, 2)}
        policy["learn"]["sequence_length"] = choose.one("sequence_length", 2, 3, 5, 64)
    if intrinsic:
        policy["intrinsic"] = _draw_intrinsic(choose)
        policy["learn"]["batch_size"] = n_sample  # RND has one minibatch, so its order is of no matter
    if kind.startswith("ppg"):
        frequency = choose.one("aux_freq", 1, 2)
        iterations = 4 if frequency == 2 else 3
        policy["learn"] |= _draw_ppg(choose, frequency, kind == "ppg_offpolicy")
        policy["learn"]["adam_eps"] *= max(1.0, policy["learn"]["aux_bc_weight"])  # so is rounding
    elif kind == "ppo":
        policy["learn"]["epoch_per_collect"] = choose.one("epoch_per_collect", 1, 2, 3)
    if kind.endswith("offpolicy"):
        iterations = 4
        _draw_replay(policy, choose, envs * rows, has_runs=bool(rnn))
    if ranks > 1:
        learn, norm = policy["learn"], policy["normalize"]
        norm["obs_samples"] -= norm["obs_samples"] % envs
        for name in ("batch_size", "aux_batch_size"):
            if learn.get(name):
                learn[name] = ranks * max(2, learn[name] // ranks)
    return Case(
        seed,
        world,
        envs,
        iterations,
        policy,
        log_sigma=choose.one("log_sigma", 0.0, -0.5, 1.9995, 1.9995),
        chosen=choose.chosen,
    )


def _draw_model(kind: str, action: str, choose: Chooser) -> dict[str, Any]:
    model: dict[str, Any] = {
        "encoder_hidden_size_list": choose.one("widths", [6], [5, 4], [8]),
        "activation": choose.one("activation", "tanh", "tanh", "tanh", "relu"),
        "actor_head_hidden_size_list": choose.one("actor_head", [], [], [4]),
        "critic_head_hidden_size_list": choose.one("critic_head", [], [], [4]),
        "init": choose.one("init", "torch", "orthogonal", "normed"),
        "init_gain": {"policy": choose.one("policy_gain", 0.5, 1.0)},
    }
    if kind.startswith("ppg"):
        model["arch"] = choose.one("arch", "dual", "dual", "shared", "detach")
    else:
        model["share_encoder"] = choose.one("share_encoder", False, False, False, True)
    if action in ("box", "dict"):
        model["box_distribution"] = choose.one("box_distribution", *["normal"] * 3, "tanh_normal", "beta")
        if model["box_distribution"] != "beta":
            model["sigma_type"] = choose.one("sigma_type", *["independent"] * 4, "conditioned", "fixed")
            model["fixed_sigma_value"] = 0.7
            model["bound_type"] = choose.one("bound_type", None, None, "tanh", "soft")
    return model


def _draw_learn(kind: str, choose: Chooser, n_sample: int) -> dict[str, Any]:
    # At the start of a phase the gradient of a KL is 0, but about 1e-7 in float32. Adam divides it by eps.
    learn = {
        "learning_rate": choose.number(1e-3, 6e-3),
        "batch_size": choose.whole(5, 20),
        "adam_eps": 1e-3 if kind.startswith("ppg") else choose.one("adam_eps", 1e-5, 1e-3),
        "value_weight": choose.one("value_weight", 0.5, 1.0),
        "entropy_weight": choose.one("entropy_weight", 0.0, 0.02, 0.2),
        "clip_ratio": choose.one("clip_ratio", 0.02, 0.05, 0.2),
        "dual_clip": choose.one("dual_clip", None, None, 1.03, 1.3),
        "value_clip": choose.one("value_clip", None, None, 0.01, 0.1),
        "value_loss": choose.one("value_loss", "mse", "mse", "smooth_l1"),
        "target_kl": choose.one("target_kl", None, None, 1e-4, 5e-4),
        "grad_clip_type": choose.one("grad_clip_type", "clip_norm", "clip_value", None),
        "grad_clip_value": choose.number(0.02, 1.0),
        "adv_norm": choose.one("adv_norm", "minibatch", "batch", False),
        "value_norm": choose.one("value_norm", True, True, False),
        "value_norm_std": choose.one("value_norm_std", 1.0, 3.0),
        "value_norm_decay": choose.one("value_norm_decay", 0.0, 0.5, 0.99, 1.0),
        "schedule_env_step": 4 * n_sample + choose.whole(0, 2 * n_sample),
        **{
            f"{name}_schedule": choose.one(f"{name}_schedule", "constant", "linear", "cosine")
            for name in ("lr", "clip", "entropy")
        },
        "lr_final": choose.one("lr_final", 0.2, 0.6),
    }
    if choose.one("adaptive", *[False] * 5, True):
        learn |= {"lr_schedule": "adaptive", "desired_kl": choose.one("desired_kl", 1e-5, 1e-4, 1e-3)}
    if choose.one("kl_beta", False, False, False, True):
        learn |= {"kl_beta": 0.3, "kl_type": choose.one("kl_type", "exact", "k1", "k2", "k3")}
        learn["pretrained_model_path"] = "a policy that is given by use_reference"
    return learn


def _draw_intrinsic(choose: Chooser) -> dict[str, Any]:
    return {
        "type": "rnd",
        "extrinsic_weight": choose.one("extrinsic_weight", 0.5, 2.0),
        "weight": choose.one("intrinsic.weight", 0.5, 1.0),
        "discount_factor": choose.one("intrinsic.discount_factor", 0.7, 0.95),
        "epoch_per_collect": choose.one("intrinsic.epoch_per_collect", 1, 3),
        "update_proportion": 1.0,
        "learning_rate": 1e-3,
        "obs_clip": choose.one("intrinsic.obs_clip", 1.0, 5.0),
        "feature_size": 4,
        "encoder_hidden_size_list": [5],
    }


def _draw_ppg(choose: Chooser, frequency: int, off_policy: bool) -> dict[str, Any]:
    actor, critic = choose.one("epochs", (1, 1), (2, 2), (1, 3), (2, 1))
    return {
        "actor_epoch_per_collect": actor,
        "critic_epoch_per_collect": critic,
        "aux_freq": frequency,
        "aux_train_epoch": choose.one("aux_train_epoch", 0, 1, 2, 2, 3),
        "aux_bc_weight": choose.one("aux_bc_weight", 0.0, 1.0, 3.0),
        "aux_value_weight": choose.one("aux_value_weight", 0.0, 1.0, 0.5),
        "aux_learning_rate": choose.one("aux_learning_rate", None, 2e-3),
        "aux_batch_size": choose.one("aux_batch_size", None, 7, 16),
    }


def _draw_replay(policy: dict[str, Any], choose: Chooser, rows: int, *, has_runs: bool) -> None:
    learn, is_ppg = policy["learn"], policy["type"].startswith("ppg")
    learn["proximal"] = choose.one("proximal", "decoupled", "decoupled", "behaviour")
    learn["weight_bound"] = choose.one("weight_bound", 1.0, 1.01, 2.0)
    if choose.one("update_per_collect", False, False, True) or has_runs:
        learn["update_per_collect"] = choose.whole(2, 10)
        if is_ppg:
            learn |= {"actor_epoch_per_collect": 1, "critic_epoch_per_collect": 1}
    elif not is_ppg:
        learn["reuse"] = choose.one("reuse", 0.7, 1.0, 2.0, 3.0)
    limits = {
        "replay_buffer_size": choose.one("size", 4, 2, 1) * rows + choose.whole(0, 9),
        "max_use": choose.one("max_use", 1, 3, 5, 5),
        "max_staleness": choose.one("max_staleness", 0, 2, 3, 3),
    }
    policy["other"] = {"replay_buffer": limits}


@dataclass
class Outcome:
    """The result of one comparison.

    Attributes:
        difference: the first difference, or None.
        tie: a corner of a loss that is near enough to explain the difference by rounding, or None.
    """

    seed: int
    difference: str | None = None
    tie: str | None = None
    seen: set[str] = field(default_factory=set)  # mechanisms that the run used
    chosen: dict[str, Any] = field(default_factory=dict)  # the options of the case

    @property
    def disagrees(self) -> bool:
        return self.difference is not None and self.tie is None


class Comparison:
    """The reference replays what the library recorded.

    Args:
        case: of the record.
        record: of one process, or of several as :func:`merged` joins them.
        ranks: the number of processes.
    """

    def __init__(self, case: Case, record: taps.Record, ranks: int = 1) -> None:
        self.case, self.cfg, self.record, self.ranks = case, case.config.policy, record, ranks
        autoreset = taps.OWN_AUTORESET if case.world.autoreset == "own" else case.world.autoreset
        self.readers = [Reader(log, autoreset) for log in record.logs]
        self.watch = Watch()

        def networks(parameters: dict[str, Any]) -> Networks:
            return Networks(taps.layers(parameters), case.world.action_space, self.cfg.model, self.watch)

        self.reference = Reference(
            self.cfg,
            networks(record.parameters),
            self.watch,
            None if record.frozen is None else networks(record.frozen),
            None if record.intrinsic is None else taps.intrinsic_layers(record.intrinsic),
            ranks,
        )
        self.outcome = Outcome(case.seed, chosen=case.chosen)

    def run(self) -> Outcome:
        try:
            self._warm_up()
            for number, iteration in enumerate(self.record.iterations):
                columns, last_obs = self._collect(number, iteration)
                collected = self.reference.collect(columns, last_obs)
                self._compare_credit(iteration.rollout, collected)
                self.reference.learn(collected, Draws(iteration.draws))
                self._compare_learning(iteration)
        except Mismatch as error:
            self.outcome.difference = f"iteration {self.reference.iteration}: {error}"
            if self.watch.nearest < TIE:
                self.outcome.tie = f"{self.watch.corner}, by {self.watch.nearest:.1e}"
        self.outcome.seen |= self.watch.seen
        return self.outcome

    def _warm_up(self) -> None:
        for reader in self.readers:
            reader.begin()
        shown = self.record.warm_up
        if not shown:
            return
        for reader in self.readers:
            reader.begin()
        rows = -(-shown // len(self.readers))
        steps = [reader.row(-1, env, t) for t in range(rows) for env, reader in enumerate(self.readers)]
        self.reference.warm_up([step.obs for step in steps][:shown])
        for reader in self.readers:
            reader.begin()

    # The rollout.

    def _collect(self, number: int, iteration: taps.Iteration) -> tuple[list[list[Step]], list[Any]]:
        """Returns the recorded rows of each environment, and its observation after them.

        Checks that the library's rollout has the same.
        """
        rollout, columns, finals = iteration.rollout, [], {}
        rows = -(-self.cfg.collect.n_sample // self.case.envs)
        if rollout["valid"].shape != (rows, self.case.envs):
            raise Mismatch(f"the rollout is {rollout['valid'].shape}, not {(rows, self.case.envs)}")
        for env, reader in enumerate(self.readers):
            column = [reader.row(number, env, t) for t in range(rows)]
            reader.finish(iteration.calls[env])
            for t, step in enumerate(column):
                step.action = map_tree(lambda leaf, t=t, env=env: leaf[t, env], rollout["action"])
                self._check_row(rollout, t, env, step)
                if step.truncated:
                    finals[(t, env)] = step.next_obs
            last = map_tree(lambda leaf, env=env: leaf[env], rollout["last_obs"])
            self._same("the observation after the last row", last, reader.obs, (env,))
            columns.append(column)
        self._check_finals(rollout.get("final"), finals)
        return columns, [reader.obs for reader in self.readers]

    def _check_row(self, rollout: dict[str, Any], t: int, env: int, step: Step) -> None:
        shown = map_tree(lambda leaf: leaf[t, env], rollout["obs"])
        self._same("the observation", shown, step.obs, (t, env))
        for name in ("valid", "terminated", "truncated"):
            self._same(name, rollout[name][t, env], getattr(step, name), (t, env))
        self._same("the reward", rollout["reward"][t, env], np.float32(step.reward), (t, env))
        self.outcome.seen |= {name for name in ("terminated", "truncated") if getattr(step, name)}
        if not step.valid:
            self.outcome.seen |= {"filler", *(["filler in row 0"] if t == 0 else [])}
            return
        space, box = self.case.world.action_space, self.cfg.model.box_distribution
        expected, handed = handed_to_env(space, box, step.action), step.handed
        if isinstance(handed, tuple):
            handed = {str(i): part for i, part in enumerate(handed)}
        near = map_tree(lambda a, b: bool(np.allclose(a, b, rtol=0, atol=1e-5)), expected, handed)
        if not all(_leaves(near)):
            raise Mismatch(f"row {t}, environment {env}: the action {step.action} reaches it as {handed}")

    def _check_finals(self, found: Any, expected: dict[tuple[int, int], Any]) -> None:
        places = [] if found is None else list(zip(found["t"].tolist(), found["env"].tolist(), strict=True))
        if sorted(places) != sorted(expected):
            raise Mismatch(f"final observations are at {sorted(places)}, not at {sorted(expected)}")
        for k, place in enumerate(places):
            shown = map_tree(lambda leaf, k=k: leaf[k], found["obs"])
            self._same("the final observation", shown, expected[place], place)

    @staticmethod
    def _same(what: str, found: Any, expected: Any, place: tuple[int, ...]) -> None:
        if not all(_leaves(map_tree(lambda a, b: bool(np.array_equal(a, b)), found, expected))):
            raise Mismatch(f"{what} at {place} is {found}, but the environment recorded {expected}")

    # Numbers.

    def _near(
        self, what: str, found: Any, expected: Any, tolerance: float, scale: float | None = None
    ) -> None:
        """Compares numbers; the absolute tolerance is ``tolerance`` times ``scale`` or the largest number."""
        found, expected = np.asarray(found, float), np.asarray(expected, float)
        if found.shape != expected.shape:
            raise Mismatch(f"{what}: the shape is {found.shape}, not {expected.shape}")
        scale = float(np.abs(expected).max(initial=0.0)) + 1e-3 if scale is None else scale
        off = np.abs(found - expected)
        worst = float(off.max(initial=0.0)) / (tolerance * scale) if np.isfinite(off).all() else math.inf
        if worst > 1:
            k = int(np.argmax(np.where(np.isfinite(off), off, np.inf)))
            raise Mismatch(
                f"{what} is {found.flat[k]:.8g}, expected {expected.flat[k]:.8g}: "
                f"{worst:.1f} times the tolerance"
            )

    def _compare_credit(self, rollout: dict[str, Any], collected: dict[Any, Credit]) -> None:
        steps = self.reference.steps
        places = tuple(np.array([step.key[1:] for step in steps]).T[::-1])
        self._near("log_prob", rollout["log_prob"][places], [s.log_prob for s in steps], OF_RESULTS)
        mine = [collected[step.key] for step in steps]
        scale = max(max(abs(c.value), abs(c.target), abs(c.advantage)) for c in mine)
        for name, numbers in (
            ("value", [c.value for c in mine]),
            ("advantage", [c.advantage for c in mine]),
            ("value_target", [c.target for c in mine]),
        ):
            self._near(name, rollout[name][places], numbers, OF_RESULTS, scale)

    def _compare_learning(self, iteration: taps.Iteration) -> None:
        self._compare_metrics(iteration.metrics)
        rates = [optimizer.learning_rate for optimizer in self.reference.optimizers.values()]
        users = itertools.cycle(("", " with losses of a user"))
        for who, found in zip(users, iteration.parameters, strict=False):
            for name, parameter in self.reference.networks.layers.parameters.items():
                expected = parameter.detach().numpy()
                allowed = OF_A_STEP * max(rates) + OF_PARAMETERS * float(np.abs(expected).max())
                self._near(f"parameter{who}: {name}", found[name], expected, 1.0, allowed)

    def _compare_metrics(self, metrics: dict[str, float]) -> None:
        expected = self.reference.metrics
        tanh = self.cfg.model.box_distribution == "tanh_normal"
        for name in METRICS:
            if (name in metrics) != (name in expected):
                where = "library" if name in metrics else "reference"
                raise Mismatch(f"only the {where} has the metric {name}")
            if name not in metrics:
                continue
            if name == "entropy_loss" and tanh:
                self._near(f"metric {name} of tanh", metrics[name], expected[name], OF_TANH_ENTROPY, 1.0)
                continue
            # A KL of 1e-4 is a difference of numbers near 1, so its relative error is larger.
            floor = 1e-6 / OF_METRICS if name in KLS else 0.01
            scale = abs(expected[name]) + floor
            self._near(f"metric {name}", metrics[name], expected[name], OF_METRICS, scale)


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in _leaves(part)]
    return [tree]


def compare(case: Case) -> Outcome:
    """Runs a case."""
    return Comparison(case, case.record()).run()


def main(first: str, last: str) -> None:
    """Compares the seeds from ``first`` up to, not including, ``last``.

    Fails if a case disagrees, or if a mechanism or the value of an option was tested rarely.
    """
    torch.set_num_threads(1)
    disagree, happened, drawn = 0, Counter(), set()
    for seed in range(int(first), int(last)):
        outcome = compare(random_case(seed))
        disagree += outcome.disagrees
        happened.update(outcome.seen)
        drawn |= {(name, str(value)) for name, value in outcome.chosen.items()}
        if outcome.difference is not None:
            print(seed, outcome.difference, f"near {outcome.tie}" if outcome.tie else "", flush=True)
    rare = {what: happened[what] for what in MECHANISMS if happened[what] < OFTEN}
    never = {(name, value) for name, own in Chooser.offered.items() for value in own} - drawn
    print(
        f"{disagree} of the cases {first} to {last} disagree; happened rarely: {rare}; never drawn: {never}"
    )
    sys.exit(bool(disagree or rare or never))


if __name__ == "__main__":
    main(*sys.argv[1:])
