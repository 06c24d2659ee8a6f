"""Evaluates: ``python entry/evaluate.py runs/cartpole_ppo -n 100``, the same as ``ding-lite eval``."""

import sys

from ding_lite.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["eval", *sys.argv[1:]]))
