"""The options of ``ding-lite plot`` and ``ding-lite compare`` about their pictures."""

from __future__ import annotations

import argparse


def add_picture_options(parser: argparse.ArgumentParser, names: str) -> None:
    """Adds ``--panels`` and ``--width``.

    Args:
        parser: of the command.
        names: of the panels.
    """
    parser.add_argument(
        "--panels", metavar="NAME,...", help=f"draw only these plots of the picture: {names} (default: all)"
    )
    parser.add_argument(
        "--width",
        type=float,
        metavar="INCHES",
        help="width of the picture, such as 3.3 for a column of a paper (default: as the plots need it)",
    )


def panels_of(args: argparse.Namespace) -> list[str]:
    """Returns the names of ``--panels``; empty: all."""
    return [name.strip() for name in args.panels.split(",")] if args.panels else []
