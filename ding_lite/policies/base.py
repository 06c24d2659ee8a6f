"""The base class of policies: a model with policy and value, its state, and the three modes.

    collect_mode.forward(obs)         -> {"action", "log_prob"}      acts and explores
    collect_mode.get_train_sample(r)  -> the rollout with advantages
    learn_mode.forward(rollout)       -> metrics                     improves the model
    eval_mode.forward(obs)            -> {"action"}                  acts greedily

Everything is batched. The forward of a recurrent policy also takes hidden states (B, ...), and returns the
next ones as "hidden". Collecting also returns "value" if the model is recurrent or has share_encoder.

These modes are for scripts. A collector and an evaluator call the functions of :meth:`Policy.acting`.

Shapes: T steps, B environments, N samples.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from types import FunctionType
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from easydict import EasyDict
from torch import Tensor

from ding_lite import ranks
from ding_lite.config.di_engine import refuse_methods
from ding_lite.config.registry import MODEL_REGISTRY
from ding_lite.config.schema import merged_config
from ding_lite.data.hidden import begin_episodes
from ding_lite.data.modes import Acting, CollectMode, EvalMode, LearnMode
from ding_lite.data.replay import Replay
from ding_lite.data.rollout import Rollout, require_rollout, to_device, view
from ding_lite.data.samples import Batch, Recurrence, Samples, Store
from ding_lite.data.timer import Timer
from ding_lite.envs.checks import first_fault
from ding_lite.envs.masks import without_legal_action
from ding_lite.envs.vector import Transition
from ding_lite.envs.wrappers import ActionMap
from ding_lite.errors import CheckpointError, ConfigError, ContractError, counted, error_text
from ding_lite.fast.acting import NumpyActing, by_graph
from ding_lite.fast.cuda_graphs import GraphPool
from ding_lite.fast.stacks import is_changed, numpy_stacks
from ding_lite.models.actor_critic import ActorCritic
from ding_lite.models.checks import SAMPLES, check_outputs
from ding_lite.models.heads import clamp_to_ranges, parameter_ranges
from ding_lite.models.layout import lay_out
from ding_lite.models.recurrent import Sequences, single_steps
from ding_lite.policies.keys import POLICY
from ding_lite.rl.distributions import Distribution
from ding_lite.rl.scales import RAW, NoScale, ObservationNorm, ValueNorm
from ding_lite.rl.seeding import ONE_THREAD, GeneratorState, seeded_layers, torch_generator
from ding_lite.trees import (
    MASK_KEY,
    Tree,
    children,
    example_observations,
    from_tree,
    leading_size,
    map_space,
    map_tree,
    named_leaves,
    observation_to_tree,
    space_leaves,
    to_tree,
    tree_leaves,
    value_at,
)

OUTPUTS = {"actor": "dist", "critic": "new_value", "auxiliary": "auxiliary"}  # model output: batch field
GPU_LAYER = 2**16  # weights; a gradient step on 64 x 64 weights takes four times as long on a GPU
# If one of these is overridden, torch acts: NumPy does not call all of them, and its rows may lack log_prob.
OF_ACTING = ("_forward_collect", "_forward_eval", "_to_env", "_process_transition", "scaled", "distribution")
STORED = ("reward", "terminated", "truncated", "valid")  # fields of a transition
LIBRARY: set[tuple[str, FunctionType]] = set()  # methods of the library's policies; __init__.py fills it


def add_to_library(cls: type) -> None:
    """Adds the methods of a class to ``LIBRARY``: :meth:`Policy.overrides` counts all others as overrides."""
    LIBRARY.update((name, method) for name, method in vars(cls).items() if isinstance(method, FunctionType))


@contextmanager
def global_streams(generators: Sequence[torch.Generator]) -> Iterator[None]:
    """Lets torch's global generators continue these streams, one for each device, within the block.

    Layers such as dropout, and losses that call ``torch.randn``, draw from the global generators. After the
    block these have the states from before it.
    """
    gpus = [generator.device.index or 0 for generator in generators if generator.device.type == "cuda"]
    of_torch = [torch.default_generator, *(torch.cuda.default_generators[gpu] for gpu in gpus)]
    with ONE_THREAD, torch.random.fork_rng(gpus):
        for generator, other in zip(generators, of_torch, strict=True):
            other.set_state(generator.get_state())
        yield
        for generator, other in zip(generators, of_torch, strict=True):
            generator.set_state(other.get_state())


class Policy:
    """Base class of all policies.

    A subclass defines ``_init_learn``, ``_forward_learn``, which also updates ``obs_norm``, and
    ``_get_train_sample``. It may override what the modes call: ``_forward_collect``, ``_forward_eval``,
    ``_process_transition``; :meth:`scaled` (input of the model) and :meth:`distribution` (from its output).
    :meth:`keep` adds a part to the saved state, and :meth:`say` adds a line to the first lines of a run.

    Args:
        cfg: the section ``policy`` of a complete config.
        obs_space, action_space: of one environment.
        model: used as it is, without initialisation; if None, it is built from ``cfg.model``.
        enable_field: the modes to prepare; all if None. Without "learn" the policy only acts.
        seed: of the run.
    """

    config = POLICY

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
        refuse_methods(type(self))
        self.cfg: Any = EasyDict(copy.deepcopy(dict(cfg)))  # a loop may change it
        self.obs_space, self.action_space, self.seed = obs_space, action_space, seed
        self._tuples = "Tuple(" in str(obs_space)  # a rollout has them as dicts, gymnasium as tuples
        self.ranks = ranks.current()
        self.timer = Timer()
        self.parts: dict[str, Any] = {}  # the parts of the saved state, by name
        self.lines: list[str] = []  # printed when a run begins
        made: Any = self._make_model() if model is None else model
        if not isinstance(made, ActorCritic):
            raise ContractError(
                f"policy.model: expected an object of a subclass of ding_lite.ActorCritic, got {made!r:.60}"
            )
        self.model: ActorCritic = self.keep("model", made)
        try:
            self.device = chosen_device(self.cfg.device, self.model)
            self.model.to(device=self.device)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(
                f"policy.device: {self.cfg.device!r}: {error_text(error)}; use 'auto' or 'cpu'"
            ) from error
        self.generator = self.own_generator("action", device=self.device)
        # While learning, torch's global generators continue these streams: layers and losses draw from them.
        self._layer_generators = [self.own_generator("layers")]
        if self.device.type == "cuda":
            self._layer_generators.append(self.own_generator("layers on the device", device=self.device))
        self.model.eval()
        lay_out(self.model)
        hidden = self.model.initial_hidden
        self.recurrence = None if hidden(1) is None else Recurrence(self.cfg.learn.sequence_length, hidden)
        norm = self.cfg.normalize
        self.obs_norm: ObservationNorm | NoScale = NoScale()
        if norm.obs:
            scale = ObservationNorm(obs_space, norm.obs_clip, self.device, ranks=self.ranks)
            self.obs_norm = self.keep("obs_norm", scale)
        # All scales of observations; :meth:`warm_up` sets their first statistics.
        self.obs_norms = [self.obs_norm]
        self.value_norm: ValueNorm | NoScale = NoScale()  # PPOPolicy replaces it
        self._graph_pool = GraphPool()
        self._hidden_of_act: Tree | None = None
        # `act` applies these, so that its actions fit an environment without the wrappers of the run.
        self.action_maps: Sequence[ActionMap] = ()
        self._init_shared()
        if model is not None:  # perhaps trained on raw values
            self.value_norm.load_state_dict(RAW)
        modes = {"learn", "collect", "eval"} if enable_field is None else {*enable_field}
        if "learn" in modes:
            is_ours = type(self).distribution is Policy.distribution
            inputs = self._inputs(example_observations(obs_space, SAMPLES))
            check_outputs(self.model, inputs, action_space, with_actions=is_ours)
            self._init_learn()
            if "_optimizer" in vars(self):
                self.say("WARNING: _optimizer: the library's steps do not use it; they are Adam's")
        if modes & {"collect", "eval"}:
            self.say(f"acting: {self.acting().name}")

    # -- What a subclass writes

    def _init_shared(self) -> None:
        """Prepares the parts that several modes use."""

    def _init_learn(self) -> None:
        """Prepares learning, such as the optimiser."""

    def _forward_learn(self, rollout: Rollout) -> dict[str, float]:
        raise NotImplementedError(f"{type(self).__name__} must define _forward_learn(rollout)")

    def _get_train_sample(self, rollout: Rollout) -> Rollout:
        """Assigns credit; :meth:`_complete_rollout` calls it after :meth:`_prepare_rollout`."""
        raise NotImplementedError(f"{type(self).__name__} must define _get_train_sample(rollout)")

    def _prepare_rollout(self, rollout: Rollout) -> None:
        """Updates statistics, and adds fields, before credit is assigned."""

    @torch.inference_mode()
    def _forward_collect(self, obs: Tree, hidden: Tree = None) -> dict[str, Any]:
        """Returns drawn actions (B, ...), their log-probs (B,), and the network's other outputs.

        These are the next "hidden" state of a recurrent network, and the "value" (B,) if the network is
        recurrent or shares its encoder.
        """
        inputs, more = self._inputs(obs, hidden), {}
        if self.recurrence is not None:
            logit, value, more["hidden"] = self.model.step(inputs)
            more["value"] = self.value_norm.denormalize(value)
        elif self.model.share_encoder:
            logit, value = self.model.compute_actor_critic(inputs)
            more["value"] = self.value_norm.denormalize(value)
        else:
            logit = self.model.compute_actor(inputs)
        dist = self.distribution(inputs, logit)
        action = dist.sample(self.generator)
        return {"action": action, "log_prob": dist.log_prob(action), **more}

    @torch.inference_mode()
    def _forward_eval(self, obs: Tree, hidden: Tree = None) -> dict[str, Any]:
        """Returns greedy actions (B, ...), and of a recurrent policy the "hidden" state after the step."""
        inputs, more = self._inputs(obs, hidden), {}
        if self.recurrence is not None:
            logit, _, more["hidden"] = self.model.step(inputs)
        else:
            logit = self.model.compute_actor(inputs)
        return {"action": self.distribution(inputs, logit).mode(), **more}

    def _process_transition(
        self, obs: Tree, output: Mapping[str, Any], transition: Transition
    ) -> dict[str, Any]:
        """Returns the fields of a step to store beside ``obs``; every leaf (B, ...) is an array or tensor."""
        return {**output, **{name: getattr(transition, name) for name in STORED}}

    @classmethod
    def default_model(cls) -> str:
        """Returns the ``policy.model.type`` of configs without one."""
        return str(merged_config(cls)["model"]["type"].default)

    # -- The modes

    @property
    def learn_mode(self) -> LearnMode:
        learn = global_streams(self._layer_generators)(self._forward_learn)
        return LearnMode(learn, self.state_dict, self.load_state_dict)

    @property
    def collect_mode(self) -> CollectMode:
        play = (self._forward_collect, self._to_env, self._process_transition, self._complete_rollout)
        return CollectMode(*play, self.state_dict, self._load_all_but_generators)

    @property
    def eval_mode(self) -> EvalMode:
        return EvalMode(self._forward_eval, self._to_env)

    def overrides(self, *methods: str) -> bool:
        """Returns True if one of these methods is not the library's; then no faster code may replace it."""
        return any(name in vars(self) or (name, getattr(type(self), name)) not in LIBRARY for name in methods)

    def acting(self, samples: int = 0, *, on_device: bool = False) -> Acting:
        """Returns the functions that act in one rollout of ``samples`` actions, or in one evaluation.

        The policy must not change meanwhile. All ways to compute actions use the same random numbers, and
        agree within rounding. The first case that applies decides:

            a method of OF_ACTING is overridden,           torch calls the methods of the policy
            hooks of the model, or a recurrent network
            a small network and observations on the CPU    NumPy
            a GPU, and ``cuda_graph``                      a CUDA graph of these methods
            else                                           torch

        Outputs of torch have log_prob, and value if the model is recurrent or has share_encoder. Outputs of
        NumPy have no value; with Discrete, MultiDiscrete, or Normal actions of one sigma for all observations
        they have ``raw_output`` in place of log_prob. ``finish`` computes what is missing, for all rows.

        ``on_device``: observations are tensors of a simulator on a GPU, and actions stay tensors.
        """
        is_plain = self.recurrence is None and not self.overrides(*OF_ACTING)
        # Observations on a GPU are not arrays.
        if is_plain and not on_device and (stacks := numpy_stacks(self.model, ("actor",), copy=True)):
            fast = NumpyActing(self, stacks["actor"], samples)
            finish = lambda rollout: self._complete_rollout(fast.with_log_probs(rollout))  # noqa: E731
            play = (fast.sample, fast.greedy, fast.out.to_env, self._process_transition)
            return Acting("NumPy", *play, finish)
        inference = torch.inference_mode()
        sample, greedy = inference(self._forward_collect), inference(self._forward_eval)
        to_env = inference(self._to_env)
        if on_device:  # no inference mode: an environment may write into its actions
            head = self.model.actor_head.out
            to_env = self._to_env if self.overrides("_to_env") else head.to_env_on_device
        transition = inference(self._process_transition)
        acting = Acting("torch", sample, greedy, to_env, transition, self._complete_rollout)
        if is_plain and self.device.type == "cuda" and self.cfg.cuda_graph and not is_changed(self.model):
            return by_graph(acting, self.device, self.generator, self._graph_pool, on_device)
        return acting

    def _complete_rollout(self, rollout: Rollout) -> Rollout:
        """Updates statistics, then assigns credit; it is ``collect_mode.get_train_sample``."""
        require_rollout(rollout, "collect_mode.get_train_sample")
        self._prepare_rollout(rollout)
        return self._get_train_sample(rollout)

    # -- Acting

    def act(self, obs: Any, *, deterministic: bool = True) -> Any:
        """Returns the environment's action for one observation or for a batch, NumPy in and out.

        The action fits an environment without the wrappers ``action_rescale`` and ``action_bins``.
        A recurrent policy remembers each episode until :meth:`reset`.

        Args:
            obs: an observation of the environment, or a batch with a leading dimension.
            deterministic: return the greedy action; else draw one, with the generator of collecting.

        Raises:
            ContractError: for other shapes, floats in place of integers, numbers that are not finite, an
                index outside of its range, or a mask without a legal action.
        """
        space = self.actor_space
        expected = {path: tuple(leaf.shape or ()) for path, leaf in space_leaves(space)}
        try:
            tree = map_tree(np.asarray, observation_to_tree(obs, space))
            shapes = {path: leaf.shape for path, leaf in named_leaves(tree)}
            is_single = shapes == expected
            rows = {path: shape[1:] for path, shape in shapes.items()}
            sizes = {shape[:1] for shape in shapes.values()}
            if not is_single and (rows != expected or len(sizes) > 1):
                raise ValueError(", ".join(map(str, shapes.values())))
            for path, leaf in space_leaves(space):
                is_box = isinstance(leaf, gym.spaces.Box) and path[:1] != (MASK_KEY,)
                kinds = np.dtype(leaf.dtype).kind, value_at(tree, path).dtype.kind
                if is_box and kinds in (("i", "f"), ("u", "f")):
                    raise ValueError(f"floats in place of {leaf.dtype}")
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ContractError(
                f"act: expected an observation of {space} (of the pair that reset() returns, the "
                f"first) or a batch of such, got {error_text(error)}"
            ) from error
        if is_single:
            tree = map_tree(lambda x: x[None], tree)
        if fault := first_fault(space_leaves(space), tree):
            raise ContractError(f"act: {fault.message}")
        masks = tree.get(MASK_KEY) if isinstance(tree, dict) else None
        if masks is not None and without_legal_action(masks, self.action_space).any():
            raise ContractError(f"act: {MASK_KEY} leaves no legal action")
        if (past := self._hidden_of_act) is not None and leading_size(past) != leading_size(tree):
            got, known = counted(leading_size(tree), "observation"), counted(leading_size(past), "episode")
            raise ContractError(f"act: got {got}, and remembers {known}; reset() begins new ones")
        tree = self.with_empty_groups(tree)
        forward = self._forward_eval if deterministic else self._forward_collect
        output = forward(tree) if self.recurrence is None else forward(tree, self._hidden_of_act)
        self._hidden_of_act = output.get("hidden")
        action = self._to_env(output["action"])
        for mapped in self.action_maps:
            action = mapped(action)
        return from_tree(map_tree(lambda x: x[0], action) if is_single else action, self.action_space)

    @functools.cached_property
    def actor_space(self) -> gym.Space:
        """The observation space of :meth:`act`, without the groups that only the critic reads."""
        groups = self.model.obs_groups
        if groups is None:
            return self.obs_space
        names, branches = (*groups["actor"], MASK_KEY), children(self.obs_space) or {}
        return gym.spaces.Dict({name: branch for name, branch in branches.items() if name in names})

    def with_empty_groups(self, obs: Tree) -> Tree:
        """Returns observations (N, ...) of ``actor_space`` with zeros in the other groups."""
        if self.actor_space is self.obs_space:
            return obs
        like = tree_leaves(obs)[0]
        zeros = like.new_zeros if isinstance(like, Tensor) else np.zeros
        return map_space(lambda leaf: zeros((len(like), *leaf.shape)), self.obs_space) | obs

    def reset(self, first: Any = None) -> None:
        """Resets the hidden states of :meth:`act` where ``first`` (B,) is True; None: all of them."""
        if first is None or self.recurrence is None or np.all(first):
            self._hidden_of_act = None
        elif self._hidden_of_act is not None:
            initial = self.recurrence.initial_hidden(len(first))
            self._hidden_of_act = begin_episodes(self._hidden_of_act, np.asarray(first, bool), initial)

    def _to_env(self, action: Any) -> Tree:
        return self.model.actor_head.out.to_env(map_tree(view, action))

    # -- The model

    def scaled(self, obs: Tree) -> Any:
        """Returns observations on the model's device, normalised."""
        return self.obs_norm(to_device(to_tree(obs, self.obs_space) if self._tuples else obs, self.device))

    def _inputs(self, obs: Tree, hidden: Tree = None) -> Any:
        """Returns observations (N, ...) as inputs of the model: scaled; as single steps if it is recurrent.

        Args:
            obs: raw.
            hidden: (N, ...), before the steps; None: the hidden states at an episode's start.
        """
        obs = self.scaled(obs)
        if self.recurrence is None:
            return obs
        hidden = self.recurrence.initial_hidden(leading_size(obs)) if hidden is None else hidden
        return single_steps(obs, to_device(hidden, self.device))

    def distribution(self, obs: Any, logit: Any) -> Distribution:
        """Returns the action distribution with the parameters ``logit``.

        Of ``obs``, scaled or raw, only the mask is read.
        """
        obs, mask = obs.obs if isinstance(obs, Sequences) else obs, None
        if not isinstance(obs, Tensor) and MASK_KEY in obs:
            mask = map_tree(lambda leaf: leaf.bool(), obs[MASK_KEY])
        return self.model.distribution(logit, mask)

    def with_outputs(self, batch: Batch, outputs: Mapping[str, Any]) -> Batch:
        """Returns a batch with fresh outputs of the model: dist, new_value, auxiliary."""
        fields = {OUTPUTS[name]: output for name, output in outputs.items()}
        if "actor" in outputs:
            fields["dist"] = self.distribution(batch.obs, outputs["actor"])
        return batch.plus(**fields)

    @torch.no_grad()
    def values(self, obs: Any, hidden: Tree = None) -> Tensor:
        """Returns the values (N,) of observations (N, ...), in units of the training reward."""
        return self.value_norm.denormalize(self.network("critic")(self._inputs(obs, hidden)))

    def network(self, name: str) -> Callable[[Any], Any]:
        """Returns the function inputs -> output of the model: "actor" or "critic". Call it without gradients.

        It is valid while nothing changes the model; NumPy computes it where that is faster.
        """
        stacks = numpy_stacks(self.model, (name,))
        if stacks is None:
            return getattr(self.model, f"compute_{name}")
        quiet = np.errstate(all="ignore")  # invalid rows may have any values
        return quiet(lambda inputs: self.model.from_raw(name, torch.from_numpy(stacks[name](inputs))))

    def log_prob(self, inputs: Any, action: Any) -> Tensor:
        """Returns the log-probs (N,) of actions under the newest policy."""
        return self.distribution(inputs, self.model.compute_actor(inputs)).log_prob(action)

    @torch.no_grad()
    def in_chunks(
        self, function: Callable[..., Any], samples: Samples, *fields: str, shape: Sequence[int] | None = None
    ) -> Any:
        """Returns ``function(inputs, *fields)`` of samples, in chunks of some megabytes.

        Shapes:
            (N, ...); with the ``shape`` (T, B) of a rollout (T, B, ...), each result at the index of its
            sample, 0 elsewhere
        """
        batches, _, rows = samples.chunks()
        results = [function(batch.obs, *[getattr(batch, name) for name in fields]) for batch in batches]
        index: Any = rows if shape is None else samples.index[rows]  # type: ignore[index]
        shape = (len(samples),) if shape is None else shape

        def placed(*parts: Tensor) -> Tensor:
            whole = parts[0].new_zeros((math.prod(shape), *parts[0].shape[1:]))
            return whole.index_copy_(0, index.to(whole.device), torch.cat(parts)).unflatten(0, shape)

        return map_tree(placed, *results)

    def over_rollout(self, function: Callable[..., Any], rollout: Rollout, *fields: str) -> Any:
        """Returns ``function(inputs, *fields)`` of the rows of a rollout, a tensor or a dict.

        Shapes:
            rollout, each of its ``fields``: (T, B, ...) -> (T, B, ...); 0 in rows that are not valid
        """
        valid, chosen = rollout.valid, {name: rollout[name] for name in ("obs", *fields)}
        samples = Samples.of(rollout, valid, chosen, self.recurrence)
        samples.inputs, samples.device = self.scaled, self.device
        return self.in_chunks(function, samples, *fields, shape=valid.shape)

    # -- The names of DI-engine

    _cfg = property(attrgetter("cfg"))
    _model = _learn_model = property(attrgetter("model"))

    # -- The scale of observations

    @property
    def warm_up_steps(self) -> int:
        """Number of random steps of this rank that :meth:`warm_up` needs; 0 if statistics exist."""
        begins = any(norm.is_empty for norm in self.obs_norms)
        return math.ceil(self.cfg.normalize.obs_samples / self.ranks.size) if begins else 0

    def warm_up(self, obs: Tree) -> None:
        """Sets the statistics of empty scales from observations (N, ...) of random steps."""
        obs = to_device(obs, self.device)
        for norm in self.obs_norms:
            if norm.is_empty:
                norm.update(obs, torch.ones(leading_size(obs), dtype=torch.bool, device=self.device))

    # -- State

    def keep(self, name: str, part: Any) -> Any:
        """Adds ``part``, which has state_dict and load_state_dict, to the saved state, and returns it.

        Raises:
            ContractError: if another part has this name.
        """
        if self.parts.setdefault(name, part) is not part:
            raise ContractError(f"keep: there is a part {name!r} already; choose another name")
        return part

    def say(self, line: str) -> None:
        """Adds a line to the first lines of a run."""
        self.lines.append(line)

    def own_generator(self, name: str, device: Any = "cpu") -> torch.Generator:
        """Returns a generator for the stream ``name``, which differs between ranks; it is saved."""
        generator = torch_generator(self.seed, "policy", name, *self.ranks.stream, device=device)
        self.keep(f"generator of {name}", GeneratorState(generator))
        return generator

    def forget_open_episodes(self) -> None:
        """Drops the state of the episodes that were open at a checkpoint; the resumed run begins new ones."""

    def forget_stored(self) -> None:
        """Drops the rollouts and samples of earlier iterations."""
        for part in self.parts.values():
            if isinstance(part, (Replay, Store)):
                part.forget()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint, as nested dicts of tensors, arrays and numbers."""
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads a state from :meth:`state_dict`; parts that this policy does not have are ignored.

        Raises:
            CheckpointError: if a part is missing, or does not fit this policy.
        """
        if missing := [name for name in self.parts if name not in state]:
            raise CheckpointError(
                f"the saved policy has no {missing[0]!r}; it has {sorted(state)}. A run cannot resume "
                "without it; a new run can begin with the saved weights (--init-from, init_from=)"
            )
        for name, part in self.parts.items():
            try:
                part.load_state_dict(state[name])
            except (RuntimeError, ValueError, KeyError) as error:
                raise CheckpointError(f"the saved {name!r} does not fit this policy: {error}") from error
        clamp_to_ranges(parameter_ranges(self.model))

    def _load_all_but_generators(self, state: Mapping[str, Any]) -> None:
        """Loads a state, but not its generators; it is ``collect_mode.load_state_dict``.

        The learner does not act: with its generators the actor would draw the same noise in every rollout.
        """
        own = {name: part for name, part in self.parts.items() if isinstance(part, GeneratorState)}
        self.load_state_dict({**state, **{name: part.state_dict() for name, part in own.items()}})

    # -- Construction

    def _make_model(self) -> Any:
        options = dict(self.cfg.model)
        kind = options.pop("type")
        factory = MODEL_REGISTRY.get(kind) if isinstance(kind, str) else kind
        with seeded_layers(self.seed, "policy", "model"):
            return factory(self.obs_space, self.action_space, **options)


def chosen_device(name: str, model: torch.nn.Module) -> torch.device:
    """Returns the device for ``policy.device``; with several ranks on GPUs, each has its own GPU.

    "auto" is a GPU, if there is one, for a model with a convolution or a layer of more than 256 x 256
    weights. A model that is on a GPU stays there.
    """
    device = torch.device("cpu" if name == "auto" else name)
    if name == "auto":
        present = next((parameter.device for parameter in model.parameters()), device)
        is_large = any(weight.dim() > 2 or weight.numel() > GPU_LAYER for weight in model.parameters())
        wants_gpu = torch.cuda.is_available() and is_large
        device = torch.device("cuda") if wants_gpu and present.type == "cpu" else present
    if device.type == "cuda" and ranks.current().size > 1 and torch.cuda.is_available():
        device = torch.device("cuda", torch.cuda.current_device())
    return device
