"""What every actor-critic policy shares: acting, credit assignment, and scales.

Rewards and values are stored raw and scaled where they are used; ``rl.running_stats`` says when each scale
is updated.

Shapes: T steps, B envs, N samples.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ding_lite.columns import in_segments, put_together
from ding_lite.errors import ConfigError
from ding_lite.models.actor_critic import VAC, ActorCritic
from ding_lite.models.fast_acting import MAX_WEIGHTS, FastActor, fast_actor
from ding_lite.models.towers import find_critic, owns
from ding_lite.policies.base import Policy, check_declared
from ding_lite.policies.normalization import ObservationNorm
from ding_lite.rl.returns import gae, nstep_return
from ding_lite.rl.running_stats import RewardScale, ValueNorm
from ding_lite.rl.schedules import TrainingProgress
from ding_lite.rollout import Batch, Rollout, leading_size, map_tree, view
from ding_lite.schema import Key
from ding_lite.types import CollectMode, Tree

VALUE_CHUNK_BYTES = 2**24  # of float32 input to the value network at a time
# The values of a fresh rollout's observations, in the units of the rewards, where the network gave them as
# it acted. They are taken out before anything is learned from it: after that they would be old.
ACTING_VALUE = "acting_value"
# What a small network put out as it acted: log-probs of a whole rollout at once take less than step by step.
# A Normal's sigma is not in it, so get_train_sample takes them before anybody changes the policy.
ACTING_OUTPUT = "acting_output"
# What a rollout goes through on its way there, and the methods of a model that must agree on its values.
COLLECTS = ("_forward_collect", "_process_transition", "_get_train_sample", "_credit")
MAKES_ROWS = ("_forward_collect", "_to_env", "_process_transition", "_get_train_sample")
COMPUTES = ("compute_actor", "compute_critic", "compute_actor_critic", "_critic_features")


class _Acts(NamedTuple):
    """Who acts in the model's place during one rollout, and how."""

    actor: FastActor | None
    log_probs_later: bool  # for the whole rollout at once, in _get_train_sample


