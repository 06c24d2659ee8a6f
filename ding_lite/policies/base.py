"""What a policy is to everybody else: a model, its state, and three modes.

    collect_mode.forward(obs)         -> {"action", "log_prob"}      acts and explores
    collect_mode.get_train_sample(r)  -> the rollout with advantages
    learn_mode.forward(rollout)       -> metrics                     improves the model
    eval_mode.forward(obs)            -> {"action"}                  acts greedily

Within a rollout (``collect_mode.acting``) forward may leave log_prob to get_train_sample.

Everything is batched: forward takes (B, ...) and returns (B, ...), get_train_sample the whole (T, B).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from easydict import EasyDict
from torch import Tensor

from ding_lite.envs.masks import without_legal_action
from ding_lite.errors import CheckpointError, ConfigError, ContractError
from ding_lite.machine import chosen_device
from ding_lite.models.actor_critic import ActorCritic
from ding_lite.models.heads import clamp_to_ranges, parameter_ranges
from ding_lite.models.layout import lay_out
from ding_lite.registry import MODEL_REGISTRY
from ding_lite.rl.distributions import Distribution
from ding_lite.rollout import Rollout, map_tree, to_device
from ding_lite.schema import Key, merged_config
from ding_lite.seeding import GeneratorState, integer_seed, torch_generator
from ding_lite.types import MASK_KEY, CollectMode, EvalMode, LearnMode, Transition, Tree

FIELDS = ("learn", "collect", "eval")


class Policy:
    """Base class of all policies: builds the model, holds the modes, saves and loads.

    A subclass writes ``_init_<field>`` and ``_forward_<field>`` for the fields learn, collect and eval,
    and ``_get_train_sample``; what it must keep over a restart goes into ``_state``.

    Args:
        cfg: the section ``policy`` of a complete config.
        obs_space, action_space: of one environment.
        model: used as it is, never re-initialised; built from ``cfg.model`` when None.
        enable_field: which of the modes to prepare; all when None. Each works without the others.
        seed: of the run.
    """

    config: dict[str, Any] = dict(
        type=Key("ppo", (str, object)),
        device="auto",  # auto, cpu, cuda, cuda:N or mps
        cuda=Key(None, (bool,), optional=True),  # DI-engine's: True is device="cuda"
        multi_gpu=Key(False, fixed_because="training on several GPUs is not built yet"),
        bp_update_sync=Key(True, fixed_because="it belongs to multi_gpu, which is not built yet"),
        traj_len_inf=Key(
            False, fixed_because="whole episodes are collect.n_episode, else rollouts have a fixed length"
        ),
        multi_agent=Key(False, fixed_because="multi-agent training is not built yet"),
        model=dict(
            type=Key("vac", (str, object)),
            # DI-engine's: spaces are read from the environment; where these are written, they must agree.
            obs_shape=Key(None, (int, list), optional=True),
            action_shape=Key(None, (int, list), optional=True),
            action_space=Key(None, choices=("discrete", "continuous", "hybrid"), optional=True),
        ),
        learn=dict(resume_training=Key(False, fixed_because="a run is resumed with --resume")),
        # Env steps between evaluations, at the first boundary past each multiple; 0: only at the end.
        eval=dict(eval_freq=Key(10_000, low=0)),
    )

    def __init__(
        self,
        cfg: Mapping[str, Any],
        obs_space: gym.Space,
        action_space: gym.Space,
        *,
        model: torch.nn.Module | None = None,
        enable_field: Sequence[str] | None = None,
        seed: int = 0,
    ) -> None:
        self.cfg = EasyDict(cfg)
        self.obs_space, self.action_space, self.seed = obs_space, action_space, seed
        self.device = chosen_device(self.cfg.device, self.cfg.cuda)
        self.generator = torch_generator(seed, "policy", "action", device=self.device)
        self.model: ActorCritic = self._make_model() if model is None else model  # type: ignore[assignment]
        self.model.to(device=self.device)
        lay_out(self.model)
        self._leaf_shapes = _leaf_shapes(obs_space)
        self.fields = tuple(f for f in FIELDS if enable_field is None or f in enable_field)
        unknown = set(enable_field or ()) - set(FIELDS)
        if unknown:
            raise ConfigError(f"enable_field: {sorted(unknown)} are not among {', '.join(FIELDS)}")
        self._init_shared()
        for field in self.fields:
            getattr(self, f"_init_{field}")()

    @classmethod
    def default_model(cls) -> tuple[str, list[str]]:
        """Returns the name of the model of a config that has none, and the modules to import for it."""
        declared = merged_config(cls).get("model", {})
        return declared["type"].default if "type" in declared else "vac", []

    def _make_model(self) -> ActorCritic:
        options = dict(self.cfg.model)
        kind = options.pop("type")
        declared = {k: options.pop(k, None) for k in ("obs_shape", "action_shape", "action_space")}
        check_declared(self.obs_space, self.action_space, declared)
        factory = MODEL_REGISTRY.get(kind) if isinstance(kind, str) else kind
        # The layers' own initialisation draws from torch's global generator.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(integer_seed(self.seed, "policy", "model"))
            model = factory(self.obs_space, self.action_space, **options)
        if not isinstance(model, ActorCritic):
            raise ContractError(
                f"policy.model.type: {kind!r} made a {type(model).__name__}; a model must subclass "
                "ding_lite.ActorCritic"
            )
        return model

    def _init_shared(self) -> None:
        """Prepares what several modes need."""

    def _init_learn(self) -> None:
        """Prepares learning, such as the optimiser."""

    def _init_collect(self) -> None:
        """Prepares collecting."""

    def _init_eval(self) -> None:
        """Prepares evaluating."""

    def _forward_learn(self, data: Rollout) -> dict[str, float]:
        raise NotImplementedError(f"{type(self).__name__} must define _forward_learn(data)")

    def _forward_collect(self, obs: Tree, state: Any = None, first: Any = None) -> dict[str, Any]:
        raise NotImplementedError(f"{type(self).__name__} must define _forward_collect(obs)")

    def _forward_eval(self, obs: Tree, state: Any = None, first: Any = None) -> dict[str, Any]:
        raise NotImplementedError(f"{type(self).__name__} must define _forward_eval(obs)")

    def _get_train_sample(self, rollout: Rollout) -> Rollout:
        raise NotImplementedError(f"{type(self).__name__} must define _get_train_sample(rollout)")

    def _train_sample(self, rollout: Rollout) -> Rollout:
        self._before_credit(rollout)
        return self._get_train_sample(rollout)

    def _before_credit(self, rollout: Rollout) -> None:
        """Updates the statistics that must have a rollout before its advantages are computed."""

    def _process_transition(
        self, obs: Tree, output: Mapping[str, Any], transition: Transition
    ) -> dict[str, Any]:
        """Returns what one row of the rollout stores: every leaf is (B, ...), NumPy or a tensor."""
        return {
            "obs": obs,
            **output,
            "reward": transition.reward,
            "terminated": transition.terminated,
            "truncated": transition.truncated,
            "valid": transition.valid,
        }

    @classmethod
    def config_faults(cls, values: Mapping[str, Any]) -> list[str]:
        """Returns what is wrong between the keys of a complete config, a line each; called before a run."""
        return []

    def describe(self) -> list[str]:
        """Returns what a run should say of this policy when it begins."""
        return []

    @property
    def warm_up_steps(self) -> int:
        """Random steps that :meth:`warm_up` wants to see before training."""
        return 0

    def warm_up(self, obs: Tree) -> None:
        """Is shown the observations (N, ...) of random steps, once, before training."""

    def _monitor_vars_learn(self) -> list[str]:
        """Returns the names of the metrics that ``learn_mode.forward`` gives."""
        return []

    def _get_batch_size(self) -> int | dict[str, int]:
        """Returns the samples of a minibatch, of each buffer where there are two; nothing here asks it."""
        size: int = self.cfg.learn.batch_size
        return size

    @property
    def learn_mode(self) -> LearnMode:
        self._require("learn")
        return LearnMode(self._forward_learn, self._monitor_vars_learn, self.state_dict, self.load_state_dict)

    @property
    def collect_mode(self) -> CollectMode:
        self._require("collect")
        return CollectMode(
            self._forward_collect,
            self._to_env,
            self._process_transition,
            self._train_sample,
            self.state_dict,
            self.load_state_dict,
            self._acting,
        )

    @property
    def eval_mode(self) -> EvalMode:
        self._require("eval")
        return EvalMode(self._forward_eval, self._to_env, self._reset_eval)

    def _acting(self, mode: CollectMode) -> contextlib.AbstractContextManager[None]:
        """Is around the steps of a rollout by this mode, between which nobody changes the policy."""
        return contextlib.nullcontext()

    def _reset_eval(self) -> None:
        """Begins an evaluation; for policies that remember."""

    def _require(self, field: str) -> None:
        if field not in self.fields:
            raise ContractError(f"this policy was built with enable_field={self.fields}, without {field!r}")

    def act(self, obs: Any, *, deterministic: bool = True) -> Any:
        """Returns the environment's action for one observation or for a batch, NumPy in and out.

        Args:
            obs: as the environment gives it, or a batch of such with a leading dimension.
            deterministic: the greedy action; else one drawn from the policy.

        Raises:
            ContractError: for other shapes, or a mask that leaves no legal action.
        """
        obs = named_obs(obs, self.obs_space)
        single = self._is_single(obs)
        if single:
            obs = map_tree(lambda x: x[None], obs)
        mask = obs.get(MASK_KEY) if isinstance(obs, dict) else None
        if mask is not None and without_legal_action(mask, self.action_space).any():
            raise ContractError(f"act: obs[{MASK_KEY!r}] leaves no legal action")
        output = (self._forward_eval if deterministic else self._forward_collect)(obs)
        action = self._to_env(output["action"])
        return _unnamed(map_tree(lambda x: x[0], action) if single else action, self.action_space)

    def _is_single(self, obs: Tree) -> bool:
        shapes: list[tuple[int, ...]] = []
        map_tree(lambda x: shapes.append(np.shape(x)), obs)
        if shapes == self._leaf_shapes:
            return True
        if [shape[1:] for shape in shapes] == self._leaf_shapes:
            return False
        raise ContractError(
            f"act: expected an observation of the shape {self._leaf_shapes} or a batch of such, got {shapes}"
        )

    def _to_env(self, action: Any) -> Tree:
        tensor = isinstance(action, Tensor)  # nearly always; asking map_tree costs more than the copy
        action = action.cpu().numpy() if tensor else map_tree(lambda x: x.cpu().numpy(), action)
        return self.model.actor_head.to_env(action)

    def _distribution(self, obs: Any, logit: Any) -> Distribution:
        mask = None
        if not isinstance(obs, Tensor) and MASK_KEY in obs.keys():  # noqa: SIM118 - may be a treetensor
            mask = map_tree(lambda m: m.bool(), obs[MASK_KEY])
        return self.model.distribution(logit, mask)

    def _on_device(self, obs: Tree) -> Any:
        return to_device(obs, self.device)

    def _state(self) -> dict[str, Any]:
        """Returns the parts with a state_dict of their own, by name. A subclass adds its own."""
        return {"model": self.model, "generator": GeneratorState(self.generator)}

    def state_dict(self) -> dict[str, Any]:
        """Returns all that must survive a restart, as nested dicts of tensors, arrays and numbers."""
        return {name: part.state_dict() for name, part in self._state().items() if part is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what :meth:`state_dict` gave; of a state with more, what this policy has.

        Raises:
            CheckpointError: if something is missing, or belongs to another model.
        """
        for name, part in self._state().items():
            if part is None:
                continue
            if name not in state:
                raise CheckpointError(f"the saved policy has no {name!r}; it has {sorted(state)}")
            try:
                part.load_state_dict(state[name])
            except (RuntimeError, ValueError, KeyError) as error:
                raise CheckpointError(f"the saved {name!r} does not fit this policy: {error}") from error
        clamp_to_ranges(parameter_ranges(self.model))


