"""ding_lite as shipped, on each task."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from ding_lite import PPOPolicy, SerialPipeline
from ding_lite.errors import EnvError
from ding_lite.rl.losses import approx_kl, weighted_mean
from ding_lite.run.resources import keep_freed_memory
from systems import Done, Skipped, Work


class PenalizedPPO(PPOPolicy):
    """PPO with a loss of the user: the quadratic penalty of SPO (arXiv:2401.16025) in place of the clip."""

    def policy_loss(self, batch: Any) -> Any:
        log_ratio = batch.dist.log_prob(batch.action) - batch.log_prob
        ratio, advantage = torch.exp(log_ratio), batch.advantage
        gain = ratio * advantage - advantage.abs() * (ratio - 1).square() / 0.4
        loss, entropy = -weighted_mean(gain, batch.policy_weight), batch.dist.entropy().mean()
        metrics = {"policy_loss": loss, "entropy_loss": entropy, "approx_kl": approx_kl(log_ratio)}
        return loss - self.entropy_weight * entropy, metrics


SHORT_EVALUATION = dict(n_evaluator_episode=1, evaluator_env_num=1, max_eval_steps=1)
# Settings of a task beside the numbers that every system receives.
NATURE_CNN = dict(share_encoder=True, encoder=dict(type="nature_cnn"), encoder_hidden_size_list=[512])
OWN: dict[str, dict[str, Any]] = {
    "breakout": dict(
        env=dict(wrappers=["atari"], manager=dict(type="subprocess", double_buffer=True)),
        model=NATURE_CNN,
        learn=dict(clip_ratio=0.1),
    ),
    "envpool_breakout": dict(
        env=dict(manager=dict(type="env_pool"), kwargs=dict(episodic_life=True, reward_clip=True)),
        model=NATURE_CNN,
        learn=dict(clip_ratio=0.1),
    ),
    "procgen_ppg": dict(
        env=dict(manager=dict(type="env_pool")),
        model=dict(arch="detach", encoder=dict(type="impala_cnn")),
        learn=dict(adam_eps=1e-8),
        policy=dict(type="ppg", normalize=dict(reward=True, reward_clip=10.0)),
    ),
    "slow_humanoid_512": dict(env=dict(kwargs=dict(frame_skip=25))),
}
OWN["envpool_bigfish"] = {**OWN["procgen_ppg"], "model": {**OWN["procgen_ppg"]["model"], "arch": "dual"}}


def train(
    work: Work,
    steps: int,
    *,
    compiled: bool = False,
    every: int = 0,
    dtype: str = "float32",
    cuda_graph: bool = True,
    own_loss: bool = False,
) -> Done:
    """Trains; with ``every`` also evaluates and saves after each so many steps."""
    config = _config(work, steps, every)
    policy = config["policy"]
    policy["learn"]["compile"] = compiled
    policy["cuda_graph"] = cuda_graph
    if own_loss:
        policy["type"] = PenalizedPPO
    if dtype != "float32":
        policy["model"] = {**policy["model"], "encoder_dtype": dtype}
    pipeline = _pipeline(config)
    auxiliary = 0
    for progress in pipeline:
        auxiliary += int(progress.metrics.get("learn/aux_updates", 0))
    return Done(
        pipeline.progress.env_step,
        pipeline.progress.train_iter + auxiliary,
        sum(p.numel() for p in pipeline.policy.model.parameters()),
    )


def collect(work: Work, steps: int) -> Done:
    """Collects rollouts with their advantages, without learning."""
    pipeline = _pipeline(_config(work, steps))
    env_steps = 0
    while env_steps < steps:
        env_steps += int(pipeline.collector.collect().valid.sum())
    pipeline.close()
    return Done(env_steps)


def _pipeline(config: dict[str, Any]) -> SerialPipeline:
    parent = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    try:
        keep_freed_memory()  # as on the command line
        return SerialPipeline(config, folder=parent / "run")
    except EnvError as error:
        raise Skipped(str(error)) from error


def _config(work: Work, steps: int, every: int = 0) -> dict[str, Any]:
    own = OWN.get(work.name, {})
    env = dict(env_id=work.env_id, collector_env_num=work.envs) | own.get("env", {})
    return dict(
        max_env_step=steps,
        num_threads=work.threads,
        env=env if every else env | SHORT_EVALUATION,
        policy=dict(
            recompute_adv=False,
            model=own.get("model") or _model(work),
            learn=dict(value_norm=False) | own.get("learn", {}) | _learn(work, "policy" in own),
            collect=dict(n_sample=work.samples),
            eval=dict(eval_freq=every),
            **own.get("policy", {}),
        ),
        checkpoint=dict(freq=every),
    )


def _model(work: Work) -> dict[str, Any]:
    if not work.lstm:
        return dict(encoder_hidden_size_list=list(work.hidden))
    heads = {f"{head}_head_hidden_size_list": list(work.hidden) for head in ("actor", "critic")}
    return dict(rnn="lstm", rnn_hidden_size=work.lstm, encoder_hidden_size_list=[], **heads)


def _learn(work: Work, phasic: bool) -> dict[str, Any]:
    """Returns ``policy.learn`` without the task's own settings."""
    learn: dict[str, Any] = dict(learning_rate=work.learning_rate, batch_size=work.batch or work.samples)
    if work.lstm:
        learn["sequence_length"] = work.rollout
    if not work.epochs:
        return learn
    if not phasic:
        return learn | dict(epoch_per_collect=work.epochs)
    epochs = {f"{network}_epoch_per_collect": work.epochs for network in ("actor", "critic")}
    auxiliary = dict(aux_freq=work.aux_freq, aux_train_epoch=work.aux_epochs, aux_batch_size=work.aux_batch)
    return learn | epochs | auxiliary
