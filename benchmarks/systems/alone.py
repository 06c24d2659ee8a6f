"""The parts of a task without a library around them; together they are the limit of every library."""

from __future__ import annotations

import importlib
import os

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from work import Done, Work, cores

from ding_lite.models.layout import lay_out
from ding_lite.run.resources import keep_freed_memory
from systems.single_file_ppg import Network, PoolEnvs


def atari_envs(work: Work, steps: int) -> Done:
    """Steps the environments with random actions, an equal share on every core, without sending data."""
    gym.register_envs(importlib.import_module("ale_py"))
    workers = min(cores(), work.envs)
    children = []
    for number in range(workers):
        child = os.fork()
        if child == 0:
            failed = 1
            try:
                share = len(range(number, work.envs, workers))
                _play_atari(work, share, -(-steps // work.envs))
                failed = 0
            finally:
                os._exit(failed)
        children.append(child)
    assert not any(os.waitpid(child, 0)[1] for child in children), "an environment failed"
    return Done(-(-steps // work.envs) * work.envs)


def _play_atari(work: Work, envs: int, steps: int) -> None:
    from ding_lite.config.compile import compile_config
    from ding_lite.envs.make import make_env

    config = compile_config(dict(env=dict(env_id=work.env_id, wrappers=["atari"])))
    for index in range(envs):
        env = make_env(config.values.env, index=index)
        env.reset(seed=index)
        actions = np.random.default_rng(index).integers(env.action_space.n, size=steps)
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()


def pool_envs(work: Work, steps: int) -> Done:
    """Steps EnvPool with random actions."""
    envs = PoolEnvs(work)
    actions = np.random.default_rng(0).integers(envs.actions, size=(64, work.envs))
    envs.reset()
    count, t = 0, 0
    while count < steps:
        count += int(envs.step(actions[t % 64])[3].sum())
        t += 1
    return Done(count)


def vector_envs(work: Work, steps: int) -> Done:
    """Steps gymnasium's native vector environment, or else a SyncVectorEnv, with random actions."""
    native = gym.spec(work.env_id).vector_entry_point is not None
    envs = gym.make_vec(
        work.env_id, num_envs=work.envs, vectorization_mode="vector_entry_point" if native else "sync"
    )
    envs.action_space.seed(0)
    actions = [envs.action_space.sample() for _ in range(64)]
    envs.reset(seed=0)
    count, t, done = 0, 0, np.zeros(work.envs, bool)
    while count < steps:
        count += work.envs - int(done.sum())  # the step after an end is a reset
        _, _, terminated, truncated, _ = envs.step(actions[t % 64])
        done = terminated | truncated
        t += 1
    return Done(count)


def nature_cnn(work: Work, steps: int) -> Done:
    """Runs the samples of ``steps`` env steps through the network as often as PPO does, as fast as possible.

    Once to act on them and value them, and forward and backward in each epoch.
    """
    keep_freed_memory()
    body = nn.Sequential(
        *(nn.Conv2d(4, 32, 8, 4), nn.ReLU(True), nn.Conv2d(32, 64, 4, 2), nn.ReLU(True)),
        *(nn.Conv2d(64, 64, 3, 1), nn.ReLU(True), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(True)),
    )
    network = nn.Sequential(body, nn.Linear(512, 4 + 1))  # both heads as one layer
    lay_out(network)
    adam = torch.optim.Adam(network.parameters(), lr=work.learning_rate)
    images = _images(work, 4, 84)
    for _ in range(work.iterations(steps)):
        with torch.inference_mode():
            for start in range(0, work.samples, work.envs):
                network(_scaled(images[start : start + work.envs]))
        _learn(network, adam, images, work.epochs, work.batch)
    return Done(work.iterations(steps) * work.samples)


def impala_cnn(work: Work, steps: int) -> Done:
    """Like :func:`nature_cnn`, with PPG's auxiliary phase."""
    keep_freed_memory()
    network = Network(15)
    lay_out(network)
    adam = torch.optim.Adam(network.parameters(), lr=work.learning_rate)
    images = _images(work, 3, 64)

    def heads(x: torch.Tensor) -> torch.Tensor:
        logit, value, auxiliary = network.outputs(x)
        return torch.cat([logit, value[:, None], auxiliary[:, None]], 1)

    for _ in range(work.iterations(steps)):
        with torch.inference_mode():
            for start in range(0, work.samples, work.envs):
                heads(_scaled(images[start : start + work.envs]))
            for start in range(0, work.samples, work.aux_batch):  # the old policy
                heads(_scaled(images[start : start + work.aux_batch]))
        for epochs, batch in ((work.epochs, work.batch), (work.aux_epochs, work.aux_batch)):
            _learn(heads, adam, images, epochs, batch)
    return Done(work.iterations(steps) * work.samples)


def _images(work: Work, channels: int, side: int) -> torch.Tensor:
    images = torch.randint(0, 256, (work.samples, channels, side, side), dtype=torch.uint8)
    return images.contiguous(memory_format=torch.channels_last)


def _scaled(images: torch.Tensor) -> torch.Tensor:
    return images.to(torch.float32).mul_(1 / 255)  # dividing bytes takes longer


def _learn(
    network: object, adam: torch.optim.Optimizer, images: torch.Tensor, epochs: int, batch: int
) -> None:
    assert callable(network)
    for _ in range(epochs):
        for start in range(0, len(images), batch):
            adam.zero_grad()
            network(_scaled(images[start : start + batch])).square().mean().backward()
            adam.step()