def check_declared(obs_space: gym.Space, action_space: gym.Space, declared: Mapping[str, Any]) -> None:
    """Compares what a config says of the spaces (None: nothing) with the environment's.

    Raises:
        ConfigError: where they differ.
    """
    count = int(action_space.n) if isinstance(action_space, gym.spaces.Discrete) else None
    actual = {
        "obs_shape": list(obs_space.shape or ()),
        "action_shape": list(action_space.shape or ()) if count is None else [count],
        "action_space": action_kind(action_space),
    }
    for name, said in declared.items():
        if said is not None and ([said] if isinstance(said, int) else said) != actual[name]:
            raise ConfigError(
                f"policy.model.{name}: the config says {said!r}, the environment {actual[name]!r}; "
                "leave the key out, spaces are read from the environment"
            )


def action_kind(space: gym.Space) -> str:
    """Returns DI-engine's word for a kind of action space."""
    if isinstance(space, gym.spaces.Box):
        return "continuous"
    return "hybrid" if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)) else "discrete"


def named_obs(obs: Any, space: gym.Space) -> Tree:
    """Returns an observation with a Tuple's items under the names "0", "1", ... and no float64."""
    if isinstance(space, gym.spaces.Dict):
        return {name: named_obs(obs[name], child) for name, child in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return {str(i): named_obs(obs[i], child) for i, child in enumerate(space.spaces)}
    array = np.asarray(obs)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _leaf_shapes(space: gym.Space) -> list[tuple[int, ...]]:
    """Returns the shapes of the leaves, in the order of :func:`named_obs`."""
    if isinstance(space, gym.spaces.Dict):
        return [shape for child in space.spaces.values() for shape in _leaf_shapes(child)]
    if isinstance(space, gym.spaces.Tuple):
        return [shape for child in space.spaces for shape in _leaf_shapes(child)]
    return [tuple(space.shape or ())]


def _unnamed(action: Tree, space: gym.Space) -> Any:
    if isinstance(space, gym.spaces.Dict):
        return {name: _unnamed(action[name], child) for name, child in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_unnamed(action[str(i)], child) for i, child in enumerate(space.spaces))
    return action
