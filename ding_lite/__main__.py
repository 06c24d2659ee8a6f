"""Runs the command line: ``python -m ding_lite`` is the same as the command ``ding-lite``."""

import sys

from ding_lite.cli import main

if __name__ == "__main__":
    sys.exit(main())
