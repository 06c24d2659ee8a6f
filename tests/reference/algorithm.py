"""PPO, off-policy PPO, PPG and off-policy PPG, one iteration at a time.

    collect   updates the reward scale; computes log-probs, values, advantages and value targets
    learn     updates the value scale; the policy phase; every N_pi iterations the auxiliary phase;
              updates the observation scale

Sources: PPO arXiv:1707.06347, decoupled PPO 2110.00641, V-trace 1802.01561, PPG 2009.04416.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reference import credit, losses
from reference.buffers import Buffer, Entry, Key, minibatch_sizes
from reference.credit import Credit
from reference.losses import Watch
from reference.networks import Networks
from reference.normalizers import ObservationScale, RewardScale, ValueScale
from reference.optimizer import Adam
from reference.recording import Mismatch, Step, map_tree, mask_of, vector_of

ROLLOUTS_KEPT = 4  # in a buffer whose size the config does not set
TINY = 1e-6  # added to |A|, so that no priority is 0


class Draws:
    """The order of the library's minibatches in one iteration.

    Args:
        passes: by the name of the buffer, the keys of each pass (with priorities, of each minibatch).
        auxiliary: for each epoch of the auxiliary phase, the keys of all its samples.
    """

    def __init__(self, passes: dict[str, list[list[Key]]], auxiliary: list[list[Key]]) -> None:
        self.passes, self.auxiliary = passes, auxiliary

    def next(self, name: str) -> list[Key]:
        if not self.passes.get(name):
            raise Mismatch(f"the library draws less from the {name} buffer")
        return self.passes[name].pop(0)

    def finish(self) -> None:
        for name, left in self.passes.items():
            if left:
                raise Mismatch(f"the library draws {len(left)} times more from the {name} buffer")
        if self.auxiliary:
            raise Mismatch(f"the library has {len(self.auxiliary)} auxiliary epochs more")


class Minibatch:
    """The input of a loss, (N, ...): scaled observations, and values in the units of the heads."""

    def __init__(self, reference: Reference, entries: list[Entry], of_pass: dict[Key, Credit]) -> None:
        steps, scale = [entry.step for entry in entries], reference.value_scale
        self.obs, self.mask = reference.inputs([step.obs for step in steps])
        self.action = stacked([step.action for step in steps])
        mine = [of_pass[step.key] for step in steps]
        self.value = numbers([scale.normalize(c.value) if scale else c.value for c in mine])
        self.target = numbers([scale.normalize(c.target) if scale else c.target for c in mine])
        self.advantage = numbers([c.advantage for c in mine])
        self.old_log_prob = numbers([step.log_prob for step in steps])
        self.weight = torch.ones(len(steps), dtype=torch.float64)  # pi_prox / mu, for the surrogate
        self.importance = torch.ones(len(steps), dtype=torch.float64)  # of prioritised draws, for all losses
        self.old = None if entries[0].old is None else stacked([entry.old for entry in entries])


class Reference:
    """The algorithms for one policy.

    Args:
        cfg: the section ``policy`` of a complete config.
        networks: with the initial layers.
        entropy_weight: of the bonus.
    """

    def __init__(self, cfg: Any, networks: Networks, entropy_weight: float) -> None:
        self.cfg, self.networks, self.base_entropy_weight = cfg, networks, entropy_weight
        norm, learn = cfg.normalize, cfg.learn
        self.obs_scale = ObservationScale(norm.obs_clip, norm.obs is True) if norm.obs else None
        gamma = cfg.collect.discount_factor if norm.reward_discount is None else norm.reward_discount
        self.reward_scale = RewardScale(gamma) if norm.reward else None
        self.value_scale = ValueScale(learn.value_norm_decay) if learn.value_norm else None
        self.watch = Watch()
        self.is_ppg = cfg.type.startswith("ppg")
        self.buffers = self._make_buffers()
        parameters = networks.layers.parameters
        self.optimizers = {name: self._adam(parameters) for name in (*self.buffers, "auxiliary")}
        self.memory: dict[Key, tuple[Step, float]] = {}  # of the auxiliary phase: steps and targets
        self.remembered = 0  # iterations in the memory
        self.env_step = 0
        self.iteration = 0
        for layer in networks.layers.modules:
            if isinstance(layer, nn.ReLU):
                layer.register_forward_hook(self._note_relu)

    def _note_relu(self, layer: nn.Module, inputs: Any, output: Tensor) -> None:
        if output.requires_grad:
            self.watch.near("the corner of a relu", inputs[0])

    def _adam(self, parameters: dict[str, Tensor]) -> Adam:
        learn = self.cfg.learn
        return Adam(parameters, learn.adam_eps, learn.grad_clip_type, learn.grad_clip_value, self.watch)

    def _make_buffers(self) -> dict[str, Buffer]:
        """Returns one buffer, or two for PPG if their limits differ (E_pi and E_V)."""
        cfg, learn = self.cfg, self.cfg.learn
        if not self.is_ppg:
            epochs = {"policy": (learn.epoch_per_collect, learn.reuse)}
            kept = {"policy": cfg.other.replay_buffer}
        else:
            actor, critic = learn.actor_epoch_per_collect, learn.critic_epoch_per_collect
            epochs = {"policy": (actor, actor), "value": (critic, critic)}
            kept = {name: cfg.other.replay_buffer[name] for name in epochs}
        limits = {}
        for name, (passes, reuse) in epochs.items():
            if cfg.on_policy:
                limits[name] = (passes, 0, math.inf, math.inf)
                continue
            n_sample, own = cfg.collect.n_sample, kept[name]
            updates = learn.update_per_collect or math.ceil(reuse * n_sample / learn.batch_size)
            capacity = own.replay_buffer_size or ROLLOUTS_KEPT * n_sample
            limits[name] = (own.max_use, own.max_staleness, capacity, updates)
        if len(limits) == 2 and limits["policy"] == limits["value"]:
            del limits["value"]
        return {name: Buffer(*each, self.watch) for name, each in limits.items()}

    # Networks.

    def inputs(self, observations: list[Any]) -> tuple[Tensor, Any]:
        """Returns the scaled inputs of the networks (N, D), and the masks or None."""
        vectors = np.stack([vector_of(obs) for obs in observations])
        if self.obs_scale is not None:
            vectors = self.obs_scale(vectors)
            self.watch.saw("the observation clip", bool((np.abs(vectors) >= self.obs_scale.clip).any()))
        masks = [mask_of(obs) for obs in observations]
        return torch.tensor(vectors), None if masks[0] is None else stacked(masks)

    @torch.no_grad()
    def values(self, observations: list[Any]) -> list[float]:
        """Returns V in raw units."""
        found = self.networks.value(self.inputs(observations)[0]).tolist()
        return [self.value_scale.denormalize(v) for v in found] if self.value_scale else found

    @torch.no_grad()
    def log_probs(self, steps: list[Step]) -> list[float]:
        """Returns log pi(a|s) under the newest policy."""
        obs, mask = self.inputs([step.obs for step in steps])
        dist = self.networks.policy(self.networks.parameters(obs), mask)
        return dist.log_prob(stacked([step.action for step in steps])).tolist()

    @torch.no_grad()
    def old_parameters(self, steps: list[Step]) -> list[Any]:
        """Returns the parameters of the newest policy's distributions, one tree per step."""
        parameters = self.networks.parameters(self.inputs([step.obs for step in steps])[0])
        return [map_tree(lambda leaf, k=k: leaf[k].clone(), parameters) for k in range(len(steps))]

    # Credit.

    def warm_up(self, observations: list[Any]) -> None:
        """Adds the observations of random steps before training to the observation scale."""
        if self.obs_scale is not None:
            self.obs_scale.take_in([vector_of(obs) for obs in observations])

    def collect(self, columns: list[list[Step]]) -> dict[Key, Credit]:
        """Adds a rollout, given as one list of rows per environment, and returns its credit."""
        if self.reward_scale is not None:
            self.reward_scale.take_in(columns)
        length = self.cfg.collect.unroll_len
        length = length if length > 1 else len(columns[0])
        self.segments = [
            column[start : start + length]
            for start in range(0, len(columns[0]), length)
            for column in columns
        ]
        self.steps = [step for segment in self.segments for step in segment if step.valid]
        for step, log_prob in zip(self.steps, self.log_probs(self.steps), strict=True):
            step.log_prob = log_prob
        return self.credit(self.segments, {})

    def credit(self, segments: list[list[Step]], ratio: dict[Key, float]) -> dict[Key, Credit]:
        """Returns the credit of valid steps from the newest value network and the current scales.

        Args:
            segments: rows of one environment each, the oldest first.
            ratio: pi_prox / mu of each step, for V-trace; a missing entry is 1.
        """
        cfg, collect = self.cfg, self.cfg.collect
        steps = [step for segment in segments for step in segment if step.valid]
        keys = [step.key for step in steps]
        value = dict(zip(keys, self.values([step.obs for step in steps]), strict=True))
        next_value = dict(zip(keys, self.values([step.next_obs for step in steps]), strict=True))
        reward = {step.key: self._training_reward(step.reward) for step in steps}
        gamma, ignore_done = collect.discount_factor, cfg.learn.ignore_done
        found: dict[Key, Credit] = {}
        for segment in segments:
            options = dict(gamma=gamma, ignore_done=ignore_done)
            own = credit.assign(
                segment, value, next_value, reward, ratio, gae_lambda=collect.gae_lambda, **options
            )
            if cfg.nstep_return:
                for t, step in enumerate(segment):
                    if step.valid:
                        own[step.key].target = credit.nstep_target(
                            segment, t, next_value, reward, nstep=cfg.nstep, **options
                        )
            found |= own
        return found

    def _training_reward(self, reward: float) -> float:
        if self.reward_scale is not None:
            reward /= self.reward_scale.std
        clip = self.cfg.normalize.reward_clip
        self.watch.saw("the reward clip", clip is not None and abs(reward) > clip)
        return reward if clip is None else min(max(reward, -clip), clip)

    # Learning.

    def learn(self, collected: dict[Key, Credit], draws: Draws) -> dict[str, float]:
        """Trains the networks on the rollout of :meth:`collect`; returns the means of the metrics."""
        self.draws, self.metrics = draws, {}
        if self.value_scale is not None:
            targets = [collected[step.key].target for step in self.steps]
            self.value_scale.take_in(targets, self.networks.value_heads)
        self._apply_schedules()
        self._push(collected)
        if "value" in self.buffers:  # the value's epochs come first
            self._train("value", self._value_part)
            self._train("policy", self._policy_part, values_moved=True)
        else:
            self._train("policy", self._both_parts, after_target_kl=self._value_part)
        if self.is_ppg and self.cfg.learn.aux_train_epoch:
            self._remember(collected)
            if self.remembered == self.cfg.learn.aux_freq:
                self._auxiliary_phase()
        for buffer in self.buffers.values():
            buffer.end_iteration()
        if self.obs_scale is not None and self.obs_scale.running:
            self.obs_scale.take_in([vector_of(step.obs) for step in self.steps])
        self.env_step += len(self.steps)
        self.iteration += 1
        draws.finish()
        return self.metrics

    def _apply_schedules(self) -> None:
        """Sets the coefficients of this iteration by the share of env steps done."""
        learn = self.cfg.learn
        share = self.env_step / learn.schedule_env_step

        def factor(name: str) -> float:
            return losses.schedule(learn[f"{name}_schedule"], share, learn[f"{name}_final"])

        for optimizer in self.optimizers.values():
            optimizer.learning_rate = learn.learning_rate * factor("lr")
        if self.is_ppg and learn.aux_learning_rate is not None:
            self.optimizers["auxiliary"].learning_rate = learn.aux_learning_rate * factor("lr")
        self.clip = learn.clip_ratio * factor("clip")
        self.value_clip = None if learn.value_clip is None else learn.value_clip * factor("clip")
        self.entropy_weight = self.base_entropy_weight * factor("entropy")
        self.metrics |= {"cur_lr": self.optimizers["policy"].learning_rate, "clip_ratio": self.clip}

    def _push(self, collected: dict[Key, Credit]) -> None:
        """Adds the rollout to the buffers, and sets pi_prox to the current policy.

        For fresh steps the log-probs of pi_prox are those of the collection.
        """
        for buffer in self.buffers.values():
            entries = [
                Entry(step, collected[step.key], self._priority(collected[step.key].advantage))
                for step in self.steps
            ]
            buffer.push(self.segments, entries)
            kept = list(buffer.entries.values())
            now = self.log_probs([entry.step for entry in kept])
            for entry, log_prob in zip(kept, now, strict=True):
                entry.proximal = log_prob if buffer.age(entry) else entry.step.log_prob
            if self.cfg.learn.kl_penalty is not None:
                olds = self.old_parameters([entry.step for entry in kept])
                for entry, old in zip(kept, olds, strict=True):
                    entry.old = old

    def _priority(self, advantage: float) -> float:
        if not self.cfg.get("priority"):
            return 1.0
        return (abs(advantage) + TINY) ** self.cfg.other.replay_buffer.alpha

    def _train(
        self,
        name: str,
        loss: Callable[[Minibatch], tuple[Tensor, dict[str, Tensor]]],
        *,
        after_target_kl: Callable[[Minibatch], tuple[Tensor, dict[str, Tensor]]] | None = None,
        values_moved: bool = False,
    ) -> None:
        """Takes the optimiser steps of one buffer.

        Args:
            name: of the buffer, and of its optimiser.
            loss: of a minibatch.
            after_target_kl: replaces ``loss`` once the KL exceeds 1.5 target_kl; None ends the passes.
            values_moved: whether the value network was trained in this iteration already.
        """
        cfg, buffer, target_kl = self.cfg, self.buffers[name], self.cfg.learn.target_kl
        left, first, stopped, epochs, history = buffer.updates, True, False, 0, []
        while left > 0 and (live := buffer.live()):
            renews = not first or values_moved or not buffer.is_fresh
            of_pass = {key: entry.credit for key, entry in buffer.entries.items()}
            if renews and (cfg.recompute_adv or cfg.nstep_return):
                of_pass = self._renewed(buffer)
            self.raw_advantage = {key: each.advantage for key, each in of_pass.items()}
            of_pass = self._with_batch_norm(of_pass, live)
            metrics = []
            for batch in self._minibatches(name, live, of_pass, left):
                metrics.append(self._one_step(name, loss, batch))
            left -= len(metrics)
            first = False
            history += metrics
            epochs += not stopped
            kls = [each["approx_kl"] for each in metrics if "approx_kl" in each]
            if target_kl is not None and kls:
                self.watch.near("target_kl", sum(kls) / len(kls) / target_kl - 1.5)
                stopped = sum(kls) / len(kls) > 1.5 * target_kl
                self.watch.saw("target_kl", stopped)
            if stopped and after_target_kl is None:
                break
            loss = after_target_kl if stopped else loss
        else:  # no break
            if math.isfinite(left):
                self.watch.saw("too little to draw", left > 0)
                prefix = "buffer" if len(self.buffers) == 1 else f"{name}_buffer"
                self.metrics[f"{prefix}_missing_updates"] = float(left)
        self._log_means(history)
        self.metrics["epochs"] = float(epochs)
        self.metrics["updates"] = self.metrics.get("updates", 0.0) + len(history)

    def _log_means(self, history: list[dict[str, float]]) -> None:
        """Sets each metric to its mean over the steps that have it."""
        for name in sorted({name for metrics in history for name in metrics}):
            values = [metrics[name] for metrics in history if name in metrics]
            self.metrics[name] = sum(values) / len(values)

    def _one_step(self, name: str, loss: Callable[..., Any], batch: Minibatch) -> dict[str, float]:
        total, tensors = loss(batch)
        norm = self.optimizers[name].step(total)
        metrics = {metric: float(number.detach()) for metric, number in tensors.items()}
        return metrics | {"value_grad_norm" if name == "value" else "grad_norm": norm}

    def _renewed(self, buffer: Buffer) -> dict[Key, Credit]:
        """Returns the credit from the newest network, for the parts that the config renews.

        For steps that are not fresh it is computed by V-trace and kept in the buffer.
        """
        segments = [segment for rollout in buffer.rollouts.values() for segment in rollout]
        ratio = {} if buffer.is_fresh else {key: entry.weight for key, entry in buffer.entries.items()}
        self.watch.saw("V-trace", any(rho < 0.99 for rho in ratio.values()))
        renewed = self.credit(segments, ratio)
        for key, entry in buffer.entries.items():
            if not self.cfg.recompute_adv:  # only the n-step targets
                renewed[key] = Credit(entry.credit.value, entry.credit.advantage, renewed[key].target)
            if not buffer.is_fresh:
                entry.credit = renewed[key]
        return renewed

    def _with_batch_norm(self, of_pass: dict[Key, Credit], live: dict[Key, Entry]) -> dict[Key, Credit]:
        """Returns the credit of a pass, with advantages normalised over all steps that may be drawn."""
        if self.cfg.learn.adv_norm != "batch":
            return of_pass
        scaled = credit.normalized([of_pass[key].advantage for key in live])
        return {
            key: Credit(of_pass[key].value, advantage, of_pass[key].target)
            for key, advantage in zip(live, scaled, strict=True)
        }

    def _minibatches(self, name: str, live: dict[Key, Entry], of_pass: dict[Key, Credit], left: float) -> Any:
        """Yields one pass: each live step once, in the library's order, or fewer if few updates are left."""
        learn, buffer = self.cfg.learn, self.buffers[name]
        sizes = minibatch_sizes(len(live), learn.batch_size)
        self.watch.saw("a sample alone joins a minibatch", sizes[-1] == learn.batch_size + 1)
        self.watch.saw("the last pass is cut short", left < len(sizes))
        sizes = sizes[: int(min(left, len(sizes)))]
        if self.cfg.get("priority"):
            for _ in sizes:
                yield self._prioritized(name, live, of_pass)
            return
        keys = self._checked(self.draws.next(name), live, sum(sizes))
        for key in keys:
            buffer.entries[key].uses += 1
        for size in sizes:
            own, keys = keys[:size], keys[size:]
            yield self._minibatch(buffer, own, of_pass)

    def _prioritized(self, name: str, live: dict[Key, Entry], of_pass: dict[Key, Credit]) -> Minibatch:
        """Returns a minibatch drawn in proportion to the priorities of the steps with uses left.

        Importance weights (arXiv:1511.05952, section 3.4): w = (N P)^-beta / max w.
        """
        kept, buffer = self.cfg.other.replay_buffer, self.buffers[name]
        unspent = {key: entry for key, entry in live.items() if entry.uses < buffer.max_use}
        size = minibatch_sizes(len(unspent), self.cfg.learn.batch_size)[0]
        keys = self._checked(self.draws.next(name), unspent, size)
        batch = self._minibatch(buffer, keys, of_pass)
        if self.cfg.priority_IS_weight:
            total = sum(entry.priority for entry in unspent.values())
            weights = {
                key: (len(unspent) * entry.priority / total) ** -kept.beta for key, entry in unspent.items()
            }
            largest = max(weights.values())
            batch.importance = numbers([weights[key] / largest for key in keys])
        for key in keys:
            live[key].uses += 1
        batch.drawn = [live[key] for key in keys]  # the value loss renews their priorities
        return batch

    @staticmethod
    def _checked(keys: list[Key], live: dict[Key, Entry], size: int) -> list[Key]:
        if len(keys) != size or len(set(keys)) != size:
            raise Mismatch(f"the library draws {len(set(keys))} steps, expected {size}")
        if wrong := [key for key in keys if key not in live]:
            raise Mismatch(f"the library draws steps that may not be drawn: {wrong[:3]}")
        return list(keys)

    def _minibatch(self, buffer: Buffer, keys: list[Key], of_pass: dict[Key, Credit]) -> Minibatch:
        entries, learn = [buffer.entries[key] for key in keys], self.cfg.learn
        batch = Minibatch(self, entries, of_pass)
        if learn.adv_norm in ("minibatch", True):
            # Dividing by a spread of 1e-3 of the size gives an error of 1e-4 in float32.
            spread = batch.advantage.std(correction=0) / batch.advantage.abs().max()
            self.watch.near("a minibatch of like advantages", spread / 100)
            batch.advantage = numbers(credit.normalized(batch.advantage.tolist()))
        if not self.cfg.on_policy and learn.proximal == "decoupled":
            batch.old_log_prob = numbers([entry.proximal for entry in entries])
            self.watch.saw("the weight bound", any(e.weight > learn.weight_bound for e in entries))
            batch.weight = numbers([min(learn.weight_bound, entry.weight) for entry in entries])
        return batch

    # Losses of a minibatch with their metrics.

    def _policy_part(self, batch: Minibatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns -mean(w min(r A, clip(r) A)) - entropy_weight H; r = pi / pi_prox and w = pi_prox / mu.

        The penalised form is w r A - c KL(pi_prox || pi) (arXiv:2110.00641, section 3: no weight on the KL).
        """
        learn = self.cfg.learn
        dist = self.networks.policy(self.networks.parameters(batch.obs), batch.mask)
        log_ratio = dist.log_prob(batch.action) - batch.old_log_prob
        metrics = {}
        if learn.kl_penalty is None:
            gain = batch.weight * losses.surrogate(
                log_ratio, batch.advantage, self.clip, learn.dual_clip, self.watch
            )
        else:
            kl = self.networks.policy(batch.old, batch.mask).kl(dist)
            gain = batch.weight * log_ratio.exp() * batch.advantage - learn.kl_penalty * kl
            metrics["kl"] = kl.mean()
            self.watch.near("the clip, which is counted", (log_ratio.exp() - 1).abs() - self.clip)
        policy_loss = -(batch.importance * gain).mean()
        entropy = dist.entropy().mean()
        outside = ((log_ratio.exp() - 1).abs() > self.clip).double().mean()
        return policy_loss - self.entropy_weight * entropy, metrics | {
            "policy_loss": policy_loss,
            "entropy_loss": entropy,
            "approx_kl": losses.approx_kl(log_ratio),
            "clipfrac": outside,
        }

    def _value_part(self, batch: Minibatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns value_weight times the mean error of V, in units of the heads."""
        learn = self.cfg.learn
        value = self.networks.value(batch.obs)
        error = losses.value_error(
            value, batch.target, batch.value, self.value_clip, learn.value_loss, self.watch
        )
        value_loss = (batch.importance * error).mean()
        if self.cfg.get("priority"):
            self._renew_priorities(batch, value)
        return learn.value_weight * value_loss, {"value_loss": value_loss}

    def _both_parts(self, batch: Minibatch) -> tuple[Tensor, dict[str, Tensor]]:
        policy, policy_metrics = self._policy_part(batch)
        value, value_metrics = self._value_part(batch)
        return policy + value, policy_metrics | value_metrics | {"total_loss": policy + value}

    def _renew_priorities(self, batch: Minibatch, value: Tensor) -> None:
        """Sets the priorities of drawn steps from their advantages less what V has risen, in raw units."""
        std = self.value_scale.std if self.value_scale else 1.0
        for entry, risen in zip(batch.drawn, (value.detach() - batch.value).tolist(), strict=True):
            entry.priority = self._priority(self.raw_advantage[entry.step.key] - risen * std)

    # The auxiliary phase.

    def _remember(self, collected: dict[Key, Credit]) -> None:
        """Stores the rollout's steps and targets; steps still in a buffer get their latest target."""
        self.memory |= {step.key: (step, collected[step.key].target) for step in self.steps}
        self.remembered += 1
        if self.cfg.on_policy:
            return
        for key, entry in self.buffers.get("value", self.buffers["policy"]).entries.items():
            if key in self.memory:
                self.memory[key] = (entry.step, entry.credit.target)

    def _auxiliary_phase(self) -> None:
        """Minimises 0.5 (V_aux - R)^2 + beta_clone KL(pi_old || pi) + aux_value_weight 0.5 (V - R)^2.

        pi_old is the policy before the first of E_aux epochs (arXiv:2009.04416, eqs. 3 and 4).
        """
        learn, scale, history = self.cfg.learn, self.value_scale, []
        keys = list(self.memory)
        olds = dict(zip(keys, self.old_parameters([self.memory[key][0] for key in keys]), strict=True))
        for _ in range(learn.aux_train_epoch):
            if not self.draws.auxiliary:
                raise Mismatch("the library has fewer auxiliary epochs")
            order = self.draws.auxiliary.pop(0)
            if sorted(order) != sorted(keys):
                raise Mismatch(
                    "an auxiliary epoch of the library does not have each sample of the memory once"
                )
            for size in minibatch_sizes(len(keys), learn.aux_batch_size or learn.batch_size):
                own, order = order[:size], order[size:]
                obs, mask = self.inputs([self.memory[key][0].obs for key in own])
                raw = [self.memory[key][1] for key in own]
                target = numbers([scale.normalize(r) if scale else r for r in raw])
                old = self.networks.policy(stacked([olds[key] for key in own]), mask)
                new = self.networks.policy(self.networks.parameters(obs), mask)
                auxiliary = losses.regression(self.networks.auxiliary(obs), target, "mse").mean()
                cloning = old.kl(new).mean()
                value = losses.regression(self.networks.value(obs), target, "mse").mean()
                total = auxiliary + learn.aux_bc_weight * cloning + learn.aux_value_weight * value
                history.append(
                    {
                        "auxiliary_loss": float(auxiliary.detach()),
                        "behavioral_cloning_loss": float(cloning.detach()),
                        "aux_value_loss": float(value.detach()),
                        "aux_grad_norm": self.optimizers["auxiliary"].step(total),
                    }
                )
        self._log_means(history)
        self.watch.saw("the auxiliary phase, again", "the auxiliary phase" in self.watch.seen)
        self.watch.saw("the auxiliary phase")
        self.metrics["aux_updates"] = float(len(history))
        self.memory, self.remembered = {}, 0


def numbers(values: list[float]) -> Tensor:
    """Returns a float64 tensor."""
    return torch.tensor(values, dtype=torch.float64)


def stacked(trees: list[Any]) -> Any:
    """Returns trees of arrays, tensors or numbers as one tree of tensors (N, ...); floats are float64."""
    if isinstance(trees[0], dict):
        return {name: stacked([tree[name] for tree in trees]) for name in trees[0]}
    if isinstance(trees[0], Tensor):
        return torch.stack(trees)
    array = np.stack(trees)
    return torch.tensor(array.astype(np.float64) if array.dtype.kind == "f" else array)
