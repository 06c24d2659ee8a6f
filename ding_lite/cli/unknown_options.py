"""What is said about an option that a command does not have: the option or the key that was meant."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Collection

from ding_lite.cli.common import KEY_OPTIONS

POLICIES = ("ppo", "ppg")  # keys are looked up in the schemas of these, in this order
POLICY_WORDS = ("algo", "algorithm", "alg", "agent")  # for --policy, in other libraries


def unknown_option(command: str, parser: argparse.ArgumentParser, token: str) -> str:
    """Returns the message for an option that a command does not have.

    Args:
        command: name of the command.
        parser: of the command.
        token: the argument, such as "--learning-rate" or "--sed=3".
    """
    options = [option for action in parser._actions for option in action.option_strings]
    option = token.partition("=")[0]
    meant = _meant(option, options)
    hint = f"; {meant}" if meant else f"; `ding-lite {command} --help` shows its options"
    return f"unknown option {option} of {command}{hint}"


def _meant(option: str, options: Collection[str]) -> str:
    """Returns what to write for an unknown option, or "" if nothing is like it."""
    name = option.lstrip("-").replace("-", "_")
    spelled = f"--{name.replace('_', '-')}"
    if spelled in options:
        return f"did you mean {spelled}?"
    takes_keys = "--policy" in options
    if takes_keys and name in POLICY_WORDS:
        return f"write {' or '.join(f'--policy {policy}' for policy in POLICIES)}"
    advice = _key_advice(name, options) if takes_keys else ""
    close = difflib.get_close_matches(spelled, options, n=1, cutoff=0.7) if len(name) > 1 else []
    return advice or (f"did you mean {close[0]}?" if close else "")


def _key_advice(name: str, options: Collection[str]) -> str:
    """Returns how to set the key that ``name`` means, here or in another library; "" if it means none."""
    from ding_lite.config.compile import schema_of
    from ding_lite.config.schema import paths_named

    found = (paths_named(name, schema_of({"policy": {"type": policy}})[0]) for policy in POLICIES)
    paths = next(filter(None, found), [])
    if not paths:
        return ""
    long_options = {key: f"--{key.replace('_', '-')}" for _, _, key in KEY_OPTIONS}
    short = [option for key, option in long_options.items() if key == paths[0] and option in options]
    written = [*short, *(f"{path}=..." for path in paths)]
    return f"write {' or '.join(written)}"
