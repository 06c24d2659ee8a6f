"""The only module of the reference that knows the library. ``record`` runs a case, and returns what it did.

The reference replays the record; it calls nothing of the library. These are the taps, all of them public:

    compile_config                     the section ``policy`` of a complete config
    Policy(cfg, obs_space, action_space, seed=)
        two of one seed: ``plain`` collects and learns; ``listening`` learns from the same rollouts, and is a
        subclass whose losses note the samples of their minibatches, so it also tests losses of a user
    policy.model.state_dict()          before the first and after each iteration; ``layers`` reads its names
    Collector(envs, mode, n).collect() the rollout (T, B) with value, advantage and value_target
    collect_mode.get_train_sample(r), learn_mode.forward(r)
                                       credit, learning and its metrics
    policy_loss, value_loss, auxiliary_loss (batch)
                                       which samples, in which order: a field ``row`` is added to the rollout
                                       and read from the batch; ``auxiliary_fields`` keeps it for PPG
    warm_up_steps, warm_up(obs), Collector.random_observations
                                       the random steps that scales of observations begin with
    use_reference(policy)              of ``kl_beta``
    intrinsic.networks.state_dict()    of RND
    joined(), own_share(config, ranks)  in a process of several ranks

All else that the library computes is compared through these: log-probs, values, advantages, targets, metrics
and parameters. Vector environments are gymnasium's in each of its autoreset modes and as tensors, and the
library's own.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from ding_lite.config.compile import compile_config
from ding_lite.config.registry import POLICY_REGISTRY
from ding_lite.data.collector import Collector
from ding_lite.data.rollout import as_rollout
from ding_lite.data.tensors import TensorCollector
from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.native import NativeVectorEnv
from ding_lite.envs.recorder import EpisodeRecorder
from ding_lite.envs.tensor import TensorVectorEnv
from ding_lite.errors import ConfigError
from ding_lite.ranks import joined  # noqa: F401
from ding_lite.run.build import own_share
from ding_lite.trees import to_dict
from reference.networks import Layers, Stack
from reference.recording import map_tree

Key = tuple[int, int, int]  # (iteration, environment, row)
Refused = ConfigError
OWN_AUTORESET = "same_step"  # of the library's own vector environment
CREDIT = ("value", "advantage", "value_target", "intrinsic_reward", "reference_logit")


@dataclass
class Iteration:
    """One collect and its learning.

    Attributes:
        rollout: the fields as arrays, with credit.
        calls: number of recorded calls of each environment at the end of the collect.
        draws: by the name of the loss, the keys of its minibatches in their order.
        metrics: of ``learn_mode.forward``.
        parameters: of the policy afterwards, and of the listening one.
    """

    rollout: dict[str, Any]
    calls: list[int]
    draws: dict[str, list[list[Key]]]
    metrics: dict[str, float]
    parameters: tuple[dict[str, np.ndarray], ...]


@dataclass
class Record:
    """What the library did with a case.

    Attributes:
        logs: of each environment, its resets and steps.
        warm_up: number of observations of random steps.
        parameters, frozen, intrinsic: of the model, the policy of ``kl_beta`` and RND, at the start.
    """

    logs: list[list[Any]]
    warm_up: int
    parameters: dict[str, np.ndarray]
    frozen: dict[str, np.ndarray] | None
    intrinsic: dict[str, np.ndarray] | None
    iterations: list[Iteration] = field(default_factory=list)


def compiled_config(env_type: type, envs: int, policy: dict[str, Any]) -> Any:
    """Returns a complete config. Raises Refused if the library refuses it."""
    return compile_config({"env": {"type": env_type, "collector_env_num": envs}, "policy": policy}).values


def record(
    config: Any,
    make: Callable[[], gym.Env],
    *,
    autoreset: str,
    seed: int,
    iterations: int,
    log_sigma: float,
    ranks: Any = None,
) -> Record:
    """Runs the library.

    Args:
        config: from :func:`compiled_config`.
        make: makes an environment that has a ``log``.
        autoreset: "own" for the library's vector environment, "tensors", else a mode of gymnasium's.
        seed: of the run.
        iterations: their number.
        log_sigma: initial value of the free log sigmas.
        ranks: that share the case with this process.
    """
    if ranks is not None:
        config = own_share(config, ranks)
    cfg, n = config.policy, config.env.collector_env_num
    first = 0 if ranks is None else ranks.rank * n  # number of this rank's first environment
    envs = [make() for _ in range(n)]
    vector = _vector(envs, autoreset, seed + 1000 * first)
    spaces = (vector.obs_space, vector.action_space)
    kind = POLICY_REGISTRY.get(cfg.type)
    draws: dict[str, list[list[Key]]] = {"policy": [], "value": [], "auxiliary": []}
    plain, listening = (each(cfg, *spaces, seed=seed) for each in (kind, _listening(kind, draws)))
    state = {
        name: torch.full_like(leaf, log_sigma) if name.endswith("log_sigma") else leaf.clone()
        for name, leaf in plain.model.state_dict().items()
    }
    frozen = None
    for policy in (plain, listening):
        policy.model.load_state_dict(state)
        if cfg.learn.kl_beta:
            frozen = kind(_frozen(cfg), *spaces, seed=seed + 1)
            policy.use_reference(frozen)
    of_tensors = autoreset == "tensors"
    collector = (TensorCollector if of_tensors else Collector)(vector, plain, cfg.collect.n_sample)
    warm_up = plain.warm_up_steps
    if warm_up:
        obs = collector.random_observations(warm_up, seed)
        for policy in (plain, listening):
            policy.warm_up(obs)
    found = Record(
        [env.log for env in envs],
        warm_up,
        _arrays(plain.model),
        None if frozen is None else _arrays(frozen.model),
        None if cfg.intrinsic.type is None else _arrays(plain.intrinsic.networks),
    )
    for iteration in range(iterations):
        rollout = collector.collect()
        calls = [len(env.log) for env in envs]
        arrays = map_tree(lambda leaf: leaf.numpy().copy(), to_dict(rollout))
        again = {k: map_tree(torch.clone, x) for k, x in to_dict(rollout).items() if k not in CREDIT}
        again["row"] = _numbers(iteration, first, *rollout.valid.shape)
        for minibatches in draws.values():
            minibatches.clear()
        listening.learn_mode.forward(listening.collect_mode.get_train_sample(as_rollout(again)))
        metrics = plain.learn_mode.forward(rollout)
        parameters = tuple(_arrays(policy.model) for policy in (plain, listening))
        found.iterations.append(Iteration(arrays, calls, copy.deepcopy(draws), metrics, parameters))
    return found


def _vector(envs: list[gym.Env], autoreset: str, seed: int) -> Any:
    if autoreset == "own":
        return InProcessVectorEnv(lambda index: EpisodeRecorder(envs[index]), len(envs), seed)
    makers = [lambda env=env: env for env in envs]
    if autoreset == "tensors":
        vector = TensorVectorEnv(
            AsTensors(SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)), seed
        )
        for env in envs:
            env.log.clear()  # the adapter has reset it
        return vector
    return NativeVectorEnv(SyncVectorEnv(makers, autoreset_mode=AutoresetMode[autoreset.upper()]), seed)


class AsTensors:
    """A vector environment as tensors; what may not be read of its last observations is nan or 99."""

    def __init__(self, env: gym.vector.VectorEnv) -> None:
        self.env, self.num_envs, self.metadata = env, env.num_envs, env.metadata
        self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        return map_tree(torch.tensor, self.env.reset(seed=seed)[0]), {}

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(_as_arrays(action))
        obs = map_tree(torch.tensor, obs)
        final = map_tree(lambda x: torch.full_like(x, torch.nan if x.is_floating_point() else 99), obs)
        for env in np.flatnonzero(truncated):
            map_tree(
                lambda rows, x, env=env: rows[env].copy_(torch.as_tensor(x)), final, info["final_obs"][env]
            )
        return obs, *map(torch.tensor, (reward, terminated, truncated)), {"final_obs": final}


def _as_arrays(action: Any) -> Any:
    if isinstance(action, tuple):
        return tuple(map(_as_arrays, action))
    return map_tree(lambda leaf: leaf.numpy(), action)


def _listening(kind: type, draws: dict[str, list[list[Key]]]) -> type:
    """Returns a subclass of a policy whose losses note the samples of their minibatches."""

    def noting(name: str) -> Callable[..., Any]:
        loss = getattr(kind, f"{name}_loss")

        def noted(self: Any, batch: Any) -> Any:
            draws[name].append([_key(int(number)) for number in batch.row])
            return loss(self, batch)

        return noted

    names = [name for name in draws if hasattr(kind, f"{name}_loss")]
    methods = {f"{name}_loss": noting(name) for name in names}
    return type("Listening", (kind,), {**methods, "auxiliary_fields": ("row",)})


def _frozen(cfg: Any) -> Any:
    """Returns the config of the policy of ``kl_beta``: without scales and without a reference of its own."""
    cfg = copy.deepcopy(cfg)
    cfg.normalize.obs, cfg.intrinsic.type, cfg.learn.kl_beta = False, None, 0.0
    return cfg


def _numbers(iteration: int, first: int, rows: int, envs: int) -> torch.Tensor:
    return 10**6 * iteration + 10**3 * (first + torch.arange(envs)) + torch.arange(rows)[:, None]


def _key(number: int) -> Key:
    return number // 10**6, number // 10**3 % 10**3, number % 10**3


def _arrays(module: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: leaf.double().numpy().copy() for name, leaf in module.state_dict().items()}


def policy_of(config: Any, obs_space: gym.Space, action_space: gym.Space, value_loss: Any = None) -> Any:
    """Returns a policy of the library, with ``value_loss`` in place of its own if that is given."""
    kind = POLICY_REGISTRY.get(config.policy.type)
    if value_loss is not None:
        kind = type("WithLoss", (kind,), {"value_loss": value_loss})
    return kind(config.policy, obs_space, action_space, seed=0)


def with_credit(policy: Any, rollout: dict[str, Any], finals: dict[tuple[int, int], np.ndarray]) -> Any:
    """Returns a rollout with credit, for ``learn_mode.forward``.

    Args:
        policy: computes the credit.
        rollout: its other fields.
        finals: last observations of truncated episodes, by row and environment.
    """
    rows, columns = np.array(list(finals)).T
    final = {"t": rows, "env": columns, "obs": np.stack(list(finals.values()))}
    fields = map_tree(lambda leaf: torch.as_tensor(np.array(leaf)), {**rollout, "final": final})
    return policy.collect_mode.get_train_sample(as_rollout(fields))


# Names in a model of separate networks with one hidden layer, and in Stable-Baselines3's.
STABLE_BASELINES3 = {
    "actor_encoder.trunk.0": "mlp_extractor.policy_net.0",
    "critic_encoder.trunk.0": "mlp_extractor.value_net.0",
    "actor_head.layers.0": "action_net",
    "critic_head.0": "value_net",
    "actor_head.out.log_sigma": "log_std",
}


def named_as_in_stable_baselines3(name: str) -> str:
    """Returns the name in Stable-Baselines3 of a parameter of the library."""
    ours = next(prefix for prefix in STABLE_BASELINES3 if name.startswith(prefix))
    return name.replace(ours, STABLE_BASELINES3[ours])


def layers(parameters: dict[str, np.ndarray]) -> Layers:
    """Returns the layers of a model by the names of its parameters, in float64."""
    own = {name: torch.tensor(array, requires_grad=True) for name, array in parameters.items()}

    def under(prefix: str) -> dict[str, torch.Tensor]:
        return {name: leaf for name, leaf in own.items() if name.startswith(prefix)}

    def stack(prefix: str) -> Stack | None:
        names = under(prefix)
        linear = [n.removesuffix("weight") for n in names if re.search(r"\.weight$", n)]
        found = [(own[f"{n}weight"], own[f"{n}bias"]) for n in linear]
        cells = [n for n in names if re.search(r"weight_ih_l\d+$", n)]
        parts = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        recurrent = [tuple(own[n.replace("weight_ih", part)] for part in parts) for n in cells]
        return Stack(found, recurrent) if names else None

    of_actor = stack("actor_head.layers")
    assert of_actor is not None
    return Layers(
        stack("actor_encoder"),
        stack("critic_encoder"),
        Stack(of_actor.linear[:-1], []),
        of_actor.linear[-1],
        [leaf for name, leaf in own.items() if name.endswith("log_sigma")],
        stack("critic_head"),
        stack("auxiliary_head"),
        own,
    )


def intrinsic_layers(parameters: dict[str, np.ndarray]) -> dict[str, Any]:
    """Returns the linear layers of RND's target, predictor and value, and all parameters that are trained."""
    own = {
        name: torch.tensor(array, requires_grad="target" not in name) for name, array in parameters.items()
    }
    found = {}
    for name, prefix in (("target", "reward.target"), ("predictor", "reward.predictor"), ("value", "critic")):
        weights = [n.removesuffix("weight") for n in own if n.startswith(prefix) and n.endswith("weight")]
        found[name] = [(own[f"{n}weight"], own[f"{n}bias"]) for n in weights]
    return {**found, "parameters": {n: leaf for n, leaf in own.items() if leaf.requires_grad}}
