"""Trains: ``python entry/train.py -c cartpole_ppo``, the same as ``ding-lite train``."""

import sys

from ding_lite.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
