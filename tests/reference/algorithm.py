"""PPO, off-policy PPO, PPG and off-policy PPG, one iteration at a time.

    collect   updates the reward scale; computes log-probs, values, advantages and value targets
    learn     updates the value scale; the policy phase; every N_pi iterations the auxiliary phase;
              updates the observation scale

Sources: PPO arXiv:1707.06347, decoupled PPO 2110.00641, V-trace 1802.01561, PPG 2009.04416.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reference import credit, losses
from reference.buffers import Buffer, Entry, Key, minibatch_sizes
from reference.credit import Credit
from reference.intrinsic import Intrinsic
from reference.losses import Watch
from reference.networks import Networks, State
from reference.normalizers import ObservationScale, RewardScale, ValueScale
from reference.optimizer import Adam
from reference.recording import Mismatch, Step, map_tree, mask_of, vector_of

ROLLOUTS_KEPT = 4  # in a buffer whose size the config does not set


@dataclass
class Run:
    """Valid rows of one episode, which hidden states are computed along."""

    rows: list[Step]


def cut_into_runs(column: list[Step], length: int) -> None:
    """Sets the runs of the rows of one environment: they begin with an episode, and every ``length`` rows."""
    for t, step in enumerate(column):
        if not step.valid:
            continue
        begins = t % length == 0 or column[t - 1].done or not column[t - 1].valid
        step.run = Run([]) if begins else column[t - 1].run
        step.run.rows.append(step)


class Draws:
    """The minibatches of the library in one iteration, by the losses that were called with them."""

    def __init__(self, minibatches: dict[str, list[list[Key]]]) -> None:
        self.left = {name: list(keys) for name, keys in minibatches.items()}

    def take(self, names: tuple[str, ...]) -> list[Key]:
        """Returns the keys of the next minibatch, which all these losses are called with."""
        if not all(self.left[name] for name in names):
            raise Mismatch(f"the library has fewer minibatches for the losses {names}")
        first, *others = [self.left[name].pop(0) for name in names]
        if any(keys != first for keys in others):
            raise Mismatch("the library calls the losses of one minibatch with different samples")
        return first

    def finish(self) -> None:
        if any(self.left.values()):
            more = {name: len(keys) for name, keys in self.left.items()}
            raise Mismatch(f"the library has minibatches more: {more}")


class Minibatch:
    """The input of a loss, (N, ...), with values in the units of the heads."""

    def __init__(self, entries: list[Entry], of_pass: dict[Key, Credit], scale: ValueScale | None) -> None:
        self.steps = steps = [entry.step for entry in entries]
        self.action = stacked([step.action for step in steps])
        mine = [of_pass[step.key] for step in steps]
        self.value = numbers([scale.normalize(c.value) if scale else c.value for c in mine])
        self.target = numbers([scale.normalize(c.target) if scale else c.target for c in mine])
        self.advantage = numbers([c.advantage for c in mine])
        self.old_log_prob = self.proximal = numbers([step.log_prob for step in steps])
        self.weight = torch.ones(len(steps), dtype=torch.float64)  # pi_prox / mu, for the surrogate
        self.old = None if entries[0].old is None else stacked([entry.old for entry in entries])


class Reference:
    """The algorithms for one policy.

    Args:
        cfg: the section ``policy`` of a complete config.
        networks: with the initial layers.
        watch: of the corners of losses; that of the networks.
        frozen: the policy of ``kl_beta``.
        intrinsic: the layers of RND.
        ranks: the number of processes that share the environments.
    """

    def __init__(
        self,
        cfg: Any,
        networks: Networks,
        watch: Watch,
        frozen: Networks | None = None,
        intrinsic: dict[str, Any] | None = None,
        ranks: int = 1,
    ) -> None:
        self.cfg, self.networks, self.watch, self.frozen, self.ranks = cfg, networks, watch, frozen, ranks
        norm, learn = cfg.normalize, cfg.learn
        self.obs_scale = ObservationScale(norm.obs_clip, norm.obs is True) if norm.obs else None
        gamma = cfg.collect.discount_factor if norm.reward_discount is None else norm.reward_discount
        self.reward_scale = RewardScale(gamma) if norm.reward else None
        self.value_scale = ValueScale(learn.value_norm_decay) if learn.value_norm else None
        self.intrinsic = None if intrinsic is None else Intrinsic(cfg, intrinsic, watch)
        # Hidden states after the last rollout, by environment: of the policy, and of the frozen one.
        self.hidden: tuple[dict[int, State], dict[int, State]] = ({}, {})
        self.is_ppg = cfg.type.startswith("ppg")
        self.buffers = self._make_buffers()
        parameters = networks.layers.parameters
        self.optimizers = {name: self._adam(parameters) for name in (*self.buffers, "auxiliary")}
        self.memory: dict[Key, tuple[Step, float]] = {}  # of the auxiliary phase: steps and targets
        self.remembered = 0  # iterations in the memory
        self.learning_rate = cfg.learn.learning_rate  # before its schedule
        self.env_step = 0
        self.iteration = 0

    def _adam(self, parameters: dict[str, Tensor]) -> Adam:
        learn = self.cfg.learn
        return Adam(parameters, learn.adam_eps, learn.grad_clip_type, learn.grad_clip_value, self.watch)

    def _make_buffers(self) -> dict[str, Buffer]:
        """Returns one buffer, or two for PPG if E_pi and E_V differ."""
        cfg, learn = self.cfg, self.cfg.learn
        if not self.is_ppg:
            epochs = {"policy": (learn.epoch_per_collect, learn.reuse)}
        else:
            actor, critic = learn.actor_epoch_per_collect, learn.critic_epoch_per_collect
            epochs = {"policy": (actor, actor), "value": (critic, critic)}
        limits = {}
        for name, (passes, reuse) in epochs.items():
            if cfg.on_policy:
                limits[name] = (passes, 0, math.inf, math.inf)
                continue
            n_sample, own = cfg.collect.n_sample, cfg.other.replay_buffer
            updates = learn.update_per_collect or math.ceil(reuse * n_sample / learn.batch_size)
            capacity = own.replay_buffer_size or ROLLOUTS_KEPT * n_sample
            limits[name] = (own.max_use, own.max_staleness, capacity, updates)
        if len(limits) == 2 and limits["policy"] == limits["value"]:
            del limits["value"]
        return {name: Buffer(*each, self.watch) for name, each in limits.items()}

    # Networks.

    def inputs(self, observations: list[Any]) -> Tensor:
        """Returns the scaled inputs of the networks (N, D)."""
        vectors = np.stack([vector_of(obs) for obs in observations])
        if self.obs_scale is not None:
            vectors = self.obs_scale(vectors)
            self.watch.saw("the observation clip", bool((np.abs(vectors) >= self.obs_scale.clip).any()))
        return torch.tensor(vectors)

    def features(self, name: str, steps: list[Step]) -> Tensor:
        """Returns what an encoder makes of steps (N, F); hidden states are computed along their runs."""
        networks = self.networks
        if not networks.is_recurrent:
            return networks.features(name, self.inputs([step.obs for step in steps]))
        found: dict[Key, Tensor] = {}
        for step in steps:
            if step.key in found:
                continue
            rows = step.run.rows
            state = rows[0].before[name]
            for row, x in zip(
                rows, networks.features(name, self.inputs([row.obs for row in rows])), strict=True
            ):
                x, state = networks.step(name, x, state)
                if row.run is step.run:
                    found[row.key] = x
        return torch.stack([found[step.key] for step in steps])

    def value(self, steps: list[Step]) -> Tensor:
        """Returns V (N,) in units of the heads."""
        return self.networks.value(self.features(self.networks.value_encoder, steps))

    def parameters(self, steps: list[Step]) -> Any:
        """Returns the parameters (N, ...) of the distributions."""
        return self.networks.parameters(self.features("actor", steps))

    def policy(self, steps: list[Step], parameters: Any) -> Any:
        """Returns the distributions with these parameters, and the masks of steps."""
        masks = [mask_of(step.obs) for step in steps]
        return self.networks.policy(parameters, None if masks[0] is None else stacked(masks))

    def raw(self, values: Tensor) -> list[float]:
        """Returns values in raw units."""
        scale = self.value_scale
        return [scale.denormalize(v) for v in values.tolist()] if scale else values.tolist()

    @torch.no_grad()
    def values_after(self, steps: list[Step]) -> list[float]:
        """Returns V of the observations that followed steps, in raw units."""
        name, networks = self.networks.value_encoder, self.networks
        x = networks.features(name, self.inputs([step.next_obs for step in steps]))
        if networks.is_recurrent:
            pairs = zip(x, steps, strict=True)
            x = torch.stack([networks.step(name, each, step.after[name])[0] for each, step in pairs])
        return self.raw(networks.value(x))

    @torch.no_grad()
    def log_probs(self, steps: list[Step]) -> list[float]:
        """Returns log pi(a|s) under the newest policy."""
        dist = self.policy(steps, self.parameters(steps))
        return dist.log_prob(stacked([step.action for step in steps])).tolist()

    @torch.no_grad()
    def old_parameters(self, steps: list[Step]) -> list[Any]:
        """Returns the parameters of the newest policy's distributions, one tree per step."""
        parameters = self.parameters(steps)
        return [map_tree(lambda leaf, k=k: leaf[k].clone(), parameters) for k in range(len(steps))]

    # Credit.

    def warm_up(self, observations: list[Any]) -> None:
        """Adds the observations of random steps before training to the observation scales."""
        scales = [self.obs_scale, None if self.intrinsic is None else self.intrinsic.obs_scale]
        for scale in scales:
            if scale is not None:
                scale.take_in([vector_of(obs) for obs in observations])

    def collect(self, columns: list[list[Step]], last_obs: list[Any]) -> dict[Key, Credit]:
        """Adds a rollout and returns its credit.

        Args:
            columns: the rows of each environment.
            last_obs: of each environment, after the last row.
        """
        self.columns = columns
        for column, obs in zip(columns, last_obs, strict=True):
            for step in reversed(column):
                step.following, obs = obs, step.obs if step.valid else obs
        if self.reward_scale is not None:
            self.reward_scale.take_in(columns, lambda step: step.reward)
        length = self.cfg.collect.unroll_len
        length = length if length > 1 else len(columns[0])
        self.segments = [
            column[start : start + length]
            for start in range(0, len(columns[0]), length)
            for column in columns
        ]
        self.steps = [step for segment in self.segments for step in segment if step.valid]
        if self.networks.is_recurrent:
            for step, before, after, _ in self._along(self.networks, self.hidden[0], self.inputs):
                step.before, step.after = before, after
            for column in columns:
                cut_into_runs(column, self.cfg.learn.sequence_length)
        if self.frozen is not None:
            self._ask_frozen()
        if self.intrinsic is not None:
            self.intrinsic.reward(columns)
        for step, log_prob in zip(self.steps, self.log_probs(self.steps), strict=True):
            step.log_prob = log_prob
        return self.credit(self.segments, {})

    @torch.no_grad()
    def _along(self, networks: Networks, hidden: dict[int, State], inputs: Any) -> Iterator[Any]:
        """Yields valid steps in their order, hidden states before and after, and features of the policy.

        An episode begins with zeros; ``hidden`` has the states of open episodes.
        """
        for env, column in enumerate(self.columns):
            state = hidden.get(env, networks.initial_state())
            for step in column:
                if not step.valid:
                    continue
                found = {
                    name: networks.step(name, networks.features(name, inputs([step.obs]))[0], state[name])
                    for name in networks.encoders
                }
                after = {name: each[1] for name, each in found.items()}
                yield step, state, after, found["actor"][0]
                state = networks.initial_state() if step.done else after
            self.watch.saw("a hidden state of an open episode", state["actor"][0][0].any())
            hidden[env] = state

    @torch.no_grad()
    def _ask_frozen(self) -> None:
        """Sets the distributions of the policy of ``kl_beta``, which sees the same observations."""

        def inputs(observations: list[Any]) -> Tensor:
            return torch.tensor(np.stack([vector_of(obs) for obs in observations]))

        if self.frozen.is_recurrent:
            pairs = [(step, x) for step, _, _, x in self._along(self.frozen, self.hidden[1], inputs)]
        else:
            features = self.frozen.features("actor", inputs([step.obs for step in self.steps]))
            pairs = list(zip(self.steps, features, strict=True))
        for step, x in pairs:
            step.reference = map_tree(lambda leaf: leaf[0], self.frozen.parameters(x[None]))

    @torch.no_grad()
    def credit(self, segments: list[list[Step]], ratio: dict[Key, float]) -> dict[Key, Credit]:
        """Returns the credit of valid steps from the newest value network and the current scales.

        Args:
            segments: rows of one environment each, the oldest first.
            ratio: pi_prox / mu of each step, for V-trace; a missing entry is 1.
        """
        cfg, collect = self.cfg, self.cfg.collect
        steps = [step for segment in segments for step in segment if step.valid]
        value = dict(zip([step.key for step in steps], self.raw(self.value(steps)), strict=True))
        next_value, ends = {}, []
        for segment in segments:
            for step, after in zip(segment, [*segment[1:], None], strict=True):
                if step.valid and (step.done or after is None):
                    ends.append(step)
                elif step.valid:
                    next_value[step.key] = value[after.key]
        next_value |= zip([step.key for step in ends], self.values_after(ends), strict=True)
        reward = {step.key: self._training_reward(step.reward) for step in steps}
        gamma = collect.discount_factor
        found: dict[Key, Credit] = {}
        for segment in segments:
            own = credit.assign(
                segment, value, next_value, reward, ratio, gamma=gamma, gae_lambda=collect.gae_lambda
            )
            if cfg.nstep_return:
                for t, step in enumerate(segment):
                    if step.valid:
                        own[step.key].target = credit.nstep_target(
                            segment, t, next_value, reward, gamma=gamma, nstep=cfg.nstep
                        )
            found |= own
        if self.intrinsic is not None:  # A = w_E A_E + w_I A_I
            for key, own in self.intrinsic.credit(segments, ratio).items():
                extrinsic = cfg.intrinsic.extrinsic_weight * found[key].advantage
                found[key].advantage = extrinsic + cfg.intrinsic.weight * own.advantage
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
            if not self.value_scale.std:  # no V has been predicted: V_old = R restrains nothing
                collected = {key: replace(c, value=c.target) for key, c in collected.items()}
            self.value_scale.take_in(targets, self.networks.value_heads)
        self._apply_schedules()
        self._push(collected)
        if "value" in self.buffers:  # the value's epochs come first
            self._train("value", ("value",))
            self._train("policy", ("policy",), values_moved=True)
        else:
            model = self.cfg.model
            are_tied = model.get("share_encoder") or model.get("arch") == "shared"
            self._train("policy", ("policy", "value"), after_target_kl=None if are_tied else ("value",))
        if self.is_ppg and self.cfg.learn.aux_train_epoch:
            self._remember(collected)
            if self.remembered == self.cfg.learn.aux_freq:
                self._auxiliary_phase()
        for buffer in self.buffers.values():
            buffer.end_iteration()
        if self.intrinsic is not None:
            self.metrics |= self.intrinsic.learn(self.columns)
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
            final = learn.lr_final if name == "lr" else 0.0
            return losses.schedule(learn[f"{name}_schedule"], share, final)

        for optimizer in self.optimizers.values():
            optimizer.learning_rate = self.learning_rate * factor("lr")
        if self.is_ppg and learn.aux_learning_rate is not None:
            self.optimizers["auxiliary"].learning_rate = learn.aux_learning_rate * factor("lr")
        self.clip = learn.clip_ratio * factor("clip")
        self.value_clip = None if learn.value_clip is None else learn.value_clip * factor("clip")
        self.entropy_weight = learn.entropy_weight * factor("entropy")
        self.metrics |= {"cur_lr": self.optimizers["policy"].learning_rate, "clip_ratio": self.clip}

    def _adapt_learning_rate(self, kl: float) -> None:
        """Divides the learning rate by 1.5 if the KL of a pass is above 2 desired_kl; the reverse below 1/2.

        (arXiv:2109.11978, appendix.) It stays within 1e-5 .. 1e-2.
        """
        for bound in (1e-7 / self.cfg.learn.desired_kl, 0.5, 2.0):  # below 1e-7 it is rounding
            self.watch.near("desired_kl", kl / self.cfg.learn.desired_kl - bound)
        if kl > 2 * self.cfg.learn.desired_kl:
            self.learning_rate = max(1e-5, self.learning_rate / 1.5)
        elif 1e-7 < kl < self.cfg.learn.desired_kl / 2:
            self.learning_rate = min(1e-2, self.learning_rate * 1.5)
        self.watch.saw("another learning rate", self.learning_rate != self.cfg.learn.learning_rate)
        at_start = self.metrics["cur_lr"]
        self._apply_schedules()
        self.metrics["cur_lr"] = at_start

    def _push(self, collected: dict[Key, Credit]) -> None:
        """Adds the rollout to the buffers, and sets pi_prox to the current policy.

        For fresh steps the log-probs of pi_prox are those of the collection.
        """
        for buffer in self.buffers.values():
            entries = [Entry(step, collected[step.key]) for step in self.steps]
            buffer.push(self.segments, entries)
            kept = list(buffer.entries.values())
            now = self.log_probs([entry.step for entry in kept])
            for entry, log_prob in zip(kept, now, strict=True):
                entry.proximal = log_prob if buffer.age(entry) else entry.step.log_prob

    def _train(
        self,
        name: str,
        parts: tuple[str, ...],
        *,
        after_target_kl: tuple[str, ...] | None = None,
        values_moved: bool = False,
    ) -> None:
        """Takes the optimiser steps of one buffer.

        Args:
            name: of the buffer, and of its optimiser.
            parts: of the loss: "policy", "value".
            after_target_kl: replaces ``parts`` once the KL exceeds 1.5 target_kl; None ends the passes.
            values_moved: whether the value network was trained in this iteration already.
        """
        cfg, buffer, target_kl = self.cfg, self.buffers[name], self.cfg.learn.target_kl
        left, first, stopped, epochs, history = buffer.updates, True, False, 0, []
        while left > 0 and (live := buffer.live()):
            renews = not first or values_moved or not buffer.is_fresh
            of_pass = {key: entry.credit for key, entry in buffer.entries.items()}
            if renews and (cfg.recompute_adv or cfg.nstep_return):
                of_pass = self._renewed(buffer)
            of_pass = self._with_batch_norm(of_pass, live)
            metrics = []
            for keys in self._minibatches(parts, live, cfg.learn.batch_size, left):
                for key in keys:
                    buffer.entries[key].uses += 1
                metrics.append(self._one_step(name, parts, self._minibatch(buffer, keys, of_pass)))
            left -= len(metrics)
            first = False
            history += metrics
            epochs += not stopped
            kls = [each["approx_kl"] for each in metrics if "approx_kl" in each]
            if cfg.learn.lr_schedule == "adaptive" and kls:
                self._adapt_learning_rate(sum(kls) / len(kls))
            if target_kl is not None and kls:
                self.watch.near("target_kl", sum(kls) / len(kls) / target_kl - 1.5)
                stopped = sum(kls) / len(kls) > 1.5 * target_kl
                self.watch.saw("target_kl", stopped)
            if stopped and after_target_kl is None:
                break
            parts = after_target_kl if stopped else parts
        else:  # no break
            if math.isfinite(left):
                self.watch.saw("too little to draw", left > 0)
                prefix = "buffer" if len(self.buffers) == 1 else f"{name}_buffer"
                self.metrics[f"{prefix}_missing_updates"] = float(left)
        self._log_means(history)
        self.metrics["epochs"] = float(epochs)
        self.metrics["updates"] = self.metrics.get("updates", 0.0) + len(history)

    def _minibatches(
        self, losses: tuple[str, ...], keys: Iterable[Key], batch_size: int, left: float = math.inf
    ) -> Iterator[list[Key]]:
        """Yields one pass over samples: each once, in the library's order, or fewer if few updates are left.

        With hidden states minibatches have whole runs, of about ``batch_size`` samples; several ranks agree
        on the number of minibatches.
        """
        waiting, sizes = set(keys), minibatch_sizes(len(set(keys)), batch_size)
        has_sizes = not self.networks.is_recurrent and self.ranks == 1
        while waiting and left > 0:
            own = self.draws.take(losses)
            if len(set(own)) < len(own) or not waiting.issuperset(own):
                raise Mismatch(f"a minibatch of the library has samples that may not be drawn: {own}")
            if has_sizes and len(own) != sizes.pop(0):
                raise Mismatch(f"a minibatch of the library has {len(own)} samples")
            self.watch.saw("a sample alone joins a minibatch", has_sizes and len(own) == batch_size + 1)
            waiting -= set(own)
            left -= 1
            yield own
        self.watch.saw("the last pass is cut short", bool(waiting))

    def _log_means(self, history: list[dict[str, float]]) -> None:
        """Sets each metric to its mean over the steps that have it."""
        for name in sorted({name for metrics in history for name in metrics}):
            values = [metrics[name] for metrics in history if name in metrics]
            self.metrics[name] = sum(values) / len(values)

    def _one_step(self, name: str, parts: tuple[str, ...], batch: Minibatch) -> dict[str, float]:
        terms, tensors = [], {}
        for part in parts:
            term, metrics = {"policy": self._policy_part, "value": self._value_part}[part](batch)
            terms.append(term)
            tensors |= metrics
        if len(parts) == 2:
            tensors["total_loss"] = sum(terms)
        norm = self.optimizers[name].step(sum(terms))
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

    def _minibatch(self, buffer: Buffer, keys: list[Key], of_pass: dict[Key, Credit]) -> Minibatch:
        entries, learn = [buffer.entries[key] for key in keys], self.cfg.learn
        batch = Minibatch(entries, of_pass, self.value_scale)
        if learn.adv_norm == "minibatch":
            # Dividing by a spread of 1e-3 of the size gives an error of 1e-4 in float32.
            spread = batch.advantage.std(correction=0) / batch.advantage.abs().max()
            self.watch.near("a minibatch of like advantages", spread / 100)
            batch.advantage = numbers(credit.normalized(batch.advantage.tolist()))
        if not self.cfg.on_policy:
            batch.proximal = numbers([entry.proximal for entry in entries])
        if not self.cfg.on_policy and learn.proximal == "decoupled":
            batch.old_log_prob = batch.proximal
            self.watch.saw("the weight bound", any(e.weight > learn.weight_bound for e in entries))
            batch.weight = numbers([min(learn.weight_bound, entry.weight) for entry in entries])
        return batch

    # Losses of a minibatch with their metrics.

    def _policy_part(self, batch: Minibatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns -mean(w min(r A, clip(r) A)) - entropy_weight H; r = pi / pi_prox and w = pi_prox / mu."""
        learn = self.cfg.learn
        dist = self.policy(batch.steps, self.parameters(batch.steps))
        log_prob = dist.log_prob(batch.action)
        log_ratio = log_prob - batch.old_log_prob
        gain = losses.surrogate(log_ratio, batch.advantage, self.clip, learn.dual_clip, self.watch)
        policy_loss = -(batch.weight * gain).mean()
        entropy = dist.entropy().mean()
        outside = ((log_ratio.exp() - 1).abs() > self.clip).double().mean()
        metrics = {
            "policy_loss": policy_loss,
            "entropy_loss": entropy,
            "approx_kl": losses.approx_kl(log_prob - batch.proximal),
            "clipfrac": outside,
        }
        loss = policy_loss - self.entropy_weight * entropy
        if self.frozen is None:
            return loss, metrics
        # kl_beta KL(pi || pi_ref); estimates are weighed by r w = pi / mu.
        frozen = self.policy(batch.steps, stacked([step.reference for step in batch.steps]))
        if learn.kl_type == "exact":
            kl = dist.kl(frozen)
        else:
            of_action = frozen.log_prob(batch.action)
            kl = batch.weight * losses.reference_kl(log_prob, of_action, batch.old_log_prob, learn.kl_type)
        self.watch.saw(f"kl_type={learn.kl_type}")
        return loss + learn.kl_beta * kl.mean(), metrics | {"reference_kl": kl.mean()}

    def _value_part(self, batch: Minibatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the weighted mean error of V, which is in units of the heads."""
        learn = self.cfg.learn
        error = losses.value_error(
            self.value(batch.steps), batch.target, batch.value, self.value_clip, learn.value_loss, self.watch
        )
        std = learn.value_norm_std if self.value_scale else 1.0  # of the targets in the weighted loss
        return learn.value_weight * std**2 * error.mean(), {"value_loss": error.mean()}

    # The auxiliary phase.

    def _remember(self, collected: dict[Key, Credit]) -> None:
        """Stores the rollout's steps and targets, as they were collected."""
        self.memory |= {step.key: (step, collected[step.key].target) for step in self.steps}
        self.remembered += 1

    def _auxiliary_phase(self) -> None:
        """Minimises 0.5 (V_aux - R)^2 + beta_clone KL(pi_old || pi) + aux_value_weight 0.5 (V - R)^2.

        pi_old is the policy before the first of E_aux epochs (arXiv:2009.04416, eqs. 3 and 4).
        """
        learn, scale, history = self.cfg.learn, self.value_scale, []
        keys = list(self.memory)
        olds = dict(zip(keys, self.old_parameters([self.memory[key][0] for key in keys]), strict=True))
        for _ in range(learn.aux_train_epoch):
            for own in self._minibatches(("auxiliary",), keys, learn.aux_batch_size or learn.batch_size):
                steps = [self.memory[key][0] for key in own]
                raw = [self.memory[key][1] for key in own]
                target = numbers([scale.normalize(r) if scale else r for r in raw])
                features = self.features("actor", steps)
                old = self.policy(steps, stacked([olds[key] for key in own]))
                new = self.policy(steps, self.networks.parameters(features))
                auxiliary = losses.regression(self.networks.auxiliary(features), target, "mse").mean()
                cloning = old.kl(new).mean()
                value = losses.regression(self.value(steps), target, "mse").mean()
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
