"""Throughput beside other libraries, on the same work: environment steps per second of whole processes.

    python benchmarks/throughput.py [--rounds 3]

The work: PPO on CartPole-v1, 8 environments x 128 steps, 4 epochs, minibatches of 256, two separate 64-64
tanh networks, Adam. Each system runs in a process of its own, at two lengths; its speed is
(N2 - N1) / (t2 - t1), timed from outside, so that starting and importing cancel. Rounds are interleaved;
medians are shown, with the spread. RESULTS.md is rewritten between its markers.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
BEGIN, END = "<!-- throughput: begin -->", "<!-- throughput: end -->"
LENGTHS = (20_480, 102_400)
ENVS, STEPS, EPOCHS, BATCH = 8, 128, 4, 256


def ding_lite(steps: int, everything: bool) -> None:
    """As shipped; ``everything`` has evaluation, checkpoints and TensorBoard on as well."""
    from ding_lite import SerialPipeline

    config = dict(
        max_env_step=steps,
        env=dict(env_id="CartPole-v1", collector_env_num=ENVS),
        policy=dict(
            recompute_adv=False,
            learn=dict(epoch_per_collect=EPOCHS, batch_size=BATCH, learning_rate=1e-3, value_norm=False),
            collect=dict(n_sample=ENVS * STEPS),
            eval=dict(eval_freq=10_000 if everything else 0),
        ),
        checkpoint=dict(freq=10_000 if everything else 0),
    )
    if not everything:
        config["env"] |= dict(n_evaluator_episode=1, evaluator_env_num=1, max_eval_steps=1)
    pipeline = SerialPipeline(config, folder=Path(tempfile.mkdtemp()) / "run")
    for _ in pipeline:
        pass
    iterations = -(-steps // (ENVS * STEPS))
    updates = pipeline.progress.train_iter / pipeline.progress.iteration
    assert updates in (16, 15), f"{updates} updates an iteration"
    assert abs(pipeline.progress.iteration - iterations) <= iterations // 20


def stable_baselines3(steps: int) -> None:
    """Its PPO with the same sizes; value networks and policy are separate by default."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", ENVS),
        n_steps=STEPS,
        batch_size=BATCH,
        n_epochs=EPOCHS,
        learning_rate=1e-3,
        policy_kwargs=dict(net_arch=dict(pi=[64, 64], vf=[64, 64])),
        device="cpu",
    )
    assert sum(p.numel() for p in model.policy.parameters()) == 9_155
    model.learn(steps)
    assert model._n_updates == EPOCHS * (-(-steps // (ENVS * STEPS)))


def single_file(steps: int) -> None:
    """A loop in CleanRL's manner, written for this benchmark: SyncVectorEnv, torch, nothing else."""
    import gymnasium as gym
    import numpy as np
    import torch
    from torch import nn

    torch.set_num_threads(1)
    envs = gym.vector.SyncVectorEnv(
        [lambda: gym.make("CartPole-v1") for _ in range(ENVS)],
        autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
    )

    def network(out: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out))

    actor, critic = network(2), network(1)
    parameters = [*actor.parameters(), *critic.parameters()]
    adam = torch.optim.Adam(parameters, lr=1e-3, eps=1e-5)
    obs_store = torch.zeros(STEPS, ENVS, 4)
    actions = torch.zeros(STEPS, ENVS, dtype=torch.long)
    log_probs, rewards, dones, values = (torch.zeros(STEPS, ENVS) for _ in range(4))
    obs = torch.as_tensor(envs.reset(seed=0)[0])
    for _ in range(-(-steps // (ENVS * STEPS))):
        for t in range(STEPS):
            obs_store[t] = obs
            with torch.no_grad():
                dist = torch.distributions.Categorical(logits=actor(obs))
                actions[t] = dist.sample()
                log_probs[t], values[t] = dist.log_prob(actions[t]), critic(obs)[:, 0]
            following, reward, terminated, truncated, _ = envs.step(actions[t].numpy())
            obs = torch.as_tensor(following)
            rewards[t], dones[t] = torch.as_tensor(reward), torch.as_tensor(terminated | truncated)
        with torch.no_grad():
            after, advantage = critic(obs)[:, 0], torch.zeros(STEPS, ENVS)
            running: torch.Tensor | float = 0.0
            for t in reversed(range(STEPS)):
                delta = rewards[t] + 0.99 * after * (1 - dones[t]) - values[t]
                running = advantage[t] = delta + 0.99 * 0.95 * (1 - dones[t]) * running
                after = values[t]
        flat = [x.flatten(0, 1) for x in (obs_store, actions, log_probs, advantage, advantage + values)]
        for _ in range(EPOCHS):
            order = np.random.permutation(ENVS * STEPS)
            for start in range(0, ENVS * STEPS, BATCH):
                o, a, old, adv, target = (x[order[start : start + BATCH]] for x in flat)
                dist = torch.distributions.Categorical(logits=actor(o))
                ratio = (dist.log_prob(a) - old).exp()
                adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                policy_loss = torch.max(-adv * ratio, -adv * ratio.clamp(0.8, 1.2)).mean()
                value_loss = 0.5 * ((critic(o)[:, 0] - target) ** 2).mean()
                adam.zero_grad()
                (policy_loss + 0.5 * value_loss - 0.01 * dist.entropy().mean()).backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                adam.step()


SYSTEMS = {
    "ding_lite": lambda steps: ding_lite(steps, everything=False),
    "ding_lite, evaluation and checkpoints every 10,000 steps": lambda steps: ding_lite(
        steps, everything=True
    ),
    "Stable-Baselines3": stable_baselines3,
    "single file, CleanRL's manner": single_file,
}


def seconds(system: str, steps: int) -> float:
    """Returns how long a whole process takes."""
    began = time.perf_counter()
    command = [sys.executable, __file__, "--system", system, "--steps", str(steps)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return time.perf_counter() - began


def main() -> None:
    """Measures all systems and writes the table; with ``--system`` runs one of them once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--system", choices=SYSTEMS, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.system:
        SYSTEMS[args.system](args.steps)
        return
    speeds: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    for number in range(args.rounds):
        for system, found in speeds.items():
            short, long = (seconds(system, steps) for steps in LENGTHS)
            found.append((LENGTHS[1] - LENGTHS[0]) / (long - short))
            print(f"round {number + 1}  {system}: {found[-1]:,.0f} steps/s", flush=True)
    base = statistics.median(speeds["Stable-Baselines3"])
    lines = ["| system | steps/s, median | spread | x Stable-Baselines3 |", "|---|---|---|---|"]
    for system, found in speeds.items():
        median = statistics.median(found)
        spread = f"{min(found):,.0f} to {max(found):,.0f}"
        lines.append(f"| {system} | **{median:,.0f}** | {spread} | {median / base:.1f} |")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE)
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    when = f"commit {commit.stdout.strip()}, {time.strftime('%Y-%m-%d')}"
    lines += ["", f"{args.rounds} rounds, {when}, {machine}."]
    text = RESULTS.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    RESULTS.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
