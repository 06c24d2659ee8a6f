"""Writes a trained policy to one ONNX file, which acts without ding_lite.

The file maps raw observations of the environment to actions that it accepts. It includes the scale of
observations, action masks, the hidden state, and the conversion of actions by the library's action wrappers.
``ExportedPolicy`` is the module that is traced. It calls the policy's own methods, so a custom model or
distribution is exported as it is.

A file is written only if it acts as ``load_policy(run).act`` on observations of the run's environment.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim

from ding_lite.config.registry import env_name, importing_only
from ding_lite.config.values import encode
from ding_lite.data.hidden import ends_of
from ding_lite.envs.make import make_vector_env
from ding_lite.envs.space_json import space_to_json
from ding_lite.envs.wrappers import ActionMap, left_out
from ding_lite.errors import ContractError, DingLiteError, require
from ding_lite.models.recurrent import chosen_hidden
from ding_lite.policies.ppo import PPOPolicy
from ding_lite.run.checkpoint import write_whole
from ding_lite.run.folder import versions
from ding_lite.tools.evaluate import load
from ding_lite.trees import (
    Tree,
    example_observations,
    from_named_leaves,
    map_space,
    map_tree,
    named_leaves,
    space_leaves,
    to_tree,
)

PACKAGES = ("onnx", "onnxruntime", "onnxscript")
METADATA_KEY = "ding_lite.manifest"  # in the metadata of the model
TOLERANCE = 1e-5  # accepted difference of a number, in its unit; see parity_of
MAX_ENVS = 4  # environments in which the observations are recorded

Arrays = dict[str, np.ndarray]
Runner = Callable[[Mapping[str, np.ndarray]], Arrays]
Step = tuple[Any, Any, Any]  # see :func:`record`


class ExportedPolicy(nn.Module):
    """Maps observations to the most likely actions of a policy.

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
        # An ONNX model cannot have constants of NumPy.
        self.maps = [ActionMap(x.space, *map(torch.from_numpy, x[1:])) for x in policy.action_maps]
        self.eval().requires_grad_(False)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        policy, model = self.policy, self.model
        obs = _tree("obs", inputs, self.paths)
        obs = map_tree(lambda leaf: leaf.float() if leaf.dtype == torch.float64 else leaf, obs)
        obs = policy.with_empty_groups(obs)
        if policy.recurrence is None:
            model_inputs = policy._inputs(obs)
            logit, next_state = model.compute_actor(model_inputs), {}
        else:
            first = inputs["first"]
            initial = policy.recurrence.initial_hidden(first.shape[0])
            state = _tree("state", inputs, [path for path, _ in named_leaves(initial)])
            model_inputs = policy._inputs(obs, chosen_hidden(first, initial, state))
            logit, _, state = model.step(model_inputs)
            next_state = _named("next_state", state)
        action = map_tree(lambda leaf: leaf.numpy(), policy.distribution(model_inputs, logit).mode())
        action = map_tree(torch.from_numpy, model.actor_head.out.to_env(action))
        for action_map in self.maps:
            action = action_map.scaled(action).to(getattr(torch, str(action_map.space.dtype)))
        return {**_named("action", action), **_named("logit", logit), **next_state}

    def example(self) -> dict[str, Tensor]:
        """Returns example inputs with two observations."""
        space = self.policy.actor_space
        obs = map_tree(torch.as_tensor, _declared(example_observations(space, 2), space))
        inputs = _named("obs", obs)
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


def _declared(obs: Tree, space: gym.Space) -> Tree:
    """Returns observations in the dtypes of their space, as the environment returns them."""
    return map_space(lambda leaf, x: x.astype(leaf.dtype), space, obs)


