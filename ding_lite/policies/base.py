"""The base class of policies: a model, its state, and three modes.

    collect_mode.forward(obs)         -> {"action", "log_prob"}      acts and explores
    collect_mode.get_train_sample(r)  -> the rollout with advantages
    learn_mode.forward(rollout)       -> metrics                     improves the model
    eval_mode.forward(obs)            -> {"action"}                  acts greedily

``collect_mode.for_rollout()`` gives the same functions for one rollout, in which log_prob may be computed by
get_train_sample.

Everything is batched: forward takes (B, ...) and returns (B, ...), get_train_sample the whole (T, B).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from easydict import EasyDict
from torch import Tensor

from ding_lite import ranks
from ding_lite.config.registry import MODEL_REGISTRY
from ding_lite.config.schema import Key, merged_config
from ding_lite.data.memories import begin_episodes
from ding_lite.data.modes import CollectMode, EvalMode, LearnMode
from ding_lite.data.rollout import Rollout, require_rollout, to_device
from ding_lite.envs.checks import IndexRanges
from ding_lite.envs.masks import without_legal_action
from ding_lite.envs.transition import Transition
from ding_lite.errors import FOREIGN, CheckpointError, ContractError, error_text
from ding_lite.models.actor_critic import ActorCritic
from ding_lite.models.heads import clamp_to_ranges, parameter_ranges
from ding_lite.models.memory import Sequences
from ding_lite.models.memory_layout import lay_out
from ding_lite.policies.contract import DECLARED, FIELDS, check_arguments, check_declared
from ding_lite.policies.device import chosen_device
from ding_lite.policies.memory import PolicyMemory
from ding_lite.rl.distributions import Distribution
from ding_lite.rl.seeding import (
    GeneratorState,
    global_streams,
    integer_seed,
    seeded_layers,
    torch_generator,
)
from ding_lite.trees import (
    MASK_KEY,
    Tree,
    from_tree,
    leading_size,
    map_tree,
    named_leaves,
    observation_to_tree,
    space_leaves,
    tree_leaves,
)

GENERATORS = "generators"  # in the state: the generators that were drawn from, less those that a part saves


class Policy:
    """Base class of all policies: builds the model, offers the modes, saves and loads.

    A subclass defines ``_init_<field>`` and ``_forward_<field>`` for the fields learn, collect and eval,
    and ``_get_train_sample``. The parts that a checkpoint must contain go into ``_state``.

    Args:
        cfg: the section ``policy`` of a complete config.
        obs_space, action_space: of one environment.
        model: used as it is, without initialisation; if None, it is built from ``cfg.model``.
        enable_field: the modes to prepare; all if None. Each mode works without the others.
        seed: of the run.

    Attributes:
        ranks: the processes that train this policy together (:mod:`ding_lite.ranks`).
    """

    config: dict[str, Any] = dict(
        # "ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy", a name that you registered, or
        # "package.module:Class".
        type=Key("ppo", (str, object)),
        # One of "auto", "cpu", "cuda", "cuda:N" and "mps". "auto" is a GPU, if there is one, for models with
        # convolutions or a layer of more than 256 x 256 weights; smaller ones are faster on the CPU.
        device="auto",
        # DI-engine's. With device="auto", True is "cuda" and False "cpu"; another device must agree.
        cuda=Key(None, (bool,), optional=True),
        # DI-engine's. Whether a run is data-parallel is decided by how it is started: torchrun.
        multi_gpu=False,
        check_ranks=False,  # stop with an error if the ranks' parameters are not bit-equal after an iteration
        bp_update_sync=Key(True, fixed_because="gradients are averaged over the ranks at every minibatch"),
        traj_len_inf=Key(
            False, fixed_because="whole episodes are collect.n_episode, else rollouts have a fixed length"
        ),
        multi_agent=Key(False, fixed_because="multi-agent training is not built yet"),
        model=dict(
            # The model: a registered name, or "package.module:Class".
            type=Key("vac", (str, object)),
            # DI-engine's. Spaces are read from the environment; if this is given, it must agree.
            obs_shape=Key(None, (int, list), optional=True),
            # As obs_shape, of actions.
            action_shape=Key(None, (int, list), optional=True),
            # As obs_shape, the kind of actions.
            action_space=Key(None, choices=("discrete", "continuous", "hybrid"), optional=True),
        ),
        collect=dict(
            n_sample=Key(2048, low=2),  # transitions in a rollout, over all environments
            # Whole episodes in a rollout instead; n_sample is then an estimate of their transitions.
            n_episode=Key(None, (int,), low=1, optional=True),
        ),
        learn=dict(resume_training=Key(False, fixed_because="a run is resumed with --resume")),
        eval=dict(
            # Env steps between evaluations, at the first boundary past each multiple; 0: only at the end.
            eval_freq=Key(10_000, low=0),
        ),
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
        check_arguments(cfg, obs_space, action_space, enable_field)
        self.cfg = EasyDict(cfg)
        self.obs_space = obs_space
        self.action_space = action_space
        self.seed = seed
        self.fields = tuple(f for f in FIELDS if enable_field is None or f in enable_field)
        self.ranks = ranks.current()
        self._generators: dict[str, torch.Generator] = {}  # by the names of their streams
        self._first_states: dict[str, Tensor] = {}  # of the generators that no part saves
        self.model: ActorCritic = self._make_model() if model is None else self._checked(model)
        self.device = chosen_device(self.cfg.device, self.cfg.cuda, self.model)
        self.generator = self.own_generator("action", device=self.device, saved_by_part=True)
        # While learning, torch's global generators continue these streams: layers and losses draw from them.
        self._layer_generators = [self.own_generator("layers")]
        if self.device.type == "cuda":
            self._layer_generators.append(self.own_generator("layers on the device", device=self.device))
        self.model.to(device=self.device)
        self.model.eval()
        lay_out(self.model)
        self.memory: PolicyMemory | None = None
        self._state_of_act: Tree | None = None  # the memory after the last act()
        self._leaf_shapes = {path: tuple(leaf.shape or ()) for path, leaf in space_leaves(obs_space)}
        self._index_ranges = IndexRanges(obs_space)
        self._init_shared()
        if "learn" in self.fields:
            self._check_model()
        for field in self.fields:
            getattr(self, f"_init_{field}")()

    @classmethod
    def default_model(cls) -> tuple[str, list[str]]:
        """Returns the name of the model for configs without one, and the modules to import for it."""
        declared = merged_config(cls).get("model", {})
        return declared["type"].default if "type" in declared else "vac", []

    def own_generator(
        self, name: str, device: Any = "cpu", *, saved_by_part: bool = False
    ) -> torch.Generator:
        """Returns a generator for the stream ``name``, which differs between ranks; it is saved.

        Args:
            name: of the stream.
            device: of the generator.
            saved_by_part: whether a part of :meth:`_state` saves it.
        """
        generator = torch_generator(self.seed, "policy", name, *self.ranks.stream, device=device)
        self._generators[name] = generator
        if not saved_by_part:
            self._first_states[name] = generator.get_state()
        return generator

    def forget_open_episodes(self) -> None:
        """Drops the state of the episodes that were open at a checkpoint; the resumed run begins new ones."""

    def forget_stored(self) -> list[str]:
        """Drops the rollouts and samples of earlier iterations, and returns the names of what it dropped."""
        return []

    def change_ranks(self, step: int) -> None:
        """Begins new random streams, since the saved ones are those of another number of ranks.

        Args:
            step: of the environments, which names the streams.
        """
        for name, generator in self._generators.items():
            stream = ("policy", name, "step", step, *self.ranks.stream)
            generator.manual_seed(integer_seed(self.seed, *stream))

    def _make_model(self) -> ActorCritic:
        options = dict(self.cfg.model)
        kind = options.pop("type")
        declared = {key: options.pop(key, None) for key in DECLARED}
        check_declared(self.obs_space, self.action_space, declared, "policy.model")
        factory = MODEL_REGISTRY.get(kind) if isinstance(kind, str) else kind
        with seeded_layers(self.seed, "policy", "model"):
            model = factory(self.obs_space, self.action_space, **options)
        if not isinstance(model, ActorCritic):
            raise ContractError(
                f"policy.model.type: {kind!r} made a {type(model).__name__}; a model must subclass "
                "ding_lite.ActorCritic"
            )
        return model

    def _checked(self, model: Any) -> Any:
        """Returns the model of a caller, after a look at its kind and at the space of its actions."""
        if not isinstance(model, ActorCritic):
            raise ContractError(
                f"model: expected an instance of a subclass of ding_lite.ActorCritic, got {model!r:.60}"
            )
        made_for = getattr(model, "action_space", self.action_space)
        if made_for != self.action_space:
            raise ContractError(
                f"model: made for the action space {made_for}, but the environments have {self.action_space}"
            )
        return model

    def _init_shared(self) -> None:
        """Prepares the parts that several modes use."""

    def _init_learn(self) -> None:
        """Prepares learning, such as the optimiser."""

    def _init_collect(self) -> None:
        """Prepares collecting."""

    def _init_eval(self) -> None:
        """Prepares evaluating."""

    def _check_model(self) -> None:
        """Checks what the model returns, before learning is prepared; for policies that know its contract.

        Raises:
            ContractError: naming the class whose output does not fit.
        """

    def _forward_learn(self, data: Rollout) -> dict[str, float]:
        raise NotImplementedError(f"{type(self).__name__} must define _forward_learn(data)")

    def _forward_collect(self, obs: Tree, state: Any = None, first: Any = None) -> dict[str, Any]:
        raise NotImplementedError(f"{type(self).__name__} must define _forward_collect(obs)")

    def _forward_eval(self, obs: Tree, state: Any = None, first: Any = None) -> dict[str, Any]:
        raise NotImplementedError(f"{type(self).__name__} must define _forward_eval(obs)")

    def _get_train_sample(self, rollout: Rollout) -> Rollout:
        raise NotImplementedError(f"{type(self).__name__} must define _get_train_sample(rollout)")

    def _complete_rollout(self, rollout: Rollout) -> Rollout:
        """Does what ``collect_mode.get_train_sample`` does: updates statistics, then assigns credit."""
        require_rollout(rollout, "collect_mode.get_train_sample")
        self._prepare_rollout(rollout)
        return self._get_train_sample(rollout)

    def _prepare_rollout(self, rollout: Rollout) -> None:
        """Updates the statistics that must have a rollout before its advantages are computed."""

    def _process_transition(
        self, obs: Tree, output: Mapping[str, Any], transition: Transition
    ) -> dict[str, Any]:
        """Returns the fields of one row of the rollout; every leaf is (B, ...), an array or a tensor."""
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
        """Returns the contradictions between the keys of a complete config, a line each."""
        return []

    def describe(self) -> list[str]:
        """Returns the lines about this policy that a run prints when it begins."""
        return []

    @property
    def warm_up_steps(self) -> int:
        """Number of random steps that :meth:`warm_up` needs before training."""
        return 0

    def warm_up(self, obs: Tree) -> None:
        """Takes the observations (N, ...) of random steps, once, before training."""

    def _monitor_vars_learn(self) -> list[str]:
        """Returns the names of the metrics that ``learn_mode.forward`` returns."""
        return []

    @property
    def learn_mode(self) -> LearnMode:
        self._require("learn")
        learn = global_streams(self._layer_generators)(self._forward_learn)
        return LearnMode(learn, self._monitor_vars_learn, self.state_dict, self.load_state_dict)

    @property
    def collect_mode(self) -> CollectMode:
        self._require("collect")
        return CollectMode(
            forward=self._forward_collect,
            to_env=self._to_env,
            process_transition=self._process_transition,
            get_train_sample=self._complete_rollout,
            state_dict=self.state_dict,
            load_state_dict=self._load_all_but_generators,
            initial_state=None if self.memory is None else self.memory.initial_state,
            grid=None if self.memory is None else self.memory.grid,
        )

    @property
    def eval_mode(self) -> EvalMode:
        self._require("eval")
        return EvalMode(
            forward=self._forward_eval,
            to_env=self._to_env,
            reset=self._reset_eval,
            initial_state=None if self.memory is None else self.memory.initial_state,
        )

    def _reset_eval(self) -> None:
        """Begins an evaluation; for policies that keep a state of their own between calls."""

    def _require(self, field: str) -> None:
        if field not in self.fields:
            raise ContractError(f"this policy was built with enable_field={self.fields}, without {field!r}")

    def act(self, obs: Any, *, deterministic: bool = True) -> Any:
        """Returns the environment's action for one observation or for a batch, NumPy in and out.

        Args:
            obs: an observation of the environment, or a batch with a leading dimension.
            deterministic: return the greedy action; else draw an action from the policy, by the generator
                that it also collects with.

        Raises:
            ContractError: for other shapes, numbers that are not finite, an index outside its range, or a
                mask that leaves no legal action.
        """
        try:
            obs = observation_to_tree(obs, self.obs_space)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            is_pair = isinstance(obs, tuple) and len(obs) == 2 and isinstance(obs[1], dict)
            hint = "; reset() returns (obs, info)" if is_pair else ""
            raise ContractError(
                f"act: expected an observation of {self.obs_space}: {error_text(error)}{hint}"
            ) from error
        obs = map_tree(np.asarray, obs)
        single = self._is_single(obs)
        if single:
            obs = map_tree(lambda x: x[None], obs)
        for leaf in tree_leaves(obs):
            if leaf.dtype.kind not in "biuf":
                raise ContractError(f"act: expected numbers, got an array of {leaf.dtype}")
            # A memory would keep such a number, and spoil every later action.
            if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
                raise ContractError("act: the observation has numbers that are not finite (nan or infinity)")
        if found := self._index_ranges.first_outside(obs):
            raise ContractError(f"act: observation{found[1]}")
        mask = obs.get(MASK_KEY) if isinstance(obs, dict) else None
        if mask is not None and without_legal_action(mask, self.action_space).any():
            raise ContractError(f"act: obs[{MASK_KEY!r}] leaves no legal action")
        forward = self._forward_eval if deterministic else self._forward_collect
        if self.memory is None:
            output = forward(obs)
        else:
            output = forward(obs, self._remembered(leading_size(obs)))
            self._state_of_act = output["state"]
        action = self._to_env(output["action"])
        return from_tree(map_tree(lambda x: x[0], action) if single else action, self.action_space)

    def reset(self, first: Any = None) -> None:
        """Begins the episodes that :meth:`act` plays next; for policies with memory.

        Args:
            first: (B,), True for the episodes of a batch that begin; None: all begin.

        Raises:
            ContractError: if ``first`` has another shape.
        """
        state = self._state_of_act
        if state is None or self.memory is None or first is None:
            self._state_of_act = None
            return
        first, n = np.asarray(first, bool), leading_size(state)
        if first.shape != (n,):
            raise ContractError(
                f"reset: expected first of the shape ({n},), a bool for each episode, got {first.shape}"
            )
        self._state_of_act = begin_episodes(state, first, self.memory.initial_state(n))

    def _begun(self, state: Tree | None, first: Any) -> Tree | None:
        """Returns the memories (B, ...) that a mode is given, begun anew where ``first`` (B,) is True."""
        if state is None or first is None or self.memory is None:
            return state
        return begin_episodes(state, np.asarray(first, bool), self.memory.initial_state(leading_size(state)))

    def _remembered(self, n: int) -> Tree | None:
        """Returns the memory that :meth:`act` left, of ``n`` episodes."""
        state = self._state_of_act
        if state is not None and leading_size(state) != n:
            raise ContractError(
                f"act: {n} observations after {leading_size(state)}; this policy remembers each episode, so "
                "call policy.reset() before another number of them"
            )
        return state

    @contextmanager
    def _shapes_checked_after_errors(self, obs: Tree) -> Iterator[None]:
        """Replaces an error of the model if the observations are no batch.

        Raises:
            ContractError: if the shapes are the reason.
        """
        try:
            yield
        except FOREIGN as error:
            expected = {path: ("B", *(leaf.shape or ())) for path, leaf in space_leaves(self.obs_space)}
            try:
                found = {tuple(map(str, path)): np.shape(leaf) for path, leaf in named_leaves(obs)}
            except (TypeError, AttributeError):
                found = {}
            if found and {path: ("B", *shape[1:]) for path, shape in found.items()} == expected:
                raise
            is_single = {path: ("B", *shape) for path, shape in found.items()} == expected
            advice = "; act(obs) takes a single one" if is_single else ""
            if isinstance(obs, Mapping) and all(isinstance(key, int) for key in obs):
                advice = "; a dict by the numbers of environments must be stacked to a batch"
            raise ContractError(
                f"a mode acts on a batch of observations of the shape {_shapes_text(expected)}; got "
                f"{_shapes_text(found) if found else type(obs).__name__}{advice}"
            ) from error

    def _is_single(self, obs: Tree) -> bool:
        shapes = {tuple(map(str, path)): np.shape(leaf) for path, leaf in named_leaves(obs)}
        if shapes == self._leaf_shapes:
            return True
        sizes = {shape[:1] for shape in shapes.values()}
        if {path: shape[1:] for path, shape in shapes.items()} == self._leaf_shapes and len(sizes) == 1:
            return False
        raise ContractError(
            f"act: expected an observation of the shape {_shapes_text(self._leaf_shapes)} or a batch of "
            f"such, got {_shapes_text(shapes)}"
        )

    def _to_env(self, action: Any) -> Tree:
        is_tensor = isinstance(action, Tensor)  # the usual case; map_tree costs more than the copy
        action = action.cpu().numpy() if is_tensor else map_tree(lambda x: x.cpu().numpy(), action)
        return self.model.actor_head.to_env(action)

    def distribution(self, obs: Any, logit: Any) -> Distribution:
        """Returns the action distribution with the parameters ``logit``; illegal actions are masked."""
        mask = None
        obs, kept = (obs.obs, obs.kept) if isinstance(obs, Sequences) else (obs, None)
        if not isinstance(obs, Tensor) and MASK_KEY in obs:
            mask = map_tree(lambda m: (m if kept is None else m[kept]).bool(), obs[MASK_KEY])
        return self.model.distribution(logit, mask)

    def on_device(self, obs: Tree) -> Any:
        """Returns a tree of arrays or tensors as tensors on the device of the policy."""
        return to_device(obs, self.device)

    def _state(self) -> dict[str, Any]:
        """Returns the parts that have a state_dict, by name. A subclass adds its parts."""
        return {"model": self.model, "generator": GeneratorState(self.generator)}

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint, as nested dicts of tensors, arrays and numbers."""
        parts = {name: part.state_dict() for name, part in self._state().items() if part is not None}
        states = {name: self._generators[name].get_state() for name in self._first_states}
        drawn = {
            name: state for name, state in states.items() if not torch.equal(state, self._first_states[name])
        }
        return parts | ({GENERATORS: drawn} if drawn else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads a state from :meth:`state_dict`; parts that this policy does not have are ignored.

        Raises:
            CheckpointError: if a part is missing, or does not fit this policy.
        """
        parts = {name: part for name, part in self._state().items() if part is not None}
        for name in parts:  # all of them, before any part is loaded
            if name in state:
                continue
            if name == "model" and self.model.state_dict().keys() <= state.keys():
                raise CheckpointError(
                    "expected the state of a policy, got that of its model; model.load_state_dict of the "
                    "policy loads weights alone"
                )
            raise CheckpointError(
                f"the saved policy has no {name!r}; it has {sorted(state)}. A run that is resumed cannot "
                "be given it; a new run can begin with its weights (--init-from, init_from=)"
            )
        for name, part in parts.items():
            try:
                part.load_state_dict(state[name])
            except (RuntimeError, ValueError, KeyError) as error:
                raise CheckpointError(f"the saved {name!r} does not fit this policy: {error}") from error
        drawn = state.get(GENERATORS, {})
        for name, first_state in self._first_states.items():
            generator_state = {"state": drawn.get(name, first_state)}
            GeneratorState(self._generators[name]).load_state_dict(generator_state)
        clamp_to_ranges(parameter_ranges(self.model))

    def _load_all_but_generators(self, state: Mapping[str, Any]) -> None:
        """Does what ``collect_mode.load_state_dict`` does: an actor keeps the streams that it draws from.

        With those of the learner, which does not act, it would draw the same noise in every rollout.
        """
        own = {name: generator.get_state() for name, generator in self._generators.items()}
        self.load_state_dict(state)
        for name, generator in self._generators.items():
            generator.set_state(own[name])


def _shapes_text(shapes: Mapping[tuple[str, ...], tuple[Any, ...]]) -> str:
    """Returns the shapes of the leaves of an observation, with their paths if it has several."""
    texts = {".".join(path): f"({', '.join(map(str, shape))})" for path, shape in shapes.items()}
    return texts[""] if "" in texts else ", ".join(f"{name} {text}" for name, text in texts.items())
