"""``ding-lite import``: a foreign file of weights as a checkpoint that ``train --init-from`` takes."""

from __future__ import annotations

import argparse

from ding_lite.policies.warm_start import import_weights


def run(args: argparse.Namespace) -> int:
    """Writes the checkpoint and says what to do with it."""
    count = import_weights(args.file, args.output)
    print(f"{count} tensors -> {args.output}   try: ding-lite train -c FILE --init-from {args.output}")
    return 0
