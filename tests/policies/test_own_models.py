"""Models of one's own: modes of their layers, and layers that no optimiser has."""

import pytest
import torch
from worlds import trainee

from ding_lite import PPOPolicy
from ding_lite.errors import ContractError
from ding_lite.models import VAC


class Dropping(torch.nn.Module):
    """Notes whether it is in training mode, and drops half of its features there."""

    seen: list[bool] = []  # noqa: RUF012 - of the whole class

    def __init__(self, space):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(*space.shape, 8), torch.nn.Dropout(0.5))
        self.out_features = 8

    def forward(self, obs):
        self.seen.append(self.training)
        return self.layers(obs)


@pytest.mark.parametrize("kind", ["ppo", "ppg", "ppo_offpolicy"])
def test_layers_such_as_dropout_are_in_training_mode_in_gradient_steps_alone(kind):
    learn = {"aux_freq": 1} if kind == "ppg" else {}
    policy, collector = trainee(kind, model={"encoder": {"type": Dropping}}, learn=learn)
    Dropping.seen.clear()
    rollout = collector.collect()
    assert not any(Dropping.seen)
    obs = policy.obs_space.sample()
    assert len({int(policy.act(obs)) for _ in range(20)}) == 1
    policy.learn_mode.forward(rollout)
    assert any(Dropping.seen)
    assert not policy.model.training


@pytest.mark.parametrize("change", ["unfrozen", "replaced"])
def test_a_layer_that_no_optimiser_has_is_refused(change):
    class Frozen(VAC):
        def __init__(self, *spaces, **options):
            super().__init__(*spaces, **options)
            self.actor_encoder.requires_grad_(False)

    policy, collector = trainee("ppo", model={"type": Frozen})
    policy.learn_mode.forward(collector.collect())
    if change == "unfrozen":
        policy.model.actor_encoder.requires_grad_(True)
    else:
        policy.model.critic_head[-1] = torch.nn.Linear(8, 1)
    name = "actor_encoder.trunk.0.weight" if change == "unfrozen" else "critic_head.0.weight"
    with pytest.raises(ContractError, match=f"the optimisers do not have the model's {name}"):
        policy.learn_mode.forward(collector.collect())


def test_a_module_that_a_policy_has_beside_its_model_is_said_not_to_be_trained():
    class Owner(PPOPolicy):
        def _init_shared(self):
            super()._init_shared()
            self.extra = torch.nn.Linear(4, 1)

    policy, _ = trainee("ppo", cls=Owner)
    assert any(
        line.startswith("WARNING: policy.extra is no part of policy.model") for line in policy.describe()
    )
    assert not any("is no part of" in line for line in trainee("ppo")[0].describe())


def test_coefficients_that_are_assigned_hold_from_the_next_iteration_on():
    policy, _ = trainee("ppo")
    assert float(policy.entropy_weight) == 0.01  # the default of discrete actions
    policy.cfg.learn.entropy_weight = 0.5
    assert float(policy.entropy_weight) == 0.5


@pytest.mark.parametrize(
    "normed", [torch.nn.utils.spectral_norm, torch.nn.utils.parametrizations.spectral_norm]
)
def test_spectral_norm_is_in_training_mode_in_gradient_steps(normed):
    class Normed(torch.nn.Module):
        def __init__(self, space):
            super().__init__()
            self.layer = normed(torch.nn.Linear(*space.shape, 8))
            self.out_features = 8

        def forward(self, obs):
            return self.layer(obs)

    Normed.__module__ = "ding_lite.models"  # only the layer tells that there is a mode
    policy, collector = trainee("ppo", model={"encoder": {"type": Normed}})
    layer = policy.model.actor_encoder
    while not isinstance(layer, Normed):
        layer = next(layer.children())
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    assert before
    policy.learn_mode.forward(collector.collect())
    assert all(not torch.equal(buffer, before[name]) for name, buffer in layer.named_buffers())


def test_a_model_whose_layers_are_all_frozen_is_refused():
    class Frozen(VAC):
        def __init__(self, *spaces, **options):
            super().__init__(*spaces, **options)
            self.requires_grad_(False)

    with pytest.raises(ContractError, match="no parameter: all layers that its loss reaches are frozen"):
        trainee("ppo", model={"type": Frozen})
