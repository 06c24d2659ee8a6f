"""Networks that NumPy runs, and policies and minibatches for them."""

import gymnasium as gym
import numpy as np
import torch

from ding_lite.config.compile import compile_config
from ding_lite.config.registry import POLICY_REGISTRY
from ding_lite.data.rollout import as_field
from ding_lite.data.samples import Batch
from ding_lite.trees import map_tree

spaces = gym.spaces
VECTOR = spaces.Box(-1, 1, (4,), np.float32)
BYTES = spaces.Box(0, 255, (5,), np.uint8)
INDEX = spaces.Discrete(5, start=-2)
INDICES = spaces.MultiDiscrete([[2], [3]], start=[[1], [-1]], dtype=np.int8)
IMAGE = spaces.Box(0, 255, (10, 10, 3), np.uint8)
DISCRETE = spaces.Discrete(3, start=2)
MULTI = spaces.MultiDiscrete([[2], [3]], start=[[1], [0]])
BOX = spaces.Box(-1, 1, (2, 3), np.float32)
TREE = spaces.Dict(move=DISCRETE, arm=spaces.Tuple((BOX, spaces.MultiBinary(2))), k=MULTI)
MASKED = spaces.Dict(observation=VECTOR, action_mask=spaces.Box(0, 1, (3,), np.bool_))
MULTI_MASKED = spaces.Dict(observation=VECTOR, action_mask=spaces.Box(0, 1, (5,), np.bool_))
MIXED = spaces.Dict(
    a=VECTOR,
    b=spaces.Dict(c=INDICES, d=INDEX),
    e=spaces.MultiBinary((2, 2)),
    action_mask=spaces.Box(0, 1, (3,), np.bool_),
)
# Name: spaces of observations and actions, options of the model, whether NumPy has the slopes of the losses.
NETWORKS = {
    "vector, discrete": (VECTOR, DISCRETE, {}, True),
    "relu": (VECTOR, DISCRETE, {"activation": "relu"}, True),
    "elu": (VECTOR, DISCRETE, {"activation": "elu"}, True),
    "masked": (MASKED, DISCRETE, {}, True),
    "heads of layers": (
        VECTOR,
        DISCRETE,
        {"actor_head_hidden_size_list": [7], "critic_head_hidden_size_list": [5, 6]},
        True,
    ),
    "layers of a leaf": (
        spaces.Box(-1, 1, (2, 3), np.float64),
        DISCRETE,
        {"encoder": {"hidden_size_list": [9]}, "encoder_hidden_size_list": []},
        True,
    ),
    "bytes": (BYTES, DISCRETE, {}, True),
    "index": (INDEX, DISCRETE, {"encoder_hidden_size_list": []}, True),
    "indices": (INDICES, DISCRETE, {"encoder": {"type": "embedding", "embedding_size": 3}}, True),
    "mixed, masked": (MIXED, DISCRETE, {}, True),
    "box": (VECTOR, BOX, {}, True),
    "box, fixed sigma": (VECTOR, BOX, {"sigma_type": "fixed"}, True),
    "box, conditioned": (VECTOR, BOX, {"sigma_type": "conditioned"}, False),
    "box, tanh": (VECTOR, BOX, {"bound_type": "tanh"}, False),
    "box, soft": (MIXED.spaces["b"], BOX, {"bound_type": "soft"}, False),
    "box, beta": (VECTOR, BOX, {"box_distribution": "beta"}, False),
    "box, tanh_normal": (VECTOR, BOX, {"box_distribution": "tanh_normal"}, False),
    "multi-discrete": (VECTOR, MULTI, {}, False),
    "multi-discrete, masked": (MULTI_MASKED, MULTI, {}, False),
    "multi-binary": (VECTOR, spaces.MultiBinary(3), {}, False),
    "tree": (MIXED.spaces["b"], TREE, {}, False),
}
# Which networks share an encoder.
ARCHS = {
    "ppo": ("ppo", {}),
    "ppo, shared": ("ppo", {"share_encoder": True}),
    "ppg, dual": ("ppg", {"arch": "dual"}),
    "ppg, shared": ("ppg", {"arch": "shared"}),
    "ppg, detach": ("ppg", {"arch": "detach"}),
}


def policy_for(obs_space=VECTOR, action_space=DISCRETE, kind="ppo", cls=None, made=None, **options):
    """Returns a policy whose outputs are far from those of a fresh one."""
    cfg = compile_config(
        {"env": {"env_id": "CartPole-v1"}, "policy": {"type": kind, **options}}
    ).values.policy
    policy = (cls or POLICY_REGISTRY.get(kind))(cfg, obs_space, action_space, model=made)
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in policy.model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=draw))
    if policy.warm_up_steps:
        policy.warm_up(observations(obs_space, 64, torch.Generator().manual_seed(7)))
    return policy


def observations(space, n, draw):
    """Returns n observations (n, ...) of a space, as arrays; every mask leaves an action."""

    def leaf(path, space):
        if path[:1] == ("action_mask",):
            mask = torch.rand(n, *space.shape, generator=draw) > 0.4
            mask[:, 1::2] = True  # one action of each component, in every layout above
            mask[:, 0] |= mask.shape[1] == 2
            return mask.numpy()
        if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            sizes = torch.as_tensor(getattr(space, "nvec", getattr(space, "n", None)))
            drawn = (torch.rand(n, *space.shape, generator=draw) * sizes).long()
            return (drawn + torch.as_tensor(space.start)).numpy()
        drawn = torch.rand(n, *space.shape, generator=draw) * 2 - 1
        return (100 * drawn.abs() if space.dtype == np.uint8 else drawn).numpy().astype(space.dtype)

    def walk(path, space):
        if isinstance(space, spaces.Dict):
            return {name: walk((*path, name), part) for name, part in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return {str(k): walk((*path, str(k)), part) for k, part in enumerate(space.spaces)}
        return leaf(path, space)

    return walk((), space)


def batch_for(policy, n=48, weights=True, seed=0):
    """Returns a minibatch of an older policy: ratios and values are outside of the clip, on both sides."""
    draw = torch.Generator().manual_seed(seed)
    obs = as_field(policy._inputs(observations(policy.obs_space, n, draw)))
    normal = lambda *shape: torch.randn(*shape or (n,), generator=draw)  # noqa: E731
    with torch.no_grad():
        logit = policy.model.compute_actor(obs)
        dist = policy.distribution(obs, logit)
        action, value = dist.sample(draw), policy.model.compute_critic(obs)
        old = map_tree(lambda x: x * 1.2 + (0.1 if bool((x > 0).all()) else 0.3 * normal(*x.shape)), logit)
    return Batch(
        obs=obs,
        action=as_field(action),
        log_prob=dist.log_prob(action) + 0.4 * normal(),
        old_logit=as_field(old),
        advantage=normal(),
        value=value + 0.5 * normal(),
        value_target=2 * normal(),
        **({"policy_weight": torch.rand(n, generator=draw)} if weights else {}),
    )