def export_policy(
    run: Path, output: Path, *, observations: int = 512, trust: Sequence[str] = ()
) -> dict[str, Any]:
    """Writes the policy of a run to a file, and a manifest to ``<output>.json``.

    Args:
        run: a run's folder, whose best checkpoint is used, or a checkpoint.
        output: the file.
        observations: least number of recorded observations on which the file must act as the policy.
        trust: modules that the checkpoint's config may import.

    Returns:
        the manifest.

    Raises:
        ConfigError: if a package that it needs is not installed.
        ContractError: if the policy computes something that ONNX cannot represent.
        DingLiteError: if the file would act differently from the policy; no file is written then.
        CheckpointError: if there is no checkpoint, or its config names a module that is not trusted.
        EnvError: if the environments of the run cannot be made.
    """
    file, compiled, policy, env_step = load(run, trust=trust)
    for name in PACKAGES:
        require(name, "an export", "export")
    if not isinstance(policy, PPOPolicy):
        raise ContractError(
            f"{type(policy).__name__} cannot be exported: it must subclass PPOPolicy, which acts by a "
            "model and a distribution"
        )
    config, module = compiled.values, ExportedPolicy(policy)
    example, maps = module.example(), policy.action_maps
    described = {
        "inputs": [_port(name, tensor) for name, tensor in example.items()],
        "outputs": [_port(name, tensor) for name, tensor in module(example).items()],
        "obs_space": space_to_json(policy.actor_space),
        "action_space": space_to_json(maps[-1].space if maps else policy.action_space),
        "leaves_out": left_out(config.env.wrappers, len(maps)),
        "source": {
            "run": str(run),
            "checkpoint": file.stem,
            "env_id": env_name(config.env),
            "policy": encode(config.policy.type, "policy.type"),
            "env_step": env_step,
            "seed": config.seed,
        },
        "versions": versions(*PACKAGES),
    }
    data, described = model_of(module, described)
    with importing_only(compiled.trusted):
        recorded = list(record(config.env, policy, observations))
    parity = parity_of(runner(data), module, recorded)
    if not parity["difference"] <= TOLERANCE:  # also if it is nan
        raise DingLiteError(
            f"{output} would not act as {run}: on {parity['observations']} observations the largest "
            f"difference is {parity['difference']:.2g} of the range of {parity['output']!r} (at most "
            f"{TOLERANCE:g} is accepted). No file is written. Code that changes actions belongs in scaled(), "
            "distribution() or the model, whose encoders use float32"
        )
    manifest = {**described, "parity": parity}
    write_whole(output, data)
    write_whole(Path(f"{output}.json"), (json.dumps(manifest, indent=1) + "\n").encode())
    return manifest


