"""Writes a trained policy to one ONNX file, which acts without ding_lite.

The file maps observations as the environment returns them to actions as it takes them: it holds the scale
of observations, action masks, the memory, and the conversion of actions. ``ExportedPolicy`` is the module
that is traced. It calls the policy's own parts, so a part of the user is exported as it is.

A file is written only if it acts as ``load_policy(run).act`` on observations of the run's environment.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim

from ding_lite.config.registry import env_name, importing_only
from ding_lite.config.values import encode
from ding_lite.data.hidden import ends_of
from ding_lite.envs.make import make_vector_env
from ding_lite.envs.space_json import space_to_json
from ding_lite.errors import ConfigError, ContractError, DingLiteError
from ding_lite.models.recurrent import chosen_hidden
from ding_lite.policies.ppo import PPOPolicy
from ding_lite.run.checkpoint import write_whole
from ding_lite.tools.evaluate import load
from ding_lite.trees import (
    Tree,
    example_observations,
    from_named_leaves,
    map_tree,
    named_leaves,
    space_leaves,
    to_tree,
)

PACKAGES = ("onnx", "onnxruntime", "onnxscript")
METADATA_KEY = "ding_lite.manifest"  # in the metadata of the model
TOLERANCE = 1e-5  # accepted difference of a number x, in units of max(1, |x|)
MAX_ENVS = 4  # environments that the recorded observations come from

Arrays = dict[str, np.ndarray]
Runner = Callable[[Mapping[str, np.ndarray]], Arrays]
Step = tuple[Any, Any, Any]  # see :func:`record`


class ExportedPolicy(nn.Module):
    """Acts greedily, by the parts of a policy.

    Args:
        policy: on the CPU.

    Shapes:
        ``{"obs": (N, ...)}``, or ``{"obs.<branch>": (N, ...)}`` where the space is a tree; with a memory also
        "first" (N,) bool and "state.<branch>" (N, ...)
        -> ``{"action": (N, ...), "logit": (N, ...)}``, or their branches; with a memory also
        "next_state.<branch>" (N, ...)
    """

    def __init__(self, policy: PPOPolicy) -> None:
        super().__init__()
        self.model = policy.model
        self.policy = policy
        self.paths = [path for path, _ in space_leaves(policy.actor_space)]
        self.eval().requires_grad_(False)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        policy, model = self.policy, self.model
        obs = policy.completed(_tree("obs", inputs, self.paths))
        if policy.recurrence is None:
            seen = policy._inputs(obs)
            logit, after = model.compute_actor(seen), {}
        else:
            first = inputs["first"]
            initial = policy.recurrence.initial_hidden(first.shape[0])
            state = _tree("state", inputs, [path for path, _ in named_leaves(initial)])
            seen = policy._inputs(obs, chosen_hidden(first, initial, state))
            logit, _, state = model.step(seen)
            after = _named("next_state", state)
        action = map_tree(lambda leaf: leaf.numpy(), policy.distribution(seen, logit).mode())
        action = map_tree(torch.from_numpy, model.actor_head.to_env(action))
        return {**_named("action", action), **_named("logit", logit), **after}

    def example(self) -> dict[str, Tensor]:
        """Returns inputs of two observations."""
        inputs = _named("obs", map_tree(torch.as_tensor, example_observations(self.policy.actor_space, 2)))
        if self.policy.recurrence is not None:
            inputs["first"] = torch.tensor([True, False])
            inputs |= _named("state", self.policy.recurrence.initial_hidden(2))
        return inputs


def _named(kind: str, tree: Tree) -> dict[str, Any]:
    """Returns the leaves of a tree by the names of inputs or outputs, such as "obs" or "obs.position"."""
    return {".".join((kind, *path)): leaf for path, leaf in named_leaves(tree)}


def _tree(kind: str, named: Mapping[str, Any], paths: Sequence[tuple[str, ...]]) -> Tree:
    """Returns the tree with leaves at ``paths``, the inverse of :func:`_named`."""
    return from_named_leaves({path: named[".".join((kind, *path))] for path in paths})


def export_policy(
    run: Path,
    output: Path,
    *,
    observations: int = 512,
    seed: int = 0,
    trust: Sequence[str] = (),
) -> dict[str, Any]:
    """Writes the policy of a run to a file, and a manifest to ``<output>.json``.

    Args:
        run: a run's folder, whose best checkpoint is used, or a checkpoint.
        output: the file.
        observations: of the run's environment, at least so many, on which the file must act as the policy.
        seed: of the episodes from which these observations are recorded.
        trust: modules that the checkpoint's config may import.

    Returns:
        the manifest.

    Raises:
        ConfigError: if a package that it needs is not installed.
        ContractError: if the policy does something that the file cannot hold.
        DingLiteError: if the file acts otherwise than the policy; no file is written then.
        CheckpointError: if there is no checkpoint, or its config names a module that is not trusted.
        EnvError: if the environments of the run cannot be made.
    """
    loaded = load(run, trust=trust)
    for name in PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f'an export needs the package {name}: pip install "ding_lite[export]"')
    if not isinstance(loaded.policy, PPOPolicy):
        raise ContractError(
            f"{type(loaded.policy).__name__} cannot be exported: it must subclass PPOPolicy, which acts by a "
            "model and a distribution"
        )
    config, module = loaded.config.values, ExportedPolicy(loaded.policy)
    example = module.example()
    described = {
        "inputs": [_port(name, tensor) for name, tensor in example.items()],
        "outputs": [_port(name, tensor) for name, tensor in module(example).items()],
        "obs_space": space_to_json(loaded.policy.actor_space),
        "action_space": space_to_json(loaded.policy.action_space),
        "source": {
            "run": str(run),
            "checkpoint": loaded.file.stem,
            "env_id": env_name(config.env),
            "policy": encode(config.policy.type, "policy.type"),
            "env_step": loaded.env_step,
            "seed": config.seed,
        },
        "versions": {name: metadata.version(name) for name in ("ding_lite", "torch", "gymnasium", *PACKAGES)},
    }
    data = model_of(module, described)
    with importing_only(loaded.config.trusted):
        recorded = list(record(config.env, module.policy, observations, seed))
    parity = parity_of(runner(data), module, recorded)
    if not (parity["difference"] <= TOLERANCE and not parity["different_actions"]):  # also of a nan
        raise DingLiteError(
            f"{output} would act otherwise than {run}: on {parity['observations']} observations the largest "
            f"difference is {parity['difference']:.2g} (of {parity['output']!r}; at most {TOLERANCE:g} is "
            f"accepted), and {parity['different_actions']} discrete actions differ. No file is written. What "
            "changes actions belongs in scaled(), distribution() or the model, whose encoders use float32"
        )
    manifest = {**described, "parity": parity}
    write_whole(output, data)
    write_whole(Path(f"{output}.json"), (json.dumps(manifest, indent=1) + "\n").encode())
    return manifest


def model_of(module: ExportedPolicy, manifest: Mapping[str, Any]) -> bytes:
    """Returns the content of the file.

    Args:
        module: to trace.
        manifest: stored in the file.

    Raises:
        ContractError: if the policy does something that torch.export or ONNX cannot hold.
    """
    example = module.example()
    sizes = {name: {0: Dim("batch")} for name in example}
    inputs, outputs = ([port["name"] for port in manifest[kind]] for kind in ("inputs", "outputs"))
    try:
        # Strict: TorchDynamo traces the conversion of actions, which is written in NumPy, too.
        program = torch.export.export(module, (example,), dynamic_shapes=(sizes,), strict=True)
        signature = program.graph_signature
        for name in {*program.state_dict} - {*signature.parameters, *signature.buffers}:
            del program.state_dict[name]  # of the value network
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it misses torchvision
        with warnings.catch_warnings():  # what torch says about itself
            warnings.simplefilter("ignore")
            converted: Any = torch.onnx.export(
                program, dynamo=True, verbose=False, input_names=inputs, output_names=outputs
            )
    except Exception as error:  # code of the user is traced
        first_line = str(error).strip().partition("\n")[0]  # torch adds pages to it
        raise ContractError(
            f"ONNX cannot hold this policy: {type(error).__name__}: {first_line}. Its model must compute "
            "with tensors, without branches on their values"
        ) from error
    for value in (*converted.model.graph.inputs, *converted.model.graph.outputs):
        value.shape[0] = "batch"
    converted.model.metadata_props[METADATA_KEY] = json.dumps(manifest)
    content: bytes = converted.model_proto.SerializeToString()
    return content


def runner(data: bytes) -> Runner:
    """Returns the function of an ONNX model: named arrays in, named arrays out."""
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(None, dict(inputs)), strict=True))


def _tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def record(env_cfg: Mapping[str, Any], policy: PPOPolicy, observations: int, seed: int) -> Iterator[Step]:
    """Yields the steps of some episodes that ``policy.act`` plays, until they have enough observations.

    Shapes:
        observations (B, ...), whether an episode begins (B,), actions (B, ...)
    """
    envs = make_vector_env(env_cfg, min(MAX_ENVS, env_cfg["evaluator_env_num"] or 1), seed, evaluate=True)
    with contextlib.closing(envs):
        policy.reset()
        obs, first = envs.reset("export"), np.ones(envs.num_envs, bool)
        for _ in range(-(-observations // envs.num_envs)):
            obs = map_tree(np.array, obs)  # the environments overwrite theirs
            action = to_tree(policy.act(obs), policy.action_space)
            yield obs, first, action
            transition = envs.step(action)
            obs, first = transition.obs, ends_of(transition)
            policy.reset(first)


def parity_of(run: Runner, module: ExportedPolicy, recorded: Sequence[Step]) -> dict[str, Any]:
    """Compares an exported file with the policy, step by step; each remembers for itself.

    Actions are compared with those of ``policy.act``, the other outputs with those of ``module`` in torch.
    The first step is also taken with one observation alone, since the size of a batch may vary.

    Args:
        run: the file.
        module: from which the file was made.
        recorded: consecutive steps.

    Returns:
        "observations": how many were compared; "difference": the largest one of a number x, in units of
        max(1, |x|), and "output", which has it; "different_actions": observations for which a discrete action
        differs.
    """
    differences: dict[str, float] = {}
    different_actions = 0
    alone = tuple(map_tree(lambda leaf: leaf[:1], part) for part in recorded[0])
    for steps in ([alone], recorded):
        expected: Arrays = {}
        actual: Arrays = {}
        for obs, first, action in steps:
            expected = _arrays(module(_tensors(_inputs(module, obs, first, expected))))
            actual = run(_inputs(module, obs, first, actual))
            wrong_rows = np.zeros(len(first), bool)
            for name, wanted in {**expected, **_named("action", action)}.items():
                got = actual[name]
                if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
                    differences[name] = np.inf
                elif wanted.dtype.kind == "f":
                    error = np.abs(got - wanted) / np.maximum(1, np.abs(wanted))
                    differences[name] = np.maximum(differences.get(name, 0.0), error.max())  # keeps a nan
                else:
                    wrong_rows |= (got != wanted).reshape(len(wrong_rows), -1).any(-1)
            different_actions += int(wrong_rows.sum())
    output = max(differences, key=lambda name: np.nan_to_num(differences[name], nan=np.inf))
    return {
        "observations": sum(len(first) for _, first, _ in recorded),
        "difference": float(differences[output]),
        "output": output,
        "different_actions": different_actions,
    }


def _inputs(module: ExportedPolicy, obs: Tree, first: np.ndarray, before: Arrays) -> Arrays:
    """Returns the inputs of a step, after a step with the outputs ``before``; empty: there is none."""
    inputs: Arrays = _named("obs", to_tree(obs, module.policy.actor_space))
    if (recurrence := module.policy.recurrence) is None:
        return inputs
    initial = recurrence.initial_hidden(len(first))
    state = before or _named("next_state", map_tree(Tensor.numpy, initial))
    remembered = {name[len("next_") :]: state[name] for name in state if name.startswith("next_state.")}
    return {**inputs, "first": first, **remembered}


def _port(name: str, example: Tensor) -> dict[str, Any]:
    """Returns what the manifest says of an input or output."""
    return {"name": name, "dtype": str(example.numpy().dtype), "shape": ["batch", *example.shape[1:]]}
