"""Phasic Policy Gradient (arXiv:2009.04416): PPO with an auxiliary phase every N_pi iterations.

    policy phase      each iteration: if E_V = E_pi or update_per_collect is set, one loop with one Adam over
                      the sum of PPO's losses; else E_V epochs of its value loss, then E_pi of its policy
                      loss, with an Adam each, in the order of the authors' code; with recompute_adv
                      the policy's advantages are of the values after these epochs
    auxiliary phase   every N_pi iterations: E_aux epochs over all their samples

The paper's names, and the config's:

    N_pi   aux_freq          E_pi        actor_epoch_per_collect
    E_aux  aux_train_epoch   E_V         critic_epoch_per_collect
                             beta_clone  aux_bc_weight

In the auxiliary phase pi_old is the policy at the start of the phase, and R the targets at collection, on- or
off-policy. The KL has no unit, but errors of returns have the unit of squared returns. So errors are in
normalised units (value_norm): with returns of 100 they would outweigh the KL.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ding_lite.config.registry import POLICY_REGISTRY
from ding_lite.data.rollout import Rollout
from ding_lite.data.samples import Batch, Samples, Store
from ding_lite.errors import ContractError
from ding_lite.fast.gradients import Objective, checked, outputs_of
from ding_lite.models.actor_critic import PhasicActorCritic
from ding_lite.policies.keys import PPG
from ding_lite.policies.optimizer import mean_metrics
from ding_lite.policies.ppo import PPOPolicy
from ding_lite.rl import losses
from ding_lite.rl.returns import explained_variance
from ding_lite.trees import map_tree

AUXILIARY_READS = ("actor", "auxiliary", "critic")  # outputs of the model that the auxiliary loss reads
MEASURED = 1024  # approximate number of samples that measure an auxiliary phase


@POLICY_REGISTRY.register("ppg")
class PPGPolicy(PPOPolicy):
    """PPG on fresh rollouts, or off-policy, for every action space.

    A custom policy may also override :meth:`auxiliary_loss`, such as for a further head of its model.

    Attributes:
        auxiliary_fields: names of further fields of the rollout that ``auxiliary_loss`` reads, such as
            ``("reward",)``. The store saves them.
    """

    auxiliary_fields: tuple[str, ...] = ()

    config = PPG

    def _init_learn(self) -> None:
        learn = self.cfg.learn
        if not isinstance(self.model, PhasicActorCritic):
            raise ContractError(
                f"policy.model: {type(self.model).__name__} has no auxiliary value head; PPG needs a "
                "subclass of ding_lite.models.PhasicActorCritic, such as 'ppg'"
            )
        actor, critic = learn.actor_epoch_per_collect, learn.critic_epoch_per_collect
        self.has_one_loop = actor == critic or learn.update_per_collect is not None
        super()._init_learn()
        self.uses = actor
        if self.has_one_loop:
            self.say("policy and value: one loop, one Adam")
        else:
            self.say(f"policy and value: a loop and an Adam each, E_pi {actor} and E_V {critic} epochs")
            self.value_replay = self.keep("value_replay", self.make_replay())
            self.value_optimizer = self.keep("value_optimizer", self.make_optimizer())
        if learn.aux_train_epoch:
            self.aux_order = self.own_generator("auxiliary")
            self.aux_optimizer = self.keep("aux_optimizer", self.make_optimizer(learn.aux_batch_size))
            self.store = self.keep("store", Store())
            samples = learn.aux_freq * self.cfg.collect.n_sample
            self.say(f"auxiliary phase: an Adam, every {learn.aux_freq} iterations about {samples:,} samples")
            if not (learn.value_norm or self.cfg.normalize.reward):
                self.say(
                    "WARNING: the errors of unscaled values may outweigh the KL that keeps the policy near "
                    "pi_old; set policy.learn.value_norm=True, or policy.normalize.reward=True (the paper's)"
                )

    # -- One iteration

    def improve(self, rollout: Rollout) -> dict[str, float]:
        learn, log = self.cfg.learn, self.policy_phase(rollout)
        log["policy_adv_abs_max"] = float(rollout.advantage[rollout.valid].abs().max())
        if not learn.aux_train_epoch or self.schedules.iteration < learn.critic_warmup:
            return log
        fields = {name: rollout[name] for name in ("obs", "value_target", *self.auxiliary_fields)}
        samples = Samples.of(rollout, rollout.valid, fields, self.recurrence)
        self.store.append(samples, planned=learn.aux_freq * rollout.valid.numel())
        log["aux_memory"] = float(self.store.size)
        if self.store.iterations >= learn.aux_freq:
            self.timer("auxiliary")
            log |= self.auxiliary_phase()
            self.timer("updates")
        return log

    def policy_phase(self, rollout: Rollout) -> dict[str, float]:
        """Takes E_V epochs of the value, then E_pi of the policy; or both in one loop."""
        if self.has_one_loop:
            return super().improve(rollout)
        self.begin_replay(rollout, self.replay, self.value_replay)
        passes = self.passes(self.value_replay, self.cfg.learn.critic_epoch_per_collect)
        of_value, of_policy = (self.objective._replace(reads=(output,)) for output in ("critic", "actor"))
        value = self.take_steps(passes, self.value_optimizer, of_value)
        passes = self.passes(self.replay, self.uses, credit_is_old=True)
        policy = self.take_steps(passes, self.optimizer, of_policy)
        log = {**value, **policy, "updates": value["updates"] + policy["updates"]}
        log["value_grad_norm"] = value["grad_norm"]
        for name, replay in (("policy_buffer", self.replay), ("value_buffer", self.value_replay)):
            replay.end_iteration()
            log |= {f"{name}_{key}": value for key, value in replay.log.items()}
        return log

    def auxiliary_phase(self) -> dict[str, float]:
        """Takes E_aux epochs over all samples since the last phase, and drops them. Returns metrics."""
        learn, history = self.cfg.learn, []
        size = learn.aux_batch_size or learn.batch_size
        rate = (learn.aux_learning_rate or self.learning_rate) * self.schedules.factor("lr")
        samples = self.store.samples()  # with raw observations
        samples.inputs, samples.device = self.scaled, self.device
        samples.fields["old_logit"] = map_tree(Tensor.cpu, self.in_chunks(self.network("actor"), samples))
        samples.fields["value_target"] = self.value_norm.normalize(samples.fields["value_target"])
        before = self.measured(samples.some(MEASURED))
        gradient_of = self.aux_optimizer.gradient_of(self.auxiliary_objective)
        for _ in range(learn.aux_train_epoch):
            epoch = samples.minibatches(size, self.aux_order, ranks=self.ranks)
            history += self.aux_optimizer.steps(gradient_of, epoch.batches, rate)
        after = self.measured(samples.some(MEASURED))
        self.store.forget()
        log = mean_metrics(history)
        log["aux_grad_norm"] = log.pop("grad_norm")
        return log | {
            "aux_kl": after[0],
            "aux_explained_variance_before": before[1],
            "aux_explained_variance": after[1],
            "value_explained_variance": after[2],
            "aux_updates": float(len(history)),
            "aux_cur_lr": rate,
        }

    @torch.no_grad()
    def measured(self, batch: Batch) -> list[float]:
        """Returns KL(pi_old || pi), and the explained variances of the auxiliary head and of the value."""
        outputs = outputs_of(self.model, AUXILIARY_READS, batch.obs)
        old, new = (self.distribution(batch.obs, logit) for logit in (batch.old_logit, outputs["actor"]))
        variances = [
            explained_variance(outputs[name], batch.value_target) for name in ("auxiliary", "critic")
        ]
        return torch.stack([old.kl(new).mean(), *variances]).tolist()

    # -- Losses

    def auxiliary_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss of the auxiliary phase and its terms: eqs. 3 and 4 of the paper, in one sum.

            L = L_aux + beta_clone KL(pi_old || pi) + aux_value_weight L_V
            L_aux = 0.5 mean((V_aux - R)^2),   L_V = 0.5 mean((V - R)^2)

        No term is clipped. A subclass may add terms.

        Shapes:
            ``batch.obs``: (N, ...), scaled; ``dist``, ``auxiliary``, ``new_value``: fresh outputs;
            ``old_logit``: of pi_old; ``value_target``: (N,), normalised under value_norm; and the
            ``auxiliary_fields``
        """
        learn = self.cfg.learn
        terms = {
            "auxiliary_loss": losses.value_error(batch.auxiliary, batch.value_target).mean(),
            "behavioral_cloning_loss": self.distribution(batch.obs, batch.old_logit).kl(batch.dist).mean(),
            "aux_value_loss": losses.value_error(batch.new_value, batch.value_target).mean(),
        }
        of_auxiliary, of_kl, of_value = terms.values()
        return of_auxiliary + learn.aux_bc_weight * of_kl + learn.aux_value_weight * of_value, terms

    @property
    def auxiliary_objective(self) -> Objective:
        loss = self.checked_auxiliary_loss
        return Objective(loss, AUXILIARY_READS, self.with_outputs, name="the auxiliary loss")

    def checked_auxiliary_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return checked(self.auxiliary_loss(batch), self, "auxiliary_loss")


@POLICY_REGISTRY.register("ppg_offpolicy")
class PPGOffPolicy(PPGPolicy):
    """PPG whose policy phase draws from replay buffers: the same code with other defaults."""

    config: dict[str, Any] = dict(on_policy=False, learn=dict(aux_freq=16))
