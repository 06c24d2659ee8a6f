"""What the site says from the code: keys, commands, names, configs, examples.

A page has ``<!-- generated: FUNCTION -->`` where the Markdown of a function of this file belongs. It replaces
the lines up to ``<!-- end -->``, which say where else a reader finds it.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable
from pathlib import Path

import click

import ding_lite
from ding_lite.cli.list import LISTS, entries
from ding_lite.cli.main import COMMANDS
from ding_lite.cli.main import commands as command_group
from ding_lite.config.schema import Key
from ding_lite.tools.key_reference import POLICIES, defaults_of, keys_of_policies, rules, sentences

# Names with an underscore or a dot, quoted strings, and what is code already.
CODE = re.compile(r"``[^`]+``|`[^`]+`|\"[^\"]*\"|\b[A-Za-z]\w*(?:[._]\w+)+(?:=(?:\w+|\"[^\"]*\"))?")
ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc):`~?(?:[\w.]*\.)?(\w+)`")
ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/RESULTS.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "benchmarks/curves").glob("*.png")),
)
# The titles of sections, and what is in them. Keys of other sections are listed under the section above them.
SECTIONS = {
    "": "The run",
    "checkpoint": "Checkpoints",
    "logger": "Logs",
    "env": "Environments",
    "env.manager": "What steps the environments",
    "policy": "The policy",
    "policy.model": "The networks",
    "policy.learn": "Learning",
    "policy.collect": "Collecting",
    "policy.eval": "Evaluation",
    "policy.normalize": "Scales of observations and rewards",
    "policy.intrinsic": "Intrinsic reward",
    "policy.other.replay_buffer": "The replay buffer",
}


def keys() -> str:
    """Returns a section for each section of a config, with its keys."""
    found = keys_of_policies()
    lines: list[str] = []
    for section, title in SECTIONS.items():
        lines += ["", f"## {title}", "", f"Section `{section}`." if section else "The top level of a config."]
        for path, key in found.items():
            if _section_of(path) == section:
                lines += _key_lines(path, key)
    return "\n".join(lines) + "\n"


def _section_of(path: str) -> str:
    """Returns the section that a key is listed under: the longest one that its path begins with."""
    return max((s for s in SECTIONS if not s or path.startswith(f"{s}.")), key=len)


def _key_lines(path: str, by_policy: dict[str, Key]) -> list[str]:
    """Returns the Markdown of one key: a heading, a line of facts, and its effect."""
    key = next(iter(by_policy.values()))
    facts = [rules(key).replace("|", "\\|"), _defaults(by_policy)]
    if len(by_policy) < len(POLICIES):
        facts.append(f"only {_names(by_policy)}")
    return [
        "",
        f"#### `{path}` {{ #{path} .key }}",
        "",
        " · ".join(facts),
        "{ .facts }",
        "",
        _inline(sentences(key)),
    ]


def _defaults(by_policy: dict[str, Key]) -> str:
    """Returns "default `0.0003`, for ppg `0.0005`"."""
    (first, _), *others = defaults_of(by_policy).items()
    return ", ".join([f"default `{first}`", *(f"for {_names(names)} `{value}`" for value, names in others)])


def _names(policies: Iterable[str]) -> str:
    return " and ".join(f"`{name}`" for name in policies)


def _inline(text: str) -> str:
    """Returns a comment of the code as Markdown: names of keys and quoted values as code, no markup else."""
    parts = []
    end = 0
    for match in CODE.finditer(text):
        parts += [_escaped(text[end : match.start()]), f"`{match[0].strip('`')}`".replace("|", "\\|")]
        end = match.end()
    return "".join([*parts, _escaped(text[end:])])


def _escaped(text: str) -> str:
    return re.sub(r"([*_|<>\[\]])", r"\\\1", text)


def as_markdown(text: str) -> str:
    """Returns a docstring, which is written for `help()`, with the roles and literal blocks of Markdown."""
    text = re.sub(r"``([^`]+)``", r"`\1`", ROLE.sub(r"`\1`", text))
    return re.sub(r"::$", ":", text, flags=re.MULTILINE)


def commands() -> str:
    """Returns the help of every command."""
    program = click.Context(command_group, info_name="ding-lite", terminal_width=100)
    lines = ["```text", command_group.get_help(program), "```"]
    for name in COMMANDS:
        command = command_group.get_command(program, name)
        assert command is not None
        text = command.get_help(click.Context(command, program, name, terminal_width=100))
        lines += ["", f"## ding-lite {name}", "", "```text", text, "```"]
    return "\n".join(lines) + "\n"


def names() -> str:
    """Returns a table for every kind of registered name."""
    lines: list[str] = []
    for kind in LISTS:
        if kind == "configs":
            continue
        lines += ["", f"## {kind.capitalize()}", "", "| name | |", "|---|---|"]
        lines += [f"| `{name}` | {_inline(summary)} |" for name, summary in entries(kind)]
    return "\n".join(lines) + "\n"


def configs_page() -> str:
    """Returns the page with every shipped config."""
    lines = [
        "# Shipped configs",
        "",
        "`ding-lite train -c NAME` trains with one of these, `ding-lite config -c NAME` prints its keys.",
    ]
    for name, summary in entries("configs"):
        code = (ROOT / "configs" / f"{name}.py").read_text().rstrip()
        lines += ["", f"## {name} {{ #{name} }}", "", _inline(summary), "", "```python", code, "```"]
    return "\n".join(lines) + "\n"


def examples_page() -> str:
    """Returns the page with every example."""
    lines = ["# Examples", "", "Each is one file of the folder `examples/`, and each is run by the tests."]
    for file in sorted((ROOT / "examples").glob("*.py")):
        code = file.read_text()
        summary = (ast.get_docstring(ast.parse(code)) or "").split("\n")[0]
        lines += [
            "",
            f"## {file.stem.replace('_', ' ').capitalize()}",
            "",
            summary,
            "",
            "```python",
            code.rstrip(),
            "```",
        ]
    return "\n".join(lines) + "\n"


def public_names() -> str:
    """Returns a table with the names that the library offers at its top."""
    lines = ["| name | | defined in |", "|---|---|---|"]
    for name in ding_lite.__all__:
        value = getattr(ding_lite, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            home, summary = value.__module__, (inspect.getdoc(value) or "").split("\n")[0]
        else:
            home, summary = type(value).__module__, inspect.getdoc(type(value)) or ""
        lines.append(f"| `{name}` | {_inline(as_markdown(summary.splitlines()[0]))} | `{home}` |")
    return "\n".join(lines) + "\n"
