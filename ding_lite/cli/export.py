"""``ding-lite export``: writes a trained policy to a file for other programs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ding_lite.cli.common import (
    add_json,
    add_run,
    add_seed,
    add_trust,
    path_text,
    positive_number,
    trusted_modules,
)
from ding_lite.cli.process import stdout_to_stderr

SUMMARY = "write a trained policy to an ONNX file, or to one of torch.export"
DESCRIPTION = """\
Writes a trained policy to one file that acts without ding_lite: policy.onnx for onnxruntime and
others, or policy.pt2 for torch.export.load. The file takes observations as the environment
returns them and puts out greedy actions as the environment takes them, in batches of any size.
It holds the scale of observations, action masks, the memory and the bounds of actions.

Plays the environment of the run and compares the file with the policy. If a number differs by
more than 1e-5 (relative for numbers above 1), or a discrete action is another one, no file is
written. Beside the file, policy.onnx.json names and describes its inputs and outputs. ONNX needs
more packages: pip install "ding_lite[export]".
"""
EXAMPLES = """\
examples:
  ding-lite export runs/cartpole_ppo -o policy.onnx      the best checkpoint, for onnxruntime
  ding-lite export runs/cartpole_ppo/ckpt/last -o policy.pt2
                                                         the last one, for torch.export.load
  ding-lite export runs/my_run --import my_policies      a run whose policy is in my_policies.py
"""
PRELOAD = ("ding_lite.tools.export",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``ding-lite export``."""
    add_run(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=path_text,
        default="policy.onnx",
        metavar="FILE",
        help="the file, a .onnx or .pt2 (default: policy.onnx)",
    )
    parser.add_argument(
        "-n",
        "--observations",
        type=positive_number,
        default=512,
        metavar="N",
        help="number of observations on which the file is compared with the policy (default: 512)",
    )
    add_seed(parser, "seed of these episodes")
    add_json(parser)
    add_trust(parser)


def run(args: argparse.Namespace) -> int:
    """Writes the file and its manifest, and prints what is in them."""
    from ding_lite.tools.export import export_policy

    output = Path(args.output)
    with stdout_to_stderr():
        manifest = export_policy(
            args.run,
            output,
            observations=args.observations,
            seed=args.seed,
            trust=trusted_modules(args),
        )
    print(json.dumps(manifest) if args.json else _summary(output, manifest))
    return 0


def _summary(output: Path, manifest: Mapping[str, Any]) -> str:
    source, parity = manifest["source"], manifest["parity"]
    compared = (
        f"on {parity['observations']} observations the largest difference is {parity['difference']:.1e}"
    )
    if any(
        port["name"].startswith("action") and "float" not in port["dtype"] for port in manifest["outputs"]
    ):
        compared += f", and {parity['different_actions']} discrete actions differ"
    lines = [
        f"file      {output} ({output.stat().st_size / 1000:,.0f} kB), described in {output}.json",
        f"policy    {source['policy']} on {source['env_id']}, {source['checkpoint']} of {source['run']} "
        f"at {source['env_step']:,} env steps",
        *_port_lines("inputs", manifest["inputs"]),
        *_port_lines("outputs", manifest["outputs"]),
        f"parity    {compared}",
    ]
    return "\n".join(lines)


def _port_lines(title: str, ports: Sequence[Mapping[str, Any]]) -> list[str]:
    width = max(len(port["name"]) for port in ports)
    lines = []
    for i, port in enumerate(ports):
        shape = ", ".join(map(str, port["shape"]))
        lines.append(f"{'' if i else title:<10}{port['name']:<{width}}  {port['dtype']} ({shape})")
    return lines