def model_of(module: ExportedPolicy, manifest: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """Returns the content of the file, and the manifest in it.

    Args:
        module: to trace.
        manifest: with all inputs; inputs that no output needs, such as of the value network, are dropped.

    Raises:
        ContractError: if the policy computes something that torch.export or ONNX cannot represent.
    """
    example = module.example()
    sizes = {name: {0: Dim("batch")} for name in example}
    inputs, outputs = ([port["name"] for port in manifest[kind]] for kind in ("inputs", "outputs"))
    try:
        # Strict: TorchDynamo also traces the conversion of actions, which is written in NumPy.
        program = torch.export.export(module, (example,), dynamic_shapes=(sizes,), strict=True)
        signature = program.graph_signature
        for name in {*program.state_dict} - {*signature.parameters, *signature.buffers}:
            del program.state_dict[name]  # parameters of the value network
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns that torchvision is missing
        with warnings.catch_warnings():  # torch warns about its own code
            warnings.simplefilter("ignore")
            converted: Any = torch.onnx.export(
                program, dynamo=True, verbose=False, input_names=inputs, output_names=outputs
            )
    except Exception as error:  # the user's code is traced, and may raise any error
        first_line = str(error).strip().partition("\n")[0]  # torch adds pages to it
        raise ContractError(
            f"ONNX cannot represent this policy: {type(error).__name__}: {first_line}. Its model must "
            "compute with tensors, without branches on their values, and not in bfloat16"
        ) from error
    graph = converted.model.graph
    for value in [value for value in graph.inputs if not value.uses()]:
        graph.inputs.remove(value)
    for value in (*graph.inputs, *graph.outputs):
        value.shape[0] = "batch"
    remaining = {value.name for value in graph.inputs}
    manifest = {**manifest, "inputs": [port for port in manifest["inputs"] if port["name"] in remaining]}
    converted.model.metadata_props[METADATA_KEY] = json.dumps(manifest)
    return converted.model_proto.SerializeToString(), manifest


def runner(data: bytes) -> Runner:
    """Returns a function that runs an ONNX model: named arrays in, named arrays out."""
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    needed = [port.name for port in session.get_inputs()]
    return lambda inputs: dict(
        zip(names, session.run(None, {name: inputs[name] for name in needed}), strict=True)
    )


def record(env_cfg: Mapping[str, Any], policy: PPOPolicy, observations: int) -> Iterator[Step]:
    """Plays episodes with ``policy.act``, and yields their steps until there are enough observations.

    Shapes:
        observations (B, ...), whether an episode begins (B,), actions of ``policy.act`` (B, ...)
    """
    maps, policy.action_maps = policy.action_maps, ()  # here the environments' wrappers convert actions
    envs = make_vector_env(env_cfg, min(MAX_ENVS, env_cfg["evaluator_env_num"] or 1), 0, evaluate=True)
    with contextlib.closing(envs):
        policy.reset()
        obs, first = envs.reset("export"), np.ones(envs.num_envs, bool)
        for _ in range(-(-observations // envs.num_envs)):
            obs = map_tree(np.array, obs)  # the environments overwrite their arrays
            action = to_tree(policy.act(obs), policy.action_space)
            yield obs, first, functools.reduce(lambda mapped, convert: convert(mapped), maps, action)
            transition = envs.step(action)
            obs, first = transition.obs, ends_of(transition)
            policy.reset(first)
    policy.action_maps = maps


def parity_of(run: Runner, module: ExportedPolicy, recorded: Sequence[Step]) -> dict[str, Any]:
    """Compares an exported file with the policy, step by step; each continues its own hidden state.

    Actions are compared with actions of ``policy.act``, other outputs with outputs of ``module`` in torch; a
    wrong hidden state shows in the next outputs. The first step is also taken with one observation alone,
    since the size of a batch may vary. The unit of an action of a bounded Box is the width of its bounds, in
    proportion to which float32 rounds; the unit of any other float is its own size, or the median size in its
    output if that is larger. The unit of an integer is 1, so other discrete actions differ by 1 or more.

    Args:
        run: the file.
        module: that was exported.
        recorded: consecutive steps.

    Returns:
        "observations": how many were compared; "difference": the largest one, in these units; "output": the
        name of the output that has it.
    """
    policy = module.policy
    space = policy.action_maps[-1].space if policy.action_maps else policy.action_space
    widths: dict[str, Any] = {".".join(("action", *path)): _width(leaf) for path, leaf in space_leaves(space)}
    differences: dict[str, float] = {}
    alone = tuple(map_tree(lambda leaf: leaf[:1], part) for part in recorded[0])
    for steps in ([alone], recorded):
        expected: Arrays = {}
        actual: Arrays = {}
        for obs, first, action in steps:
            inputs = _inputs(module, obs, first, expected)
            outputs = module({name: torch.from_numpy(array) for name, array in inputs.items()})
            expected = {name: tensor.numpy() for name, tensor in outputs.items()}
            actual = run(_inputs(module, obs, first, actual))
            for name, target in {**expected, **_named("action", action)}.items():
                if name.startswith("next_state"):
                    continue
                got, sizes, unit = actual[name], np.abs(target), widths.get(name)
                if unit is None:
                    unit = np.maximum(sizes, np.median(sizes)) if target.dtype.kind == "f" else 1
                with np.errstate(invalid="ignore", divide="ignore"):
                    error = np.where(got == target, 0.0, np.abs(got - target) / unit)
                differences[name] = np.maximum(differences.get(name, 0.0), error.max())  # keeps a nan
    output = max(differences, key=lambda name: np.nan_to_num(differences[name], nan=np.inf))
    return {
        "observations": sum(len(first) for _, first, _ in recorded),
        "difference": float(differences[output]),
        "output": output,
    }


def _width(leaf: gym.Space) -> np.ndarray | None:
    """Returns the width of the bounds of a Box; None for other spaces, or if a width exceeds float32."""
    if not isinstance(leaf, gym.spaces.Box):
        return None
    width = leaf.high.astype(np.float64) - leaf.low
    return width if (width < np.finfo(np.float32).max).all() else None


def _inputs(module: ExportedPolicy, obs: Tree, first: np.ndarray, before: Arrays) -> Arrays:
    """Returns the inputs of a step; ``before`` are the outputs of the previous step, empty at first."""
    inputs: Arrays = _named("obs", _declared(obs, module.policy.actor_space))
    if (recurrence := module.policy.recurrence) is None:
        return inputs
    initial = recurrence.initial_hidden(len(first))
    state = before or _named("next_state", map_tree(Tensor.numpy, initial))
    hidden = {name[len("next_") :]: state[name] for name in state if name.startswith("next_state.")}
    return {**inputs, "first": first, **hidden}


def _port(name: str, example: Tensor) -> dict[str, Any]:
    """Returns the entry of an input or output in the manifest."""
    return {"name": name, "dtype": str(example.numpy().dtype), "shape": ["batch", *example.shape[1:]]}
