"""The part that all actor-critic policies share: acting, credit assignment, and scales.

Rewards are stored raw. Values, advantages and targets are in units of the training reward: scaled and
clipped if the config asks for it, and before value_norm ("training units" below). ``rl.running_stats``
says when each scale is updated.

Shapes: T steps, B envs, N samples.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ding_lite.config.schema import Key
from ding_lite.data.minibatches import Batch
from ding_lite.data.modes import CollectMode, EvalMode
from ding_lite.data.rollout import PREPARED_BY, Rollout, flat, flat_at, require_rollout
from ding_lite.data.segments import in_segments, put_together
from ding_lite.errors import ConfigError, ContractError, NumericsError
from ding_lite.fast.acting import ACTING_VALUE
from ding_lite.fast.switch import Switch
from ding_lite.models.checks import (
    SAMPLES,
    check_outputs,
)
from ding_lite.policies.base import Policy
from ding_lite.policies.contract import check_declared
from ding_lite.policies.diagnostics import ROLLOUT_METRICS, describe_rollout
from ding_lite.policies.intrinsic import Intrinsic
from ding_lite.policies.memory import CHUNK_BYTES, PolicyMemory
from ding_lite.policies.normalization import ObservationNorm
from ding_lite.policies.optimizer import BadSteps, has_modes
from ding_lite.policies.without_effect import HAS_MEMORY, SCALES_OBS, keys_without_effect
from ding_lite.rl.returns import gae, nstep_return
from ding_lite.rl.running_stats import RewardScale, ValueNorm
from ding_lite.rl.schedules import TrainingProgress
from ding_lite.trees import (
    Tree,
    example_observations,
    leading_size,
    map_tree,
    tree_leaves,
)


class ActorCriticPolicy(Policy):
    """Acts by ``model.compute_actor``, and computes advantages from the values of ``model.compute_critic``.

    A subclass defines ``_forward_learn``, and calls :meth:`begin_learning` before its gradient steps and
    :meth:`end_learning` after them: scales, schedules and the intrinsic reward learn there. It may override
    :meth:`inputs` (what the model is given; with memory :meth:`scaled`) and :meth:`distribution` (what its
    output means), besides the modes.
    """

    config: dict[str, Any] = dict(
        # DI-engine's. Read from the environment; if it is given, it must agree.
        action_space=Key(None, choices=("discrete", "continuous", "hybrid"), optional=True),
        # On a GPU, models without memory: launch all kernels of acting in one call, and those of forward,
        # backward and clipping. Python in losses and models then runs in the first steps of a phase only.
        cuda_graph=True,
        intrinsic=dict(
            # An intrinsic reward: "rnd", a name that you registered, or "package.module:Class"; None: none.
            # Its class declares its other keys (``models.intrinsic``).
            type=Key(None, (str, object), optional=True),
        ),
        # Value targets of nstep steps, instead of those of GAE; off-policy they are not corrected for the
        # older policy.
        nstep_return=False,
        nstep=Key(3, low=1),  # with nstep_return: rewards in a value target
        learn=dict(
            learning_rate=Key(3e-4, above=0),  # step size of Adam, before its schedule
            batch_size=Key(64, low=1),  # samples in a minibatch
            adam_eps=Key(1e-5, above=0),  # epsilon of Adam
            # Gradients are scaled to a norm ("clip_norm") or clipped each ("clip_value"); None: no bound.
            grad_clip_type=Key("clip_norm", choices=("clip_norm", "clip_value"), optional=True),
            grad_clip_value=Key(0.5, above=0),  # the largest norm, or the largest absolute value
            skip_bad_steps=Key(0, low=0),  # steps that are not finite and skipped; one more ends the run
            value_norm=True,  # the value network predicts in units of the targets' std (PopArt)
            # Factor on the weight of earlier targets in value_norm at each iteration; 1: all have equal
            # weight.
            value_norm_decay=Key(0.95, low=0, high=1),
            ignore_done=False,  # treat every termination as a truncation
            # Models with memory: rows of the sequences that rollouts are cut into; gradients go back through
            # a sequence and no further.
            sequence_length=Key(64, low=1),
            # Models with memory: rows before a sequence, without a loss, that bring its memory up to date.
            burn_in=Key(0, low=0),
        ),
        collect=dict(
            # Steps of the segments that advantages are computed over; 0 and 1: the whole rollout.
            unroll_len=Key(1, low=0, high=10_000),
            discount_factor=Key(0.99, low=0, high=1),  # gamma: weight of the next step's value
            # Lambda of the advantages: 0 is one step's error (low variance), 1 the whole return (no bias).
            gae_lambda=Key(0.95, low=0, high=1),
        ),
        normalize=dict(
            # Scale observations to mean 0 and std 1. Statistics begin with obs_samples random steps before
            # training; True: they are updated after each iteration, "initial": they stay.
            obs=Key(False, choices=(False, True, "initial")),
            obs_samples=Key(1000, low=2),  # random steps, over all environments, before training
            obs_clip=Key(10.0, above=0),  # scaled observations are clipped to -obs_clip .. obs_clip
            reward=False,  # divide rewards by the std of the discounted return
            # Discount of that return; None: collect.discount_factor.
            reward_discount=Key(None, (float,), low=0, high=1, optional=True),
            # Training rewards are clipped to -reward_clip .. reward_clip, after the scaling; None: no clip.
            reward_clip=Key(None, (float,), above=0, optional=True),
        ),
    )

    def _init_shared(self) -> None:
        cfg = self.cfg
        check_declared(self.obs_space, self.action_space, {"action_space": cfg.action_space}, "policy")
        norm = cfg.normalize
        self.obs_norm = (
            ObservationNorm(self.obs_space, norm.obs_clip, self.device, ranks=self.ranks)
            if norm.obs
            else None
        )
        discount = cfg.collect.discount_factor if norm.reward_discount is None else norm.reward_discount
        self.reward_scale = RewardScale(discount, ranks=self.ranks) if norm.reward else None
        self._mark = _new_mark()
        self._is_unchecked = False  # whether the model is still to be checked
        self.value_norm = ValueNorm(cfg.learn.value_norm_decay, self.ranks) if cfg.learn.value_norm else None
        heads = self.model.value_heads
        if self.value_norm is not None and (not heads or any(head.bias is None for head in heads)):
            problem = "has a value head without bias" if heads else "names no value_heads"
            raise ConfigError(
                f"policy.learn.value_norm: {type(self.model).__name__} {problem}, and PopArt corrects weight "
                "and bias of each; set model.value_heads = (its last linear value layer, with bias,), "
                "or value_norm=False"
            )
        self.progress = TrainingProgress(cfg.learn.learning_rate)
        self.fast = Switch(self)
        self.has_modes = has_modes(self.model)
        self.memory = None if self.model.initial_hidden(1) is None else PolicyMemory(self)
        self.bad_steps = BadSteps(cfg.learn.skip_bad_steps)
        self.intrinsic = None if cfg.intrinsic.type is None else Intrinsic(self)
        if self.intrinsic is not None and "learn" in self.fields:
            self.intrinsic.prepare_learning(self.bad_steps)

    def _check_model(self) -> None:
        if self.device.type == "meta":  # a model without numbers
            return
        try:
            inputs = self.inputs(example_observations(self.obs_space, SAMPLES))
        except AttributeError:  # a subclass may set what its ``inputs`` need after ``super().__init__``
            self._is_unchecked = True
        else:
            self._check_outputs(inputs)

    def _check_outputs(self, inputs: Any) -> None:
        with_actions = type(self).distribution is Policy.distribution
        check_outputs(self.model, inputs, self.action_space, with_actions=with_actions)

    def describe(self) -> list[str]:
        implementations = "; ".join(self._implementations())
        notes = keys_without_effect(self.cfg, type(self), type(self.model), self._facts())
        notes += [
            f"WARNING: policy.{name} is no part of policy.model: the optimiser does not train it, and only a "
            "policy's own _state saves it"
            for name, value in vars(self).items()
            if isinstance(value, (nn.Module, nn.Parameter)) and value is not self.model
        ]
        return [*super().describe(), implementations, *self._parts(), *notes]

    def _facts(self) -> dict[str, Any]:
        """Returns what :func:`keys_without_effect` needs to know besides the config."""
        return {
            HAS_MEMORY: self.memory is not None,
            SCALES_OBS: self.obs_norm is not None and bool(self.obs_norm.stats),
        }

    def _parts(self) -> list[str]:
        """Returns a line for each part that a policy may have."""
        if self.intrinsic is None:
            return []
        name = type(self.intrinsic.reward).__name__
        return [f"intrinsic reward: {name}, weight {self.cfg.intrinsic.weight:g}"]

    def _implementations(self) -> list[str]:
        """Returns which implementation does what, a phrase each."""
        return [f"acting: {self.fast.acting_many_times().name}"]

    def sample_obs(self) -> Any:
        """Returns an observation that the space contains, as a batch (1, ...) of tensors."""
        return map_tree(torch.as_tensor, example_observations(self.obs_space, 1))

    def scaled(self, obs: Tree) -> Any:
        """Returns observations on the model's device, normalised."""
        obs = self.on_device(obs)
        return obs if self.obs_norm is None else self.obs_norm(obs)

    def inputs(self, obs: Tree) -> Any:
        """Returns observations as the model takes them: scaled; with memory, as first steps of episodes."""
        obs = self.scaled(obs)
        return obs if self.memory is None else self.memory.inputs(obs)

    def _forward_collect(self, obs: Tree, state: Any = None, first: Any = None) -> dict[str, Any]:
        with self._shapes_checked_after_errors(obs):
            if self.memory is None:
                return self.fast.acting().sample(obs)
            return self.memory.sample(obs, self._begun(state, first))

    def _forward_eval(self, obs: Tree, state: Any = None, first: Any = None) -> dict[str, Any]:
        with self._shapes_checked_after_errors(obs):
            if self.memory is None:
                return self.fast.acting().greedy(obs)
            return self.memory.greedy(obs, self._begun(state, first))

    @property
    def uses_cuda_graphs(self) -> bool:
        """Whether kernels are captured as CUDA graphs; those of a model with memory are not."""
        return self.device.type == "cuda" and bool(self.cfg.cuda_graph) and self.memory is None

    @property
    def collect_mode(self) -> CollectMode:
        if self._is_unchecked:
            self._is_unchecked = False
            self._check_outputs(self.inputs(example_observations(self.obs_space, SAMPLES)))
        return super().collect_mode._replace(specialize=self._rollout_mode)

    @property
    def eval_mode(self) -> EvalMode:
        return super().eval_mode._replace(specialize=self._evaluation_mode)

    def _rollout_mode(self, mode: CollectMode) -> CollectMode:
        # A mode in which a caller has replaced a function stays as it is.
        return self.fast.rollout_mode(mode) if self.memory is None and mode == self.collect_mode else mode

    def _evaluation_mode(self, mode: EvalMode) -> EvalMode:
        return self.fast.evaluation_mode(mode) if self.memory is None and mode == self.eval_mode else mode

    def _get_train_sample(self, rollout: Rollout) -> Rollout:
        rollout = rollout.to(self.device)
        value = rollout.pop(ACTING_VALUE, None)  # by the network as it is until the next gradient step
        has_values = value is not None and self.fast.takes_acting_values()
        if has_values:
            rollout.value = value
        segments = self.segments(rollout)
        credit = self.credit(segments, value=segments.value) if has_values else self.credit(segments)
        for name, field in credit.items():
            setattr(rollout, name, field if segments is rollout else put_together(field, rollout))
        return rollout

    def segments(self, rollout: Rollout) -> Rollout:
        """Returns a rollout in the form that is learned from: cut into segments if ``unroll_len`` says so."""
        collect = self.cfg.collect
        return in_segments(rollout, collect.unroll_len, whole_episodes=collect.n_episode is not None)

    @torch.no_grad()
    def credit(
        self, rollout: Rollout, weight: Tensor | None = None, value: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Returns value, advantage and value_target (T, B) by the newest value network, in training units.

        Rows that are not valid have no influence on valid rows.

        Args:
            rollout: of any age.
            weight: (T, B), min(1, pi/mu) of each step, for V-trace on rollouts that are not fresh. Targets of
                ``nstep_return`` do not use it.
            value: (T, B), if the newest network has computed them already.
        """
        valid = rollout.valid
        if self.memory is not None and "last_memory" not in rollout:
            raise ContractError(
                "get_train_sample: the rollout has no memory and last_memory, which a policy with memory "
                "needs; collect with ding_lite.data.collector.Collector, or store them as it does"
            )
        if value is None:
            value = self.rollout_values(rollout)

        def of_valid(field: Tensor) -> Tensor:  # other rows may hold nan
            return field.masked_fill(~valid, 0.0)

        reward = of_valid(self._training_reward(rollout.reward))
        next_value = of_valid(self._next_values(rollout, value))
        terminated, truncated = rollout.terminated, rollout.truncated | ~valid
        if self.cfg.learn.ignore_done:
            terminated, truncated = torch.zeros_like(terminated), terminated | truncated
        gamma = self.cfg.collect.discount_factor
        advantage, target = gae(
            reward,
            of_valid(value),
            next_value,
            terminated,
            truncated,
            gamma=gamma,
            gae_lambda=self.cfg.collect.gae_lambda,
            weight=weight,
        )
        if self.intrinsic is not None:
            advantage = self.intrinsic.added_to(advantage, rollout, weight)
        if self.cfg.nstep_return:
            target = nstep_return(
                reward, next_value, terminated, truncated, gamma=gamma, nstep=self.cfg.nstep
            )
        return {"value": value, "advantage": advantage, "value_target": target}

    def _next_values(self, rollout: Rollout, value: Tensor) -> Tensor:
        """Returns the value after each row (T, B); after a cut row, that of its last observation."""
        following = torch.empty_like(value)
        following[:-1] = value[1:]
        following[-1] = self.values(rollout.last_obs, rollout.get("last_memory"))
        if "final" in rollout:
            final = rollout.final
            following[final.t, final.env] = self.values(final.obs, final.get("memory"))
        return following

    @torch.no_grad()
    def values(self, obs: Any, state: Any = None) -> Tensor:
        """Returns the values (N,) of observations (N, ...), in training units.

        Args:
            obs: with memory, each is one step from the memory ``state``, or from that of an episode's start.
            state: (N, ...).
        """
        critic = self.fast.critic()
        if state is None:
            return self.denormalized_values(self.in_chunks(critic, obs))
        return self.denormalized_values(
            self.in_chunks(lambda inputs, state: critic(inputs._replace(hidden=state)), obs, state)
        )

    def rollout_values(self, rollout: Rollout) -> Tensor:
        """Returns the values (T, C) of a rollout's observations, in training units."""
        if self.memory is None:
            return self.values(flat(rollout.obs)).view(rollout.valid.shape)
        return self.denormalized_values(self.memory.over_rollout(self.model.compute_critic, rollout))

    def denormalized_values(self, value: Tensor) -> Tensor:
        """Returns values of the model in training units."""
        return value if self.value_norm is None else self.value_norm.denormalize(value)

    def normalized_values(self, value: Tensor) -> Tensor:
        """Returns values in the units of the model and of the losses."""
        return value if self.value_norm is None else self.value_norm.normalize(value)

    def _log_prob(self, inputs: Any, action: Any) -> Tensor:
        return self.distribution(inputs, self.model.compute_actor(inputs)).log_prob(action)

    def rollout_log_probs(self, rollout: Rollout, place: Tensor) -> Tensor:
        """Returns the log-probs (N,), under the newest policy, of the actions in some rows of a rollout.

        Args:
            rollout: (T, C).
            place: (N,), of the rows in the flattened (T, C).
        """
        if self.memory is not None:  # whole sequences are computed
            log_prob: Tensor = self.over_rollout(self._log_prob, rollout, rollout.action)
            return log_prob.flatten()[place]
        some = flat_at({"obs": rollout.obs, "action": rollout.action}, place)
        return self.in_chunks(self._log_prob, some["obs"], some["action"])

    def rollout_logits(self, rollout: Rollout) -> Any:
        """Returns the parameters (T, C, ...) of the newest policy's distributions in a rollout."""
        return self.over_rollout(self.model.compute_actor, rollout)

    def logits(self, obs: Any) -> Any:
        """Returns the parameters (N, ...) of the newest policy's distributions, a tensor or a dict."""
        return self.in_chunks(self.model.compute_actor, obs)

    def over_rollout(self, function: Callable[..., Any], rollout: Rollout, *others: Any) -> Any:
        """Returns ``function(inputs, *others)`` of the rows of a rollout.

        Shapes:
            rollout, each of ``others``: (T, C, ...) -> (T, C, ...), a tensor or a dict
        """
        if self.memory is not None:
            return self.memory.over_rollout(function, rollout, *others)
        found = self.in_chunks(function, *map(flat, (rollout.obs, *others)))
        return map_tree(lambda leaf: leaf.unflatten(0, rollout.valid.shape), found)

    @torch.no_grad()
    def in_chunks(self, function: Callable[..., Any], obs: Any, *others: Any) -> Any:
        """Returns ``function(inputs, *others)`` of all samples, computed some megabytes of input at a time.

        Shapes:
            obs and each of ``others``: (N, ...) -> (N, ...), a tensor or a dict
        """
        sample_bytes = 4 * sum(leaf[0].numel() for leaf in map(torch.as_tensor, tree_leaves(obs)))
        chunk = max(1, CHUNK_BYTES // max(1, sample_bytes))
        results = []
        for start in range(0, leading_size(obs), chunk):
            some, *rest = (map_tree(lambda x, s=start: x[s : s + chunk], tree) for tree in (obs, *others))
            results.append(function(self.inputs(some), *map(self.on_device, rest)))
        return results[0] if len(results) == 1 else map_tree(lambda *parts: torch.cat(parts), *results)

    def state_without_rollouts(self) -> dict[str, Any]:
        """Returns the state for the dump of a step that was not finite; stored rollouts may be large."""
        return self.state_dict()

    def intrinsic_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss of the networks of the intrinsic reward (``policies.intrinsic``)."""
        assert self.intrinsic is not None
        return self.intrinsic.loss(batch)

    def _training_reward(self, reward: Tensor) -> Tensor:
        if self.reward_scale is not None:
            reward = reward / float(self.reward_scale.std)
        clip = self.cfg.normalize.reward_clip
        return reward if clip is None else reward.clamp(-clip, clip)

    @property
    def warm_up_steps(self) -> int:
        """Number of random steps of this rank that :meth:`warm_up` needs; 0 if statistics exist."""
        begins = any(norm.is_empty for norm in self._obs_norms())
        return math.ceil(self.cfg.normalize.obs_samples / self.ranks.size) if begins else 0

    def warm_up(self, obs: Tree) -> None:
        """Takes the scales of observations (N, ...) from random steps; those that exist stay."""
        obs = self.on_device(obs)
        for norm in self._obs_norms():
            if norm.is_empty:
                norm.update(obs, torch.ones(leading_size(obs), dtype=torch.bool, device=self.device))

    def _obs_norms(self) -> list[ObservationNorm]:
        """Returns the scales of observations: of the policy's model, and of the intrinsic reward."""
        norms = [self.obs_norm, None if self.intrinsic is None else self.intrinsic.obs_norm]
        return [norm for norm in norms if norm is not None]

    def _prepare_rollout(self, rollout: Rollout) -> None:
        """Updates the reward scale, and adds intrinsic rewards. Called once for each rollout."""
        if self.reward_scale is not None:
            # Before a row that is not valid an episode may have been lost.
            ends = rollout.terminated | rollout.truncated | ~rollout.valid
            self.reward_scale.update_from(*(x.cpu().numpy() for x in (rollout.reward, ends, rollout.valid)))
        if self.intrinsic is not None:
            self.intrinsic.add_reward(rollout)

    def begin_learning(self, rollout: Rollout) -> tuple[Rollout, dict[str, float]]:
        """Does what comes before the gradient steps of an iteration.

        A rollout that another policy collected is prepared, which includes it in the reward scale. Then the
        scale of values is updated with the targets of the rollout, and the value heads with the scale.

        Args:
            rollout: (T, B), with credit.

        Returns:
            the rollout on the policy's device, and its metrics.

        Raises:
            NumericsError: if its values or advantages are not finite; the scale of values is then as before.
        """
        require_rollout(rollout, "learn_mode.forward")
        self._prepare_once(rollout)
        data = rollout.to(self.device)
        data.pop(PREPARED_BY)
        self._check_fields(data)
        described = self._rollout_metrics(data)
        # All at once, to wait for the device once.
        metrics = dict(zip(described, torch.stack(list(described.values())).tolist(), strict=True))
        is_finite = all(map(math.isfinite, (metrics["adv_mean"], metrics["value_mean"])))
        if self.ranks.any(not is_finite):
            raise NumericsError(
                f"the rollout's advantages (mean {metrics['adv_mean']}) or values (mean "
                f"{metrics['value_mean']}) are not finite; nothing was learned from it. Observations and "
                f"rewards are finite, the largest reward is {float(data.reward.abs().max()):g}: look at the "
                "value network's output, and at rewards whose sum exceeds the range of float32"
            )
        if self.value_norm is not None:
            targets = data.value_target[data.valid].cpu().numpy()
            self.value_norm.update_heads(targets, self.model.value_heads)
        return data, metrics

    def end_learning(self, rollout: Rollout) -> dict[str, float]:
        """Does what comes after the gradient steps of an iteration, and returns its metrics.

        The networks of the intrinsic reward learn, the scale of observations is updated, and schedules go on.

        Args:
            rollout: (T, B), from :meth:`begin_learning`.
        """
        metrics = {} if self.intrinsic is None else self.intrinsic.learn(rollout)
        if self.obs_norm is not None and self.cfg.normalize.obs is True:
            self.obs_norm.update(rollout.obs, rollout.valid)
        self.progress.env_step += int(self.ranks.total(int(rollout.valid.sum())))
        return {**metrics, "skipped_steps": float(self.bad_steps.count)}

    def _check_fields(self, rollout: Rollout) -> None:
        """Refuses a rollout that lacks a field which the losses need; a subclass knows them."""

    def _rollout_metrics(self, data: Rollout) -> dict[str, Tensor]:
        """Returns metrics () of a rollout, from before the gradient steps."""
        metrics = describe_rollout(data)
        if self.obs_norm is not None:
            metrics["obs_clipped"] = self.obs_norm.clipped_share(data.obs, data.valid)
        return metrics

    def _monitor_vars_learn(self) -> list[str]:
        """Returns the names of the metrics of :meth:`begin_learning` and :meth:`end_learning`."""
        return [
            *ROLLOUT_METRICS,
            *(["obs_clipped"] if self.obs_norm is not None else []),
            *([] if self.intrinsic is None else self.intrinsic.metric_names()),
            "skipped_steps",
        ]

    def _get_batch_size(self) -> int | dict[str, int]:
        """Returns the size of minibatches, of each buffer if there are two; DI-engine's method."""
        size: int = self.cfg.learn.batch_size
        return size

    def _complete_rollout(self, rollout: Rollout) -> Rollout:
        sample = super()._complete_rollout(rollout)
        if hasattr(sample, "valid"):  # the collector refuses another result
            self._leave_mark(sample)
        return sample

    def _prepare_once(self, rollout: Rollout) -> None:
        """Prepares a rollout that another policy collected, unless this one has done so before."""
        mark = rollout.get(PREPARED_BY, None)
        if mark is None or not bool((mark == self._mark).all()):
            self._prepare_rollout(rollout)
            self._leave_mark(rollout)

    def _leave_mark(self, rollout: Rollout) -> None:
        valid = rollout.valid
        setattr(rollout, PREPARED_BY, torch.full(valid.shape[1:], self._mark, device=valid.device))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_mark": _new_mark()}  # a copy has statistics of its own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._mark = _new_mark()  # the loaded statistics need not contain earlier rollouts

    def forget_open_episodes(self) -> None:
        if self.reward_scale is not None:
            self.reward_scale.running_return = None

    @property
    def learning_rate(self) -> float:
        """The base of the schedule. An assigned value holds from the next iteration on, and is saved.

        Raises:
            ConfigError: if an assigned value is not a positive number.
        """
        return self.progress.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not 0 < number < math.inf:
            raise ConfigError(f"learning_rate: expected a positive number, got {value!r:.60}")
        self.progress.learning_rate = number

    def _state(self) -> dict[str, Any]:
        return {
            **super()._state(),
            "obs_norm": self.obs_norm,
            "reward_scale": self.reward_scale,
            "value_norm": self.value_norm,
            "progress": self.progress,
            "intrinsic": self.intrinsic,
            "bad_steps": self.bad_steps if "learn" in self.fields else None,
        }


def _new_mark() -> int:
    """Returns the mark of a policy, another one in every process; no seed may give it."""
    return secrets.randbits(63)
