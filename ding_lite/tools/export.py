"""Writes a trained policy to one file that acts without ding_lite: ONNX, or a program of torch.export.

The file maps observations as the environment returns them to actions as it takes them: it holds the scale
of observations, action masks, the memory, and the conversion of actions. ``ExportedPolicy`` is the module
that is traced. It calls the policy's own parts, so a part of the user is exported as it is.

A file is written only if it acts as ``load_policy(run).act`` on observations of the run's environment.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import platform
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from ding_lite.config.registry import env_name
from ding_lite.config.values import encode
from ding_lite.data.hidden import ends_of
from ding_lite.envs.make import make_vector_env
from ding_lite.envs.space_json import space_to_json
from ding_lite.errors import ConfigError, ContractError, DingLiteError
from ding_lite.models.encoders import Encoder
from ding_lite.models.recurrent import chosen_hidden
from ding_lite.policies.base import Policy
from ding_lite.policies.ppo import PPOPolicy
from ding_lite.run.checkpoint import write_whole
from ding_lite.run.load import refuse_without
from ding_lite.tools.evaluate import Opened, open_checkpoint
from ding_lite.trees import (
    MASK_KEY,
    Tree,
    example_observations,
    from_named_leaves,
    leaf_at,
    map_tree,
    named_leaves,
    space_leaves,
    to_tree,
)

FORMAT_VERSION = 1
ONNX, PT2 = ".onnx", ".pt2"
ONNX_PACKAGES = ("onnx", "onnxruntime", "onnxscript")
METADATA_KEY = "ding_lite.manifest"  # in the metadata of an ONNX model, and the name of a file in a .pt2
TOLERANCE = 1e-5  # accepted difference of a number x, in units of max(1, |x|)
MAX_ENVS = 4  # environments that the recorded observations come from
# Methods that the exported module stands for; a policy that replaces one of them may act otherwise.
ACTS = ("act", "_forward_eval", "_to_env")

Arrays = dict[str, np.ndarray]
Runner = Callable[[Mapping[str, np.ndarray]], Arrays]


class Parity(NamedTuple):
    """How an exported file acts, compared with the policy.

    Attributes:
        observations: how many were compared.
        difference: the largest one of a number x, in units of max(1, |x|).
        output: that has the largest difference.
        different_actions: observations for which a discrete action differs.
    """

    observations: int
    difference: float
    output: str
    different_actions: int

    @property
    def holds(self) -> bool:
        """Whether the file acts as the policy does."""
        return self.difference <= TOLERANCE and not self.different_actions  # False for nan, too


class ExportedPolicy(nn.Module):
    """Acts greedily, by the parts of a policy.

    Args:
        policy: on the CPU.

    Attributes:
        paths: of the observation's leaves.
        memory_paths: of the memory's leaves that are inputs and outputs.

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
        self.paths = [path for path, _ in space_leaves(policy.obs_space)]
        self.memory_paths = [] if policy.recurrence is None else _hidden_of_actions(policy)
        self.eval().requires_grad_(False)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        policy, model = self.policy, self.model
        obs = from_named_leaves({path: inputs[_name("obs", path)] for path in self.paths})
        if policy.recurrence is None:
            seen = policy.inputs(obs)
            logit, after = model.compute_actor(seen), {}
        else:
            state = self._hidden(inputs, policy.recurrence.initial_hidden(inputs["first"].shape[0]))
            seen = policy.inputs(obs, state)
            logit, _, state = model.step(seen)
            after = {_name("next_state", path): leaf_at(state, path) for path in self.memory_paths}
        action = map_tree(lambda leaf: leaf.numpy(), policy.distribution(seen, logit).mode())
        action = map_tree(torch.from_numpy, model.actor_head.to_env(action))
        return {**_named("action", action), **_named("logit", logit), **after}

    def _hidden(self, inputs: Mapping[str, Tensor], initial: Tree) -> Tree:
        """Returns the hidden states (N, ...) before this step; initial where no action depends on them."""
        given = {path: inputs[_name("state", path)] for path in self.memory_paths}
        state = from_named_leaves({path: given.get(path, leaf) for path, leaf in named_leaves(initial)})
        return chosen_hidden(inputs["first"], initial, state)

    def example(self) -> dict[str, Tensor]:
        """Returns inputs of two observations."""
        obs, recurrence = _one_observation(self.policy), self.policy.recurrence
        inputs = _named("obs", map_tree(lambda leaf: torch.cat([leaf, leaf]), obs))
        if recurrence is not None:
            state = recurrence.initial_hidden(2)
            inputs["first"] = torch.tensor([True, False])
            inputs |= {_name("state", path): leaf_at(state, path) for path in self.memory_paths}
        return inputs


