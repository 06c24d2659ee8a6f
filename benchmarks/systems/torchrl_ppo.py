"""TorchRL's PPO in the manner of its own implementations: collector, GAE, replay buffer, ClipPPOLoss."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import DoubleToFloat, EnvBase, SerialEnv, TransformedEnv
from torchrl.envs.libs.gym import GymEnv
from torchrl.modules import MLP, IndependentNormal, OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value.advantages import GAE

from systems import Done, UpdateCounter, Work


def train(work: Work, steps: int) -> Done:
    """Trains on vectors, with discrete actions or a Box."""
    warnings.simplefilter("ignore")
    updates = UpdateCounter()
    envs: EnvBase = SerialEnv(work.envs, lambda: GymEnv(work.env_id))
    if envs.observation_spec["observation"].dtype == torch.float64:
        envs = TransformedEnv(envs, DoubleToFloat(in_keys=["observation"]))
    actor, critic, discrete = _networks(work, envs)
    total = work.iterations(steps) * work.samples
    collector = Collector(envs, actor, frames_per_batch=work.samples, total_frames=total)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(work.samples), sampler=SamplerWithoutReplacement(), batch_size=work.batch
    )
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=False)
    loss_module = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=0.2,
        loss_critic_type="l2",
        entropy_coeff=0.01 if discrete else 0.0,
        critic_coeff=0.5,
        normalize_advantage=True,
        log_explained_variance=False,
    )
    parameters = [*actor.parameters(), *critic.parameters()]
    adam = torch.optim.Adam(parameters, lr=work.learning_rate, eps=1e-5)
    env_steps = 0
    for data in collector:
        env_steps += data.numel()
        with torch.no_grad():
            data = advantage(data)
        buffer.extend(data.reshape(-1))
        for _ in range(work.epochs):
            for _ in range(work.samples // work.batch):
                loss = loss_module(buffer.sample())
                adam.zero_grad(set_to_none=True)
                (loss["loss_objective"] + loss["loss_critic"] + loss["loss_entropy"]).backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                adam.step()
        collector.update_policy_weights_()
    collector.shutdown()
    return Done(env_steps, updates.count, sum(p.numel() for p in parameters))


def _networks(work: Work, envs: EnvBase) -> tuple[Any, Any, bool]:
    """Returns policy, critic, and whether actions are discrete."""
    size = envs.observation_spec["observation"].shape[-1]
    width = envs.action_spec.shape[-1]  # width of the one-hot code if actions are discrete
    discrete = "Categorical" in type(envs.action_spec).__name__ or "OneHot" in type(envs.action_spec).__name__
    options = dict(in_features=size, num_cells=list(work.hidden), activation_class=nn.Tanh)
    policy = MLP(out_features=width, **options)
    body = policy if discrete else nn.Sequential(policy, AddStateIndependentNormalScale(width))
    keys = ["logits"] if discrete else ["loc", "scale"]
    actor = ProbabilisticActor(
        TensorDictModule(body, in_keys=["observation"], out_keys=keys),
        in_keys=keys,
        spec=envs.action_spec_unbatched,
        distribution_class=OneHotCategorical if discrete else IndependentNormal,
        return_log_prob=True,
    )
    return actor, ValueOperator(MLP(out_features=1, **options), in_keys=["observation"]), discrete