class ActorCriticPolicy(Policy):
    """Acts by ``model.compute_actor``, and gives every step its advantage by ``model.compute_critic``."""

    config: dict[str, Any] = dict(
        action_space=Key(None, choices=("discrete", "continuous", "hybrid"), optional=True),
        nstep_return=False,  # value targets of nstep steps, instead of those of GAE
        nstep=Key(3, low=1),
        learn=dict(
            learning_rate=Key(3e-4, above=0),
            value_norm=True,  # the value network predicts in units of the targets' std (PopArt)
            # Weight that value_norm leaves to earlier targets at each iteration; 1: it forgets nothing.
            value_norm_decay=Key(0.95, low=0, high=1),
            ignore_done=False,  # take every termination for a truncation
        ),
        collect=dict(
            n_sample=Key(2048, low=2),  # transitions in a rollout, over all environments
            # In their place so many whole episodes; n_sample is then about how many transitions those are.
            n_episode=Key(None, (int,), low=1, optional=True),
            # Steps of a segment, beyond which no advantage looks; 0 and 1: those of the rollout.
            unroll_len=Key(1, low=0, high=10_000),
            discount_factor=Key(0.99, low=0, high=1),
            gae_lambda=Key(0.95, low=0, high=1),
        ),
        normalize=dict(
            # Observations to mean 0 and std 1, as found in obs_samples random steps before training: running
            # on from there (True), or fixed ("initial").
            obs=Key(False, choices=(False, True, "initial")),
            obs_samples=Key(1000, low=2),
            obs_clip=Key(10.0, above=0),
            reward=False,  # rewards by the std of the discounted return
            # Discount of that return; None: collect.discount_factor.
            reward_discount=Key(None, (float,), low=0, high=1, optional=True),
            reward_clip=Key(None, (float,), above=0, optional=True),  # after the scaling, for training
        ),
    )

    def _init_shared(self) -> None:
        cfg = self.cfg
        check_declared(self.obs_space, self.action_space, {"action_space": cfg.action_space})
        norm = cfg.normalize
        self.obs_norm = ObservationNorm(self.obs_space, norm.obs_clip, self.device) if norm.obs else None
        discount = cfg.collect.discount_factor if norm.reward_discount is None else norm.reward_discount
        self.reward_scale = RewardScale(discount) if norm.reward else None
        self._rewards_are_seen = False  # whether reward_scale includes the rollout that is learned from next
        self.value_norm = ValueNorm(cfg.learn.value_norm_decay) if cfg.learn.value_norm else None
        if self.value_norm is not None and not self.model.value_heads:
            raise ConfigError(
                f"policy.learn.value_norm: {type(self.model).__name__} names no value_heads, and PopArt "
                "must correct them; set model.value_heads = (its last linear value layer,), or "
                "value_norm=False"
            )
        self.progress = TrainingProgress(cfg.learn.learning_rate)
        self._fast_actor = self._find_fast_actor()
        self._acts: _Acts | None = None  # within _acting
        self._critic = find_critic(self.model)

    def _inputs(self, obs: Tree) -> Any:
        """Returns observations as the model takes them: on the device, normalised."""
        obs = self._on_device(obs)
        return obs if self.obs_norm is None else self.obs_norm(obs)

    def _forward_collect(self, obs: Tree, state: Any = None, first: Any = None) -> dict[str, Any]:
        fast, leaf = self._fast(obs)
        if fast is not None and leaf is not None:
            action, output = fast.draw(leaf, obs, self.generator)
            if self._acts is not None and self._acts.log_probs_later:
                return {"action": action, ACTING_OUTPUT: output}
            return {"action": action, "log_prob": fast.log_prob(output, obs, action.numpy())}
        with torch.inference_mode():
            inputs, values = self._inputs(obs), {}
            if self._shares_work():
                logit, value = self.model.compute_actor_critic(inputs)
                values[ACTING_VALUE] = self._raw(value)
            else:
                logit = self.model.compute_actor(inputs)
            dist = self._distribution(inputs, logit)
            action = dist.sample(self.generator)
            return {"action": action, "log_prob": dist.log_prob(action), **values}

    def _forward_eval(self, obs: Tree, state: Any = None, first: Any = None) -> dict[str, Any]:
        fast, leaf = self._fast(obs)
        if fast is not None and leaf is not None:
            return fast.greedy(leaf, obs)
        with torch.inference_mode():
            inputs = self._inputs(obs)
            return {"action": self._distribution(inputs, self.model.compute_actor(inputs)).mode()}

    def _fast(self, obs: Tree) -> tuple[FastActor | None, np.ndarray | None]:
        """Returns who acts in the model's place, and the vectors it acts on, scaled; None: nobody does."""
        fast = self._look_up_actor() if self._acts is None else self._acts.actor
        leaf = None if fast is None else fast.leaf(obs)
        if fast is None or leaf is None or self.obs_norm is None:
            return fast, leaf
        return fast, self.obs_norm.of_array(leaf, fast.tower.path)

    def _look_up_actor(self) -> FastActor | None:
        """Returns who acts in the place of the model as it is now."""
        fast = self._fast_actor
        if fast is not None and not (fast.tower.model is self.model and fast.tower.holds()):
            fast = self._fast_actor = self._find_fast_actor()
        return None if fast is None or fast.tower.is_listened_to() else fast

    @contextlib.contextmanager
    def _acting(self, mode: CollectMode) -> Iterator[None]:
        # Whoever has a say in what becomes of a step sees its log-probs.
        own = mode == self.collect_mode and owns(self, ActorCriticPolicy, *MAKES_ROWS)
        self._acts = _Acts(self._look_up_actor(), log_probs_later=own)
        try:
            yield
        finally:
            self._acts = None

    def _find_fast_actor(self, max_weights: int = MAX_WEIGHTS) -> FastActor | None:
        return fast_actor(self.model, max_weights) if self._sees_as_written() else None

    def _sees_as_written(self) -> bool:
        """Returns whether what the model is shown, and what is made of it, is that of this class."""
        return owns(self, ActorCriticPolicy, "_inputs", "_distribution", "_on_device")

    def _shares_work(self) -> bool:
        """Returns whether the model gives the values of what it acts on at next to no cost.

        That is where a class says how to compute both together, and none after it how to compute one.
        """
        model, cls = self.model, type(self)
        if any(getattr(cls, name) is not getattr(ActorCriticPolicy, name) for name in COLLECTS):
            return False  # who knows what it is shown, and when
        if not owns(self, ActorCriticPolicy, "_values", "_compute_critic", "_raw"):
            return False
        if isinstance(model, VAC) and model.critic_encoder is not None:
            return False
        if not vars(model).keys().isdisjoint(COMPUTES):
            return False
        defined = next(kind for kind in type(model).__mro__ if not vars(kind).keys().isdisjoint(COMPUTES))
        return defined is not ActorCritic and "compute_actor_critic" in vars(defined)

    def _get_train_sample(self, rollout: Rollout) -> Rollout:
        rollout = rollout.to(self.device)
        output, value = rollout.pop(ACTING_OUTPUT, None), rollout.pop(ACTING_VALUE, None)
        if output is not None:
            assert self._fast_actor is not None  # it acted
            obs, action = map_tree(view, rollout.obs), view(rollout.action)
            rollout.log_prob = self._fast_actor.log_prob(view(output), obs, action)
        if value is not None:
            rollout.value = value
        segments = self._segments(rollout)
        credit = self._credit(segments) if value is None else self._credit(segments, value=segments.value)
        for name, field in credit.items():
            setattr(rollout, name, field if segments is rollout else put_together(field, rollout))
        return rollout

    def _segments(self, rollout: Rollout) -> Rollout:
        """Returns a rollout as it is learned from: cut into segments where ``unroll_len`` says so."""
        collect = self.cfg.collect
        return in_segments(rollout, collect.unroll_len, whole_episodes=collect.n_episode is not None)

    @torch.no_grad()
    def _credit(
        self, rollout: Rollout, weight: Tensor | None = None, value: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Returns value, advantage and value_target (T, B) by the newest value network, raw units.

        What stands on a row that is not valid never reaches a valid one.

        Args:
            rollout: of any age.
            weight: (T, B), min(1, pi/mu) of each step: V-trace for rollouts that are not fresh.
            value: (T, B), where the newest network has given them already.
        """
        valid, ignore_done = rollout.valid, self.cfg.learn.ignore_done
        if value is None:
            value = self._values(rollout.obs, lead=2)
        next_value = torch.empty_like(value)
        next_value[:-1] = value[1:]
        next_value[-1] = self._values(rollout.last_obs, lead=1)
        if "final" in rollout.keys():  # noqa: SIM118 - a treetensor has no __contains__
            final = rollout.final
            next_value[final.t, final.env] = self._values(final.obs, lead=1)
        reward = self._training_reward(rollout.reward).masked_fill(~valid, 0.0)
        # What follows an end belongs to another episode, and may be anything, a nan too.
        next_value = next_value.masked_fill(~valid | (rollout.terminated & (not ignore_done)), 0.0)
        ends = (rollout.terminated, rollout.truncated | ~valid)
        gamma = self.cfg.collect.discount_factor
        advantage, target = gae(
            reward,
            value.masked_fill(~valid, 0.0),
            next_value,
            *ends,
            gamma=gamma,
            gae_lambda=self.cfg.collect.gae_lambda,
            weight=weight,
            ignore_done=ignore_done,
        )
        if self.cfg.nstep_return:
            options = dict(gamma=gamma, nstep=self.cfg.nstep, ignore_done=ignore_done)
            target = nstep_return(reward, next_value, *ends, **options)
        return {"value": value, "advantage": advantage, "value_target": target}

    @torch.no_grad()
    def _values(self, obs: Any, lead: int) -> Tensor:
        """Returns the values of observations with ``lead`` leading dims, raw units."""
        return self._raw(self._chunked(lambda inputs, _: self._compute_critic(inputs), obs, lead))

    def _raw(self, value: Tensor) -> Tensor:
        """Returns values of the model in the units of the rewards."""
        return value if self.value_norm is None else self.value_norm.denormalize(value)

    def _compute_critic(self, inputs: Any) -> Tensor:
        """Returns the model's values (N,), without gradient, by the value network's twin where it has one."""
        if self._critic is not None and not (self._critic.model is self.model and self._critic.holds()):
            self._critic = find_critic(self.model)
        if self._critic is None or self._critic.is_listened_to():
            return self.model.compute_critic(inputs)
        with np.errstate(all="ignore"):  # as torch; what is not finite is found by the learner
            return torch.from_numpy(self._critic.forward(self._critic.rows(Batch(obs=inputs)))[:, 0])

    @torch.no_grad()
    def _log_probs(self, obs: Any, action: Any, lead: int) -> Tensor:
        """Returns the log-probs, under the newest policy, of actions with ``lead`` leading dims."""

        def log_prob(inputs: Any, some: Any) -> Tensor:
            return self._distribution(inputs, self.model.compute_actor(inputs)).log_prob(some)

        log_probs: Tensor = self._chunked(log_prob, obs, lead, action)
        return log_probs

    @torch.no_grad()
    def _logits(self, obs: Any, lead: int) -> Any:
        """Returns the parameters of the newest policy's distributions, a tensor or a dict."""
        return self._chunked(lambda inputs, _: self.model.compute_actor(inputs), obs, lead)

    def _chunked(self, function: Callable[..., Any], obs: Any, lead: int, *others: Any) -> Any:
        """Returns ``function(inputs, other, ...)`` of all samples, some megabytes of input at a time.

        Shapes:
            obs and each of ``others``: (..., *) with ``lead`` leading dims -> (..., *), a tensor or a dict
        """
        shape: torch.Size = torch.Size()
        sizes: list[int] = []

        def note(leaf: Tensor) -> None:
            nonlocal shape
            shape = leaf.shape[:lead]
            sizes.append(leaf[(0,) * lead].numel() * 4)

        map_tree(note, obs)
        flat = [map_tree(lambda leaf: leaf.flatten(0, lead - 1), tree) for tree in (obs, *others)]
        chunk = max(1, VALUE_CHUNK_BYTES // max(1, sum(sizes)))
        results = []
        for start in range(0, shape.numel(), chunk):
            some, *rest = (map_tree(lambda x, s=start: x[s : s + chunk], tree) for tree in flat)
            results.append(function(self._inputs(some), *map(self._on_device, rest) if rest else (None,)))
        return concatenated(results, shape)

    def _training_reward(self, reward: Tensor) -> Tensor:
        if self.reward_scale is not None:
            reward = reward / float(self.reward_scale.std)
        clip = self.cfg.normalize.reward_clip
        return reward if clip is None else reward.clamp(-clip, clip)

    @property
    def warm_up_steps(self) -> int:
        """Random steps to show to :meth:`warm_up` before training; 0 if no statistic waits for them."""
        norm = self.obs_norm
        begins = norm is not None and any(stats.count == 0 for stats in norm.stats.values())
        return int(self.cfg.normalize.obs_samples) if begins else 0

    def warm_up(self, obs: Tree) -> None:
        """Takes the scale of observations (N, ...) from random steps."""
        if self.obs_norm is not None:
            obs = self._on_device(obs)
            self.obs_norm.update(obs, torch.ones(leading_size(obs), dtype=torch.bool, device=self.device))

    def _before_credit(self, rollout: Rollout) -> None:
        """Updates the reward scale; to be called once for each rollout."""
        self._rewards_are_seen = True
        if self.reward_scale is not None:
            done = (rollout.terminated | rollout.truncated).cpu().numpy()
            self.reward_scale.update_from(rollout.reward.cpu().numpy(), done, rollout.valid.cpu().numpy())

    def _update_obs_norm(self, data: Rollout) -> None:
        if self.obs_norm is not None and self.cfg.normalize.obs is True:
            self.obs_norm.update(data.obs, data.valid)

    @property
    def learning_rate(self) -> float:
        """The base of the schedule. Assigning replaces it from the next iteration on, and is saved."""
        return self.progress.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self.progress.learning_rate = float(value)

    def _state(self) -> dict[str, Any]:
        return {
            **super()._state(),
            "obs_norm": self.obs_norm,
            "reward_scale": self.reward_scale,
            "value_norm": self.value_norm,
            "progress": self.progress,
        }


def concatenated(parts: Sequence[Any], shape: torch.Size) -> Any:
    """Returns trees of leaves (N, ...) one after the other, their first dim in the shape ``shape``."""
    if isinstance(parts[0], dict):
        return {name: concatenated([part[name] for part in parts], shape) for name in parts[0]}
    joined = torch.cat(list(parts)) if len(parts) > 1 else parts[0]
    return joined.view(*shape, *joined.shape[1:])