def _name(kind: str, path: Sequence[str]) -> str:
    """Returns the name of an input or output, such as "obs" or "obs.position"."""
    return ".".join((kind, *path))


def _named(kind: str, tree: Tree) -> dict[str, Any]:
    return {_name(kind, path): leaf for path, leaf in named_leaves(tree)}


def _one_observation(policy: PPOPolicy) -> Tree:
    return map_tree(torch.as_tensor, example_observations(policy.obs_space, 1))


def _hidden_of_actions(policy: PPOPolicy) -> list[tuple[str, ...]]:
    """Returns the paths of the hidden states that actions depend on; a value network may have others.

    They are found by a gradient: first those that reach this step's actions, then those that reach the hidden
    states found so far.
    """
    assert policy.recurrence is not None
    state = map_tree(lambda leaf: leaf.requires_grad_(), policy.recurrence.initial_hidden(1))
    leaves = dict(named_leaves(state))
    logit, _, after = policy.model.step(policy.inputs(_one_observation(policy), state))
    found: set[tuple[str, ...]] = set()
    reached = [leaf for _, leaf in named_leaves(logit)]
    while reached:
        total = sum((leaf.sum() for leaf in reached), torch.zeros(()))
        gradients = torch.autograd.grad(total, list(leaves.values()), retain_graph=True, allow_unused=True)
        new = {path for path, grad in zip(leaves, gradients, strict=True) if grad is not None} - found
        reached = [leaf_at(after, path) for path in new]
        found |= new
    return [path for path in leaves if path in found]


def export_policy(
    run: str | Path,
    output: str | Path,
    *,
    observations: int = 512,
    seed: int = 0,
    trust: Sequence[str] = (),
) -> dict[str, Any]:
    """Writes the policy of a run to a file, and a manifest to ``<output>.json``.

    Args:
        run: a run's folder, whose best checkpoint is used, or a checkpoint.
        output: a ``.onnx`` file, or a ``.pt2`` file for ``torch.export.load``.
        observations: of the run's environment, at least so many, on which the file must act as the policy.
        seed: of the episodes from which these observations are recorded.
        trust: modules that the checkpoint's config may import.

    Returns:
        the manifest.

    Raises:
        ConfigError: if the file cannot be written, or a package that it needs is not installed.
        ContractError: if the policy does something that the file cannot hold.
        DingLiteError: if the file acts otherwise than the policy; no file is written then.
        CheckpointError: if there is no checkpoint, or its config names a module that is not trusted.
        EnvError: if the environments of the run cannot be made.
    """
    output = Path(output)
    _check_output(output)
    opened = open_checkpoint(Path(run), trust)
    refuse_without(opened.folder, opened.saved, "env_setting")
    module = ExportedPolicy(_exportable(opened.policy))
    described = _description(run, opened, module, output.suffix)
    data = file_of(module, output.suffix, described)
    recorded = list(record(opened.config.values.env, module.policy, observations, seed))
    parity = parity_of(runner(data, output.suffix), module, recorded)
    if not parity.holds:
        raise DingLiteError(
            f"{output} would act otherwise than {run}: on {parity.observations} observations the largest "
            f"difference is {parity.difference:.2g} (of {parity.output!r}; at most {TOLERANCE:g} is "
            f"accepted), and {parity.different_actions} discrete actions differ. No file is written"
        )
    manifest = {**described, "parity": parity._asdict()}
    _write(output, data, manifest)
    return manifest


def _description(run: str | Path, opened: Opened, module: ExportedPolicy, suffix: str) -> dict[str, Any]:
    """Returns what is known of a file before it is compared: the manifest without ``parity``."""
    config, policy, example = opened.config.values, module.policy, module.example()
    packages = ("ding_lite", "torch", "numpy", "gymnasium", *(ONNX_PACKAGES if suffix == ONNX else ()))
    return {
        "format": FORMAT_VERSION,
        "kind": suffix[1:],
        "inputs": [_port(name, tensor) for name, tensor in example.items()],
        "outputs": [_port(name, tensor) for name, tensor in module(example).items()],
        "obs_space": space_to_json(policy.obs_space),
        "action_space": space_to_json(policy.action_space),
        "source": {
            "run": str(run),
            "checkpoint": opened.folder.stem,
            "env_id": env_name(config.env),
            "policy": encode(config.policy.type, "policy.type"),
            "env_step": opened.env_step,
            "seed": config.seed,
        },
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in packages},
        },
    }


