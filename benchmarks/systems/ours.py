"""ding_lite as shipped."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ding_lite import PPOPolicy, SerialPipeline
from ding_lite.config.compile import compile_config, parse_overrides
from ding_lite.errors import EnvError
from ding_lite.rl.losses import approx_kl, weighted_mean
from ding_lite.run.resources import keep_freed_memory
from systems import HIDDEN, Done, Skipped, Work


class PenalizedPPO(PPOPolicy):
    """PPO with a loss of the user: the quadratic penalty of SPO (arXiv:2401.16025) in place of the clip."""

    def policy_loss(self, batch: Any) -> Any:
        log_ratio = batch.dist.log_prob(batch.action) - batch.log_prob
        ratio, advantage = torch.exp(log_ratio), batch.advantage
        gain = ratio * advantage - advantage.abs() * (ratio - 1).square() / 0.4
        loss, entropy = -weighted_mean(gain, batch.policy_weight), batch.dist.entropy().mean()
        metrics = {"policy_loss": loss, "entropy_loss": entropy, "approx_kl": approx_kl(log_ratio)}
        return loss - self.entropy_weight * entropy, metrics


def train(work: Work, steps: int) -> Done:
    """Trains."""
    pipeline = _pipeline(work, steps)
    auxiliary = sum(int(progress.metrics.get("learn/aux_updates", 0)) for progress in pipeline)
    return Done(
        pipeline.progress.env_step,
        pipeline.progress.train_iter + auxiliary,
        sum(p.numel() for p in pipeline.policy.model.parameters()),
    )


def collect(work: Work, steps: int) -> Done:
    """Collects rollouts with their advantages, without learning."""
    pipeline = _pipeline(work, steps)
    env_steps = 0
    while env_steps < steps:
        env_steps += int(pipeline.collector.collect().valid.sum())
    pipeline.close()
    return Done(env_steps)


def environments(work: Work, steps: int) -> Done:
    """Steps EnvPool's environments alone, with random actions; a step after an end resets, and is none."""
    import envpool

    envs = envpool.make_gymnasium(work.env_id, num_envs=work.envs, seed=0)
    actions = np.random.default_rng(0).integers(envs.single_action_space.n, size=(64, work.envs))
    count, ended = 0, np.zeros(work.envs, bool)
    envs.reset()
    while count < steps:
        for action in actions:
            _, _, terminated, truncated, _ = envs.step(action)
            count += int((~ended).sum())
            ended = (terminated | truncated) & ~ended
    return Done(count)


def _pipeline(work: Work, steps: int) -> SerialPipeline:
    """Returns a training without evaluations; the one at the end is as short as can be."""
    env = dict(n_evaluator_episode=1, evaluator_env_num=1, max_eval_steps=1)
    config = dict(
        max_env_step=steps,
        num_threads=work.threads,
        env=dict(env_id=work.env_id, collector_env_num=work.envs, **env),
        policy=dict(
            recompute_adv=False,
            model=_model(work),
            learn=dict(value_norm=False, **_learn(work)),
            collect=dict(n_sample=work.samples),
            eval=dict(eval_freq=0),
        ),
        checkpoint=dict(freq=0),
    )
    parent = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    compiled = compile_config(config, parse_overrides(work.keys.split()))
    try:
        keep_freed_memory()  # as on the command line
        return SerialPipeline(compiled, folder=parent / "run")
    except EnvError as error:
        raise Skipped(str(error)) from error


def _model(work: Work) -> dict[str, Any]:
    if not work.lstm:
        return dict(encoder_hidden_size_list=HIDDEN)
    heads = {f"{head}_head_hidden_size_list": HIDDEN for head in ("actor", "critic")}
    return dict(rnn="lstm", rnn_hidden_size=work.lstm, encoder_hidden_size_list=[], **heads)


def _learn(work: Work) -> dict[str, Any]:
    learn: dict[str, Any] = dict(learning_rate=work.learning_rate, batch_size=work.batch or work.samples)
    if work.lstm:
        learn["sequence_length"] = work.rollout
    if work.aux_freq:
        epochs = {f"{network}_epoch_per_collect": work.epochs for network in ("actor", "critic")}
        auxiliary = dict(
            aux_freq=work.aux_freq, aux_train_epoch=work.aux_epochs, aux_batch_size=work.aux_batch
        )
        return learn | epochs | auxiliary
    return learn | (dict(epoch_per_collect=work.epochs) if work.epochs else {})
