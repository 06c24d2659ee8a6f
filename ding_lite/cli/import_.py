"""``ding-lite import``: converts a file of weights to a checkpoint for ``train --init-from``."""

from __future__ import annotations

import argparse

SUMMARY = "convert a file of weights to a checkpoint for train --init-from"
DESCRIPTION = """\
Converts a state dict that another program saved to a checkpoint, from which `ding-lite train
--init-from` starts. A .pt file is read with weights_only=True: no code in it is executed.
"""
EXAMPLES = """\
examples:
  ding-lite import weights.pt -o imported
  ding-lite train -c cartpole_ppo --init-from imported
"""
PRELOAD = ("ding_lite.run.warm_start",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``ding-lite import``."""
    parser.add_argument(
        "file", metavar="FILE", help="a .pt or .safetensors file with a state dict of tensors"
    )
    parser.add_argument("-o", "--output", required=True, metavar="CKPT", help="folder of the new checkpoint")


def run(args: argparse.Namespace) -> int:
    """Writes the checkpoint and prints the command that uses it."""
    from ding_lite.run.warm_start import import_weights

    count = import_weights(args.file, args.output)
    print(f"{count} tensors -> {args.output}   try: ding-lite train -c FILE --init-from {args.output}")
    return 0