def _check_output(output: Path) -> None:
    """Raises ConfigError if the file cannot be written, or its kind needs packages that are missing."""
    if output.suffix not in (ONNX, PT2):
        raise ConfigError(f"cannot write {output}: its name must end in {ONNX} or {PT2}")
    if not output.parent.is_dir():
        raise ConfigError(f"cannot write {output}: there is no folder {output.parent}")
    if output.suffix == ONNX:
        try:
            for name in ONNX_PACKAGES:
                importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(
                f'{ONNX} files need the package {error.name}: pip install "ding_lite[export]". '
                f"{PT2} files need no other package"
            ) from error


def _write(output: Path, data: bytes, manifest: Mapping[str, Any]) -> None:
    contents = {output: data, Path(f"{output}.json"): (json.dumps(manifest, indent=1) + "\n").encode()}
    try:
        for file, content in contents.items():
            write_whole(file, content)
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error}") from error


def _exportable(policy: Policy) -> PPOPolicy:
    """Returns the policy if it acts as :class:`ExportedPolicy` does.

    Raises:
        ContractError: if it does not.
    """
    kind = type(policy)
    if not isinstance(policy, PPOPolicy):
        raise ContractError(
            f"{kind.__name__} cannot be exported: it must subclass PPOPolicy, which acts by a model "
            "and a distribution"
        )
    replaced = [name for name in ACTS if getattr(kind, name) is not getattr(PPOPolicy, name)]
    if replaced:
        raise ContractError(
            f"{kind.__name__} cannot be exported: it has a {replaced[0]} of its own, which may do anything. "
            "What changes the actions belongs in inputs(), distribution() or the model: these are exported"
        )
    for part in policy.model.modules():
        if isinstance(part, Encoder) and part.dtype != torch.float32:
            raise ContractError(
                "a policy with policy.model.encoder_dtype='bfloat16' cannot be exported: other programs "
                "round differently, and its actions would change. Train it with 'float32'"
            )
    names = [_name("obs", path) for path, _ in space_leaves(policy.obs_space)]
    names += [_name("action", path) for path, _ in space_leaves(policy.action_space)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ContractError(
            f"two branches of a space would both be named {twice[0]!r} in the file; a name with a dot in it "
            "must not equal the path to another branch"
        )
    return policy


def file_of(module: ExportedPolicy, suffix: str, manifest: Mapping[str, Any]) -> bytes:
    """Returns the content of the file: an ONNX model, or a program for ``torch.export.load``.

    Args:
        module: to trace.
        suffix: ".onnx" or ".pt2".
        manifest: stored in the file.

    Raises:
        ContractError: if the policy does something that torch.export or ONNX cannot hold.
    """
    try:
        program = _traced(module)
    except Exception as error:  # code of the user is traced
        raise ContractError(
            f"torch.export cannot trace this policy: {_cause(error)}. Its model must compute with "
            "tensors, without branches on their values"
        ) from error
    if suffix == ONNX:
        try:
            return _onnx_model(program, manifest)
        except Exception as error:
            raise ContractError(
                f"ONNX cannot hold this policy: {_cause(error)}. A {PT2} file holds every operation of torch"
            ) from error
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # torch says so of weights in another order in memory, such as channels_last; it saves all of them.
        warnings.filterwarnings("ignore", "No complete tensor found in the group", UserWarning)
        torch.export.save(program, buffer, extra_files={METADATA_KEY: json.dumps(manifest)})
    return buffer.getvalue()


def _cause(error: BaseException) -> str:
    """Returns the first line of the error that began a chain of errors: torch adds pages to it."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0].rstrip('.')}"


def _traced(module: ExportedPolicy) -> ExportedProgram:
    example = module.example()
    batch = Dim("batch")
    sizes = {name: {0: batch} for name in example}
    # Strict: TorchDynamo traces the conversion of actions, which is written in NumPy, too.
    program = torch.export.export(module, (example,), dynamic_shapes=(sizes,), strict=True)
    signature = program.graph_signature
    for name in {*program.state_dict} - {*signature.parameters, *signature.buffers}:
        del program.state_dict[name]  # of the value network
    return program


def _onnx_model(program: ExportedProgram, manifest: Mapping[str, Any]) -> bytes:
    names = {kind: [port["name"] for port in manifest[kind]] for kind in ("inputs", "outputs")}
    with _quiet():
        converted = torch.onnx.export(
            program, dynamo=True, verbose=False, input_names=names["inputs"], output_names=names["outputs"]
        )
    assert converted is not None
    graph = converted.model.graph
    for value in (*graph.inputs, *graph.outputs):
        assert value.shape is not None
        value.shape[0] = "batch"
    converted.model.metadata_props[METADATA_KEY] = json.dumps(manifest)
    content: bytes = converted.model_proto.SerializeToString()
    return content


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides what torch.onnx says about itself: missing torchvision, and its own deprecated calls."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def runner(data: bytes, suffix: str) -> Runner:
    """Returns the function of an exported file: named arrays in, named arrays out.

    Args:
        data: content of the file.
        suffix: ".onnx" or ".pt2".
    """
    if suffix == ONNX:
        import onnxruntime

        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return lambda inputs: dict(zip(names, session.run(None, dict(inputs)), strict=True))
    program = torch.export.load(io.BytesIO(data)).module()
    return lambda inputs: _arrays(program(_tensors(inputs)))


def _tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _arrays(tensors: Mapping[str, Tensor]) -> Arrays:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


class Recorded(NamedTuple):
    """One step of B environments.

    Attributes:
        obs: (B, ...).
        first: (B,), whether an episode begins.
        action: (B, ...), of ``policy.act``.
    """

    obs: Tree
    first: np.ndarray
    action: Tree


def record(env_cfg: Mapping[str, Any], policy: PPOPolicy, observations: int, seed: int) -> Iterator[Recorded]:
    """Yields the steps of some episodes that ``policy.act`` plays, until they have enough observations."""
    envs = make_vector_env(env_cfg, min(MAX_ENVS, env_cfg["evaluator_env_num"]), seed, evaluate=True)
    try:
        policy.reset()
        obs, first = envs.reset("export"), np.ones(envs.num_envs, bool)
        for _ in range(-(-observations // envs.num_envs)):
            obs = map_tree(np.array, obs)  # the environments overwrite theirs
            action = to_tree(policy.act(obs), policy.action_space)
            yield Recorded(obs, first, action)
            transition = envs.step(action)
            obs, first = transition.obs, ends_of(transition)
            policy.reset(first)
    finally:
        envs.close()


def parity_of(run: Runner, module: ExportedPolicy, recorded: Sequence[Recorded]) -> Parity:
    """Compares an exported file with the policy, step by step; each remembers for itself.

    Actions are compared with those of ``policy.act``, the other outputs with those of ``module`` in torch.
    The first step is also taken with one observation alone, since the size of a batch may vary.

    Args:
        run: the file.
        module: from which the file was made.
        recorded: consecutive steps.
    """
    differences: dict[str, float] = {}
    different_actions = 0
    one = Recorded(*(map_tree(lambda leaf: leaf[:1], part) for part in recorded[0]))
    for steps in ([one], recorded):
        expected: Arrays = {}
        actual: Arrays = {}
        for step in steps:
            expected = _arrays(module(_tensors(_inputs(module, step, expected))))
            actual = run(_inputs(module, step, actual))
            wrong_rows = np.zeros(len(step.first), bool)
            for name, wanted in {**expected, **_named("action", step.action)}.items():
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
    observations = sum(len(step.first) for step in recorded)
    return Parity(observations, float(differences[output]), output, different_actions)


def _inputs(module: ExportedPolicy, step: Recorded, before: Arrays) -> Arrays:
    """Returns the inputs of a step, after a step with the outputs ``before``; empty: there is none."""
    inputs: Arrays = _named("obs", step.obs)
    recurrence = module.policy.recurrence
    if recurrence is None:
        return inputs
    initial = recurrence.initial_hidden(len(step.first))
    state = before or _named("next_state", map_tree(Tensor.numpy, initial))
    remembered = {_name("state", path): state[_name("next_state", path)] for path in module.memory_paths}
    return {**inputs, "first": step.first, **remembered}


MEANINGS = {
    "obs": "observation, as the environment returns it",
    "first": "whether an episode begins, which resets its memory",
    "state": "memory: next_state of the step before; any numbers where an episode begins",
    "action": "action, as env.step takes it",
    "logit": "parameters of the action distribution, before the mask",
    "next_state": "memory after this step",
}


def _port(name: str, example: Tensor) -> dict[str, Any]:
    """Returns what the manifest says of an input or output."""
    kind, *path = name.split(".")
    is_mask = kind == "obs" and path[:1] == [MASK_KEY]
    return {
        "name": name,
        "dtype": str(example.numpy().dtype),
        "shape": ["batch", *example.shape[1:]],
        "meaning": "1 where an action is legal, else 0" if is_mask else MEANINGS[kind],
    }
