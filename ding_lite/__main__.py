"""``python -m ding_lite``: the same as the command ``ding-lite``."""

import sys

from ding_lite.cli import main

if __name__ == "__main__":
    sys.exit(main())
