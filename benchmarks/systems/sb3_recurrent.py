"""sb3-contrib's RecurrentPPO: an LSTM each for policy and value, before their layers."""

from __future__ import annotations

from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env
from work import Done, Work

from systems.counting import UpdateCounter


def train(work: Work, steps: int) -> Done:
    """Trains."""
    updates = UpdateCounter()
    model = RecurrentPPO(
        "MlpLstmPolicy",
        make_vec_env(work.env_id, work.envs),
        n_steps=work.rollout,
        batch_size=work.batch,
        n_epochs=work.epochs,
        learning_rate=work.learning_rate,
        ent_coef=0.01,
        policy_kwargs=dict(
            net_arch=dict(pi=list(work.hidden), vf=list(work.hidden)), lstm_hidden_size=work.lstm
        ),
        device="cpu",
    )
    model.learn(steps)
    return Done(model.num_timesteps, updates.count, sum(p.numel() for p in model.policy.parameters()))
