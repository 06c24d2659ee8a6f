"""What trains simulators of tensors, on the torch Pendulum of examples/: rsl_rl, skrl and rl_games.

``UpdateCounter`` counts the gradient steps of rsl_rl and rl_games, which have one optimiser; skrl's has one
for both networks. None of them logs.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[2] / "examples"))
from torch_envs import Pendulum

from systems import HIDDEN, Done, UpdateCounter, Work

__all__ = ["Pendulum"]


def _counted(module: Any) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def rsl_rl(work: Work, steps: int) -> Done:
    from rsl_rl.runners import OnPolicyRunner
    from tensordict import TensorDict

    class Env(Pendulum):
        num_actions, cfg = 1, {}  # noqa: RUF012

        def get_observations(self) -> Any:
            return TensorDict({"policy": self.observe(self.state)}, batch_size=[self.num_envs])

        def step(self, action: Any) -> Any:
            _, reward, terminated, truncated, _ = super().step(action)
            return self.get_observations(), reward, terminated | truncated, {"time_outs": truncated}

    network = dict(class_name="rsl_rl.models:MLPModel", hidden_dims=HIDDEN, activation="elu")
    normal = dict(class_name="rsl_rl.modules:GaussianDistribution", init_std=1.0)
    ppo = dict(class_name="rsl_rl.algorithms:PPO", schedule="fixed", learning_rate=work.learning_rate)
    ppo |= dict(num_learning_epochs=work.epochs, num_mini_batches=work.samples // work.batch)
    config = dict(algorithm=ppo, actor={**network, "distribution_cfg": normal}, critic=network)
    config |= dict(num_steps_per_env=work.rollout, obs_groups={}, save_interval=10**9)
    counter, runner = UpdateCounter(), OnPolicyRunner(Env(work.envs), config)
    runner.learn(work.iterations(steps))
    parameters = _counted(runner.alg.actor) + _counted(runner.alg.critic)
    return Done(work.iterations(steps) * work.samples, counter.count, parameters)


def skrl(work: Work, steps: int) -> Done:
    from skrl.agents.torch.ppo import PPO, PPO_CFG
    from skrl.envs.wrappers.torch import Wrapper
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
    from skrl.trainers.torch import SequentialTrainer

    class Env(Wrapper):
        def reset(self) -> Any:  # its trainer calls it once for environments that reset themselves
            return self._env.observe(self._env.state), {}

        def step(self, actions: Any) -> Any:
            obs, reward, terminated, truncated, _ = self._env.step(actions)
            return obs, reward[:, None], terminated[:, None], truncated[:, None], {}

        observation_space = property(lambda self: self._env.single_observation_space)
        action_space = property(lambda self: self._env.single_action_space)

        def state(self) -> Any:
            return None

        def render(self, *args: Any, **kwargs: Any) -> None: ...

        def close(self) -> None: ...

    def layers() -> Any:
        a, b, elu = *HIDDEN, torch.nn.ELU
        linear = torch.nn.Linear
        return torch.nn.Sequential(linear(3, a), elu(), linear(a, b), elu(), linear(b, 1))

    class Actor(GaussianMixin, Model):
        def __init__(self, **spaces: Any) -> None:
            Model.__init__(self, **spaces)
            GaussianMixin.__init__(self)
            self.net, self.log_std = layers(), torch.nn.Parameter(torch.zeros(1))

        def compute(self, inputs: Any, role: str) -> Any:
            return self.net(inputs["observations"]), {"log_std": self.log_std}

    class Critic(DeterministicMixin, Model):
        def __init__(self, **spaces: Any) -> None:
            Model.__init__(self, **spaces)
            DeterministicMixin.__init__(self)
            self.net = layers()

        def compute(self, inputs: Any, role: str) -> Any:
            return self.net(inputs["observations"]), {}

    env = Env(Pendulum(work.envs))
    spaces = dict(observation_space=env.observation_space, action_space=env.action_space, device="cpu")
    models = {"policy": Actor(**spaces), "value": Critic(**spaces)}
    config = PPO_CFG(rollouts=work.rollout, learning_epochs=work.epochs, learning_rate=work.learning_rate)
    config.mini_batches, config.grad_norm_clip = work.samples // work.batch, 1.0
    config.experiment.write_interval = config.experiment.checkpoint_interval = 0
    memory = RandomMemory(memory_size=work.rollout, num_envs=work.envs, device="cpu")
    agent, counter = PPO(models=models, memory=memory, cfg=config, **spaces), UpdateCounter()
    count = work.iterations(steps) * work.rollout
    trainer = {"timesteps": count, "disable_progressbar": True, "environment_info": "none"}
    SequentialTrainer(env=env, agents=agent, cfg=trainer).train()
    return Done(count * work.envs, counter.count, sum(map(_counted, models.values())))


def rl_games(work: Work, steps: int) -> Done:
    from rl_games.common import env_configurations, vecenv
    from rl_games.torch_runner import Runner

    class Env(vecenv.IVecEnv):
        def __init__(self, name: str, num_actors: int, **options: Any) -> None:
            self.env = Pendulum(num_actors)

        def reset(self) -> Any:
            return self.env.reset(seed=0)[0]

        def step(self, actions: Any) -> Any:
            obs, reward, terminated, truncated, _ = self.env.step(actions)
            return obs, reward, terminated | truncated, {"time_outs": truncated}

        def get_env_info(self) -> Any:
            spaces = self.env.single_observation_space, self.env.single_action_space
            return {"observation_space": spaces[0], "action_space": spaces[1]}

    vecenv.register("TENSORS", Env)
    env_configurations.register("pendulum", {"vecenv_type": "TENSORS", "env_creator": Pendulum})
    none, initializer = {"name": "None"}, {"name": "const_initializer", "val": 0}
    sigma = {"mu_activation": "None", "sigma_activation": "None", "mu_init": {"name": "default"}}
    sigma |= {"sigma_init": initializer, "fixed_sigma": True}
    mlp = {"units": HIDDEN, "activation": "elu", "initializer": {"name": "default"}, "regularizer": none}
    network = {"name": "actor_critic", "separate": True, "space": {"continuous": sigma}, "mlp": mlp}
    folder = tempfile.mkdtemp()
    config = dict(
        **dict(
            name="run", env_name="pendulum", device="cpu", device_name="cpu", num_actors=work.envs, ppo=True
        ),
        **dict(horizon_length=work.rollout, minibatch_size=work.batch, mini_epochs=work.epochs),
        **dict(learning_rate=work.learning_rate, lr_schedule=None, gamma=0.99, tau=0.95, e_clip=0.2),
        **dict(clip_value=True, critic_coef=1.0, entropy_coef=0.0, bounds_loss_coef=0.0, grad_norm=1.0),
        **dict(truncate_grads=True, normalize_input=False, normalize_value=False, normalize_advantage=True),
        **dict(reward_shaper={}, max_epochs=work.iterations(steps), torch_compile=False, train_dir=folder),
        **dict(print_stats=False, score_to_win=1e9, save_best_after=10**9),
    )
    algo, model = {"name": "a2c_continuous"}, {"name": "continuous_a2c_logstd"}
    runner, counter = Runner(), UpdateCounter()
    params = dict(algo=algo, model=model, network=network, config=config, seed=1, torch_threads=work.threads)
    runner.load({"params": params})
    runner.run({"train": True})
    return Done(work.iterations(steps) * work.samples, counter.count)
