"""Proximal Policy Optimization (arXiv:1707.06347), on fresh rollouts or from a replay buffer.

    r    = pi(a|s) / pi_prox(a|s)                     pi_prox: the policy when the iteration began
    w    = min(weight_bound, pi_prox(a|s) / mu(a|s))  mu: the policy that collected; 1 on fresh data
    L_pi = -mean(w min(r A, clip(r, 1 - eps, 1 + eps) A)) - entropy_weight entropy   (arXiv:2110.00641, eq. 9)
    L_V  = 0.5 mean((V - R)^2)
    L    = L_pi + value_weight value_norm_std^2 L_V   value_norm_std: 1 without value_norm

docs/algorithms.md has the terms that other keys add. With ``proximal="behaviour"``, r = pi / mu and w = 1:
stale samples may start outside the clip.

Rewards are stored raw. Values, advantages and targets are in units of the training reward, which is scaled
and clipped as ``normalize`` says; minibatches have values normalised by ``value_norm``.

Shapes: T steps, B environments, N samples of a minibatch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ding_lite.config.registry import POLICY_REGISTRY
from ding_lite.data.replay import Replay
from ding_lite.data.rollout import Rollout, as_rollout, require_rollout
from ding_lite.data.samples import Batch, Pass, Samples
from ding_lite.errors import ContractError
from ding_lite.fast.clipped import clipped_slopes
from ding_lite.fast.gradients import Objective, checked
from ding_lite.models.checks import check_value_heads
from ding_lite.policies.base import Policy
from ding_lite.policies.intrinsic import Intrinsic
from ding_lite.policies.keys import PPO, PPO_OFFPOLICY
from ding_lite.policies.optimizer import Optimizer, mean_metrics, mean_of
from ding_lite.policies.reference import Reference
from ding_lite.rl import losses
from ding_lite.rl.returns import explained_variance, gae, nstep_return
from ding_lite.rl.scales import NoScale, ObservationNorm, RewardScale, ValueNorm
from ding_lite.rl.schedules import ADAPTIVE, Schedules, adapted_rate
from ding_lite.trees import box_size, map_tree, to_dict


@POLICY_REGISTRY.register("ppo")
class PPOPolicy(Policy):
    """PPO with the options of "The 37 Implementation Details of PPO".

    A custom policy overrides :meth:`policy_loss`, which may read ``batch.dist``, or :meth:`value_loss`, which
    may read ``batch.new_value``: the model's fresh outputs on a :class:`~ding_lite.data.samples.Batch`. A
    loss changes nothing and returns ``(0-d loss, dict of 0-d metrics)``.
    """

    config = PPO

    # -- Construction

    def _init_shared(self) -> None:
        cfg, learn, norm = self.cfg, self.cfg.learn, self.cfg.normalize
        self.schedules = self.keep("progress", Schedules(learn))  # its name in checkpoints
        self.reference: Reference | None = None
        self.reward_scale: RewardScale | NoScale = NoScale()
        if norm.reward:
            self.reward_scale = self.keep("reward_scale", RewardScale(ranks=self.ranks))
        if learn.value_norm:
            check_value_heads(self.model)
            self.value_norm = self.keep("value_norm", ValueNorm(learn.value_norm_decay, self.ranks))
        self.intrinsic: Intrinsic | None = None
        if cfg.intrinsic.type is not None:
            draws = self.own_generator("intrinsic", device=self.device)
            intrinsic = Intrinsic(cfg, self.obs_space, self.action_space, draws, self.seed, self.ranks)
            self.intrinsic = self.keep("intrinsic", intrinsic)
            self.obs_norms.append(intrinsic.obs_norm)
            self.say(f"intrinsic reward: {cfg.intrinsic.type}, weight {cfg.intrinsic.weight:g}")
        self.usual_entropy_weight = 0.0 if box_size(self.action_space) else 0.01
        self.set_coefficients()

    def _init_learn(self) -> None:
        # On-policy: passes over the rollout. Off-policy: how often a transition is drawn, on average.
        self.uses: float = self.cfg.learn.get("epoch_per_collect" if self.cfg.on_policy else "reuse")
        self.order = self.own_generator("minibatch", device=self.device)
        self.replay = self.keep("replay", self.make_replay())
        self.optimizer = self.keep("optimizer", self.make_optimizer())
        self.say(f"gradients: {self.optimizer.gradient_of(self.objective).name}")

    def make_replay(self) -> Replay:
        """Returns a queue: on-policy for one rollout, off-policy with the limits of the config."""
        limits = {} if self.cfg.on_policy else self.cfg.other.replay_buffer
        return Replay(device=self.device, **limits)

    def make_optimizer(self, size: int | None = None) -> Optimizer:
        """Returns an optimiser as the config says; ``size``: samples of full minibatches."""
        captured, size = self.cfg.cuda_graph and self.recurrence is None, size or self.cfg.learn.batch_size
        return Optimizer(self.model, self.cfg.learn, size=size, captured=captured, ranks=self.ranks)

    def use_reference(self, reference: Policy) -> None:
        """Sets the frozen policy that ``learn.kl_beta`` refers to, as ``load_policy`` returns it."""
        learn = self.cfg.learn
        self.reference = self.keep("reference", Reference(reference, self))
        self.say(f"stays near {learn.pretrained_model_path}: {learn.kl_beta:g} KL ({learn.kl_type})")

    # -- Credit

    def _prepare_rollout(self, rollout: Rollout) -> None:
        if not isinstance(self.reward_scale, NoScale):
            ends = rollout.terminated | rollout.truncated | ~rollout.valid  # a lost episode may end there
            gamma = self.cfg.normalize.reward_discount
            gamma = self.cfg.collect.discount_factor if gamma is None else gamma
            self.reward_scale.update_from(rollout.reward, ends, rollout.valid, gamma)
        if self.intrinsic is not None:
            self.intrinsic.add_reward(rollout)
        if self.reference is not None:
            self.reference.add_logits(rollout)

    def _get_train_sample(self, rollout: Rollout) -> Rollout:
        rollout = rollout.to(self.device)
        return as_rollout(to_dict(rollout) | self.credit(rollout))

    @torch.no_grad()
    def credit(self, rollout: Rollout, weight: Tensor | None = None) -> dict[str, Tensor]:
        """Returns value, advantage and value_target (T, B); computes values that the rollout does not have.

        Args:
            rollout: fresh or old; for a recurrent policy with ``hidden`` and ``last_hidden``.
            weight: (T, B), min(1, pi_prox/mu), for V-trace; targets of ``nstep_return`` ignore it.
        """
        collect, valid, is_recurrent = self.cfg.collect, rollout.valid, self.recurrence is not None
        if "value" in rollout:  # computed while acting
            value = rollout.value
        else:
            value = self.value_norm.denormalize(self.over_rollout(self.network("critic"), rollout))
        last_value = self.values(rollout.last_obs, rollout["last_hidden"] if is_recurrent else None)
        next_value = torch.cat([value[1:], last_value[None]])
        if "final" in rollout:  # truncated rows continue with their last observations
            final = rollout.final
            next_value[final.t, final.env] = self.values(final.obs, final["hidden"] if is_recurrent else None)
        reward, clip = self.reward_scale(rollout.reward), self.cfg.normalize.reward_clip
        reward = reward if clip is None else reward.clamp(-clip, clip)
        # Rows that are not valid may be nan.
        reward, before, after = (x.masked_fill(~valid, 0.0) for x in (reward, value, next_value))
        terminated, truncated = rollout.terminated, rollout.truncated | ~valid
        if collect.unroll_len > 1:  # a segment ends like a truncated episode
            truncated[collect.unroll_len - 1 :: collect.unroll_len] = True
        flags, gamma, lam = (terminated, truncated), collect.discount_factor, collect.gae_lambda
        advantage, target = gae(reward, before, after, *flags, gamma=gamma, gae_lambda=lam, weight=weight)
        if self.cfg.nstep_return:
            target = nstep_return(reward, after, *flags, gamma=gamma, nstep=self.cfg.nstep)
        if self.intrinsic is not None:
            advantage = self.intrinsic.added_to(advantage, rollout, weight)
        return {"value": value, "advantage": advantage, "value_target": target}

    # -- One iteration, top to bottom

    def _forward_learn(self, rollout: Rollout) -> dict[str, float]:
        """Improves the model by one rollout (T, B) with credit, and returns metrics."""
        require_rollout(rollout, "learn_mode.forward")
        if self.cfg.learn.pretrained_model_path is not None and self.reference is None:
            raise ContractError(
                "policy.learn.pretrained_model_path: call use_reference(load_policy(PATH)) before"
            )
        rollout = rollout.to(self.device)
        valid = rollout.valid
        value, target, advantage = (rollout[name][valid] for name in ("value", "value_target", "advantage"))
        before = {"value_max": value.max(), "value_mean": value.mean()}
        before |= {"adv_max": advantage.max(), "adv_mean": advantage.mean()}
        before["explained_variance"] = explained_variance(value, target)
        if isinstance(self.obs_norm, ObservationNorm):
            before["obs_clipped"] = self.obs_norm.clipped_share(rollout.obs, valid)
        if not self.value_norm.std:  # no scale yet: with V_old = R, value_clip never binds
            rollout = as_rollout(to_dict(rollout) | {"value": rollout.value_target})
        self.value_norm.update_and_rescale(target, self.model.value_heads)
        self.set_coefficients()
        log = mean_metrics([before])  # waits for the device once
        log |= {"cur_lr": self.schedules.rate, "clip_ratio": self.clip_ratio, **self.improve(rollout)}
        if (log_sigma := getattr(self.model.actor_head.out, "log_sigma", None)) is not None:
            log["action_std"] = float(log_sigma.detach().exp().mean())
        if self.intrinsic is not None:
            log |= self.intrinsic.learn(rollout)
        if self.cfg.normalize.obs is True:
            self.obs_norm.update(rollout.obs, valid)
        self.schedules.env_step += int(self.ranks.total(int(valid.sum())))
        self.schedules.iteration += 1
        return log

    def improve(self, rollout: Rollout) -> dict[str, float]:
        """Takes the gradient steps of an iteration, down the sum of both losses, and returns metrics."""
        self.begin_replay(rollout, self.replay)
        log = self.take_steps(self.passes(self.replay, self.uses), self.optimizer, self.objective)
        self.replay.end_iteration()
        return log | {f"buffer_{name}": value for name, value in self.replay.log.items()}

    def begin_replay(self, rollout: Rollout, *replays: Replay) -> None:
        """Adds the rollout of this iteration; off-policy, stores the current log-probs as pi_prox's."""
        if not self.cfg.on_policy:  # the collector writes its next rollout into the same memory
            rollout = as_rollout(map_tree(torch.clone, rollout))
        for replay in replays:
            replay.push(rollout)
            if not self.cfg.on_policy:
                self.set_proximal(replay)

    def passes(self, replay: Replay, uses: float, *, credit_is_old: bool = False) -> Iterator[Pass]:
        """Yields the passes of an iteration over the rollouts of ``replay``.

        On-policy: ``uses`` passes over the fresh rollout. Off-policy: passes over every live sample, until
        ``update_per_collect`` steps, else ceil(uses n_sample / batch_size), are taken, or no sample may be
        drawn. ``credit_is_old``: the value network was trained since credit was assigned.
        """
        renews = self.cfg.recompute_adv or self.cfg.nstep_return
        if self.cfg.on_policy:
            samples = self.samples(replay)
            for epoch in range(int(uses)):
                if renews and (epoch or credit_is_old):
                    self.renew_credit(replay)
                    samples = self.samples(replay)
                yield self.minibatches(samples)
            return
        learn = self.cfg.learn
        steps = learn.update_per_collect or math.ceil(uses * self.cfg.collect.n_sample / learn.batch_size)
        credit_is_old |= len(replay.rollouts) > 1  # older rollouts have old credit
        while steps > 0 and self.ranks.smallest(replay.has_live()):
            if renews and credit_is_old:
                self.renew_credit(replay)
            samples = self.samples(replay)
            next_pass = self.minibatches(samples, steps)
            replay.use(samples.index[next_pass.rows])  # type: ignore[index]
            yield next_pass
            steps, credit_is_old = steps - next_pass.number, True
        replay.log["missing_updates"] = float(steps)

    def take_steps(
        self, passes: Iterable[Pass], optimizer: Optimizer, objective: Objective
    ) -> dict[str, Any]:
        """Takes the steps of passes.

        In the ``critic_warmup`` only the value's loss is minimised, also in a shared encoder. After
        ``target_kl`` the value goes on alone, unless its steps would move the policy.
        """
        learn, model, history, epochs = self.cfg.learn, self.model, [], 0
        if self.schedules.iteration < learn.critic_warmup and "actor" in objective.reads:
            if "critic" not in objective.reads:
                return {"epochs": 0.0, "updates": 0.0}
            objective = objective._replace(reads=("critic",))
        gradient_of = optimizer.gradient_of(objective)
        for current in passes:
            metrics = optimizer.steps(gradient_of, current.batches, self.schedules.rate)
            history += metrics
            if "actor" not in objective.reads:
                continue
            epochs += 1
            if learn.lr_schedule == ADAPTIVE:
                kl = mean_of(metrics, "approx_kl")
                self.learning_rate = adapted_rate(self.learning_rate, kl, learn.desired_kl)
            if learn.target_kl is not None and mean_of(metrics, "approx_kl") > 1.5 * learn.target_kl:
                if "critic" not in objective.reads or (model.share_encoder and not model.detaches_value):
                    break  # a step of the value would also move the policy
                objective = objective._replace(reads=("critic",))
                gradient_of = optimizer.gradient_of(objective)
        return {**mean_metrics(history), "epochs": float(epochs), "updates": float(len(history))}

    # -- Samples

    @torch.no_grad()
    def set_proximal(self, replay: Replay) -> None:
        """Stores the current log-probs as pi_prox's, and the weights w of stale rollouts."""
        learn = self.cfg.learn
        for stored in replay.rollouts:
            rollout, log_prob = stored.rollout, stored.rollout.log_prob
            if replay.age(stored):
                log_prob = self.over_rollout(self.log_prob, rollout, "action")
            stored.ratio = torch.exp(log_prob - rollout.log_prob).masked_fill(~rollout.valid, 1.0)
            if learn.proximal == "decoupled":
                weight = stored.ratio.clamp(max=learn.weight_bound)
                stored.renewed = {"log_prob": log_prob, "policy_weight": weight}
            else:
                stored.renewed = {"prox_log_prob": log_prob}
        replay.log = replay.metrics(self.clip_ratio)

    def renew_credit(self, replay: Replay) -> None:
        """Computes credit by the newest values: all of it with ``recompute_adv``, else only value targets."""
        self.timer("advantages")
        for stored in replay.rollouts:
            # V-trace with c-bar = rho-bar = 1 (arXiv:1802.01561).
            weight = stored.ratio.clamp(max=1.0) if replay.age(stored) else None
            fresh = {name: x for name, x in to_dict(stored.rollout).items() if name != "value"}
            credit = self.credit(as_rollout(fresh), weight)
            stored.renewed |= credit if self.cfg.recompute_adv else {"value_target": credit["value_target"]}
        self.timer("updates")

    @torch.no_grad()
    def samples(self, replay: Replay) -> Samples:
        """Returns the live samples of rollouts, with normalised values and scaled observations."""
        parts, normalize = [], self.value_norm.normalize
        for stored in replay.rollouts:
            fields = to_dict(stored.rollout) | stored.renewed
            fields |= {name: normalize(fields[name]) for name in ("value", "value_target")}
            parts.append(Samples.of(stored.rollout, replay.live(stored), fields, self.recurrence))
        samples = Samples.joined(parts, [stored.uses.numel() for stored in replay.rollouts])
        samples.fields["obs"] = self.scaled(samples.fields["obs"])
        return samples

    def minibatches(self, data: Rollout | Samples, steps: int | None = None) -> Pass:
        """Returns one pass over the samples of a rollout, of at most ``steps`` minibatches."""
        samples = data if isinstance(data, Samples) else self.samples(Replay.of(data))
        learn, order, ranks = self.cfg.learn, self.order, self.ranks
        return samples.minibatches(learn.batch_size, order, steps=steps, adv_norm=learn.adv_norm, ranks=ranks)

    # -- Losses, which a custom policy overrides

    def policy_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the clipped surrogate loss minus the entropy bonus; the fields of ``batch`` are (N, ...).

        ``batch.advantage`` is normalised as ``adv_norm`` says.
        """
        log_prob = batch.dist.log_prob(batch.action)
        log_ratio = log_prob - batch.log_prob  # log r
        moved = log_ratio if batch.prox_log_prob is None else log_prob - batch.prox_log_prob
        gain = losses.clipped_surrogate(log_ratio, batch.advantage, self.clip_ratio, self.cfg.learn.dual_clip)
        loss = -losses.weighted_mean(gain, batch.policy_weight)
        entropy = batch.dist.entropy().mean()
        return loss - self.entropy_weight * entropy, {
            "policy_loss": loss,
            "entropy_loss": entropy,
            "approx_kl": losses.approx_kl(moved),
            "clipfrac": losses.clip_fraction(log_ratio, self.clip_ratio),
        }

    def value_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the value loss, before its weight; with value_norm it is in normalised units."""
        kind = self.cfg.learn.value_loss
        error = losses.value_error(batch.new_value, batch.value_target, batch.value, self.value_clip, kind)
        loss = error.mean()
        return loss, {"value_loss": loss}

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the weighted sum of the losses for which the batch has outputs of the model.

        ``dist``, if the objective reads "actor", adds the policy loss and the KL penalty of a reference;
        ``new_value``, if it reads "critic", adds the value loss times the key value_weight and, with
        value_norm, times value_norm_std^2.
        """
        total: Any = 0.0
        metrics: dict[str, Tensor] = {}
        if "dist" in vars(batch):
            total, metrics = checked(self.policy_loss(batch), self, "policy_loss")
            if self.reference is not None:
                penalty, of_penalty = self.reference.penalty(batch)
                total, metrics = total + penalty, metrics | of_penalty
        if "new_value" in vars(batch):
            loss, of_value = checked(self.value_loss(batch), self, "value_loss")
            total, metrics = total + self.value_weight * loss, metrics | of_value
        has_both = vars(batch).keys() >= {"dist", "new_value"}
        return total, {"total_loss": total, **metrics} if has_both else metrics

    @property
    def objective(self) -> Objective:
        """The loss of gradient steps; with ``reads=("critic",)`` the value loss alone.

        If ``clipped_slopes`` is not None, its NumPy code replaces ``policy_loss``, ``value_loss``, ``loss``.
        """
        return Objective(self.loss, ("actor", "critic"), self.with_outputs, clipped_slopes(self), "the loss")

    # -- Schedules

    def set_coefficients(self) -> None:
        """Sets this iteration's coefficients from the schedules and the config, which a script may change."""
        learn, clip = self.cfg.learn, self.schedules.factor("clip")
        self.clip_ratio: float = learn.clip_ratio * clip
        self.value_clip = None if learn.value_clip is None else max(learn.value_clip * clip, 1e-8)
        # The joint clip needs value errors of a usual size; a shared encoder serves the larger weight.
        std = learn.value_norm_std or (1.0 if self.model.share_encoder else 10.0)
        self.value_weight: float = learn.value_weight * (std**2 if learn.value_norm else 1.0)
        entropy_weight = self.usual_entropy_weight if learn.entropy_weight is None else learn.entropy_weight
        self.entropy_weight: float = entropy_weight * self.schedules.factor("entropy")

    @property
    def learning_rate(self) -> float:
        """The base of the schedule. An assigned value applies from the next pass on, and is saved."""
        return self.schedules.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self.schedules.set_learning_rate(value)

    # -- State

    def forget_open_episodes(self) -> None:
        self.reward_scale.running_return = None
        if self.reference is not None:
            self.reference.hidden = None


@POLICY_REGISTRY.register("ppo_offpolicy")
class PPOOffPolicy(PPOPolicy):
    """PPO that draws from a replay buffer: the same code with other defaults."""

    config = PPO_OFFPOLICY
