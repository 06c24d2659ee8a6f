"""Help, version, and what it takes to add a command."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import TEXTS

from ding_lite.cli import options
from ding_lite.cli.main import COMMANDS, commands

PROGRAM = (sys.executable, "-m", "ding_lite")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, well):
    assert well(command, "--help").startswith(f"Usage: ding-lite {command} ")


def test_the_examples_of_the_help_are_commands_with_their_options():
    lines = [line.strip().partition("  ")[0] for line in commands.help.splitlines()]
    examples = [shlex.split(line)[1:] for line in lines if line.startswith("ding-lite ")]
    assert len(examples) == 10
    for name, *words in examples:
        command = commands.get_command(None, name)
        command.make_context(name, words)


def values_of(parameter):
    """Values of an option or argument, as a command gets them."""
    if parameter.name == "seeds":
        return st.lists(st.integers(0), unique=True).map(tuple)
    if getattr(parameter, "is_flag", False):
        return st.booleans()
    if isinstance(parameter.type, click.IntRange):
        return st.integers(1)
    if parameter.multiple or parameter.nargs < 0:
        return st.lists(TEXTS).map(tuple)
    return st.none() | (TEXTS.map(Path) if isinstance(parameter.type, click.Path) else TEXTS)


@pytest.mark.parametrize("name", ["train", "sweep"])
@given(st.data())
def test_a_command_gives_its_options_to_another_process(name, data):
    command = commands.get_command(None, name)
    with click.Context(command, info_name=name) as context:
        context.params = {each.name: data.draw(values_of(each), each.name) for each in command.params}
        found, *words = options.words_with()
    assert (found, command.make_context(name, words).params) == (name, context.params)


def test_script_and_module_are_the_same_program(tmp_path):
    script = (os.path.join(os.path.dirname(sys.executable), "ding-lite"),)
    said = {
        subprocess.run([*program, "--version"], cwd=tmp_path, capture_output=True, text=True).stdout
        for program in (script, PROGRAM)
    }
    assert said == {"ding_lite 0.1.0\n"}
