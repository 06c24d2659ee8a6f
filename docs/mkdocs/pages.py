"""What the pages say from the code: keys, commands, names, configs, examples, and tables.

On the site, the Markdown of a function of this file takes the place of ``<!-- generated: FUNCTION -->`` and
of the lines up to ``<!-- end -->``. Between ``<!-- table: FUNCTION -->`` and ``<!-- end -->`` a page has the
table itself, for readers of the file; ``python docs/mkdocs/pages.py`` writes these tables.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

import ding_lite
from ding_lite import errors
from ding_lite.cli.list import LISTS, entries
from ding_lite.cli.main import COMMANDS
from ding_lite.cli.main import commands as command_group
from ding_lite.config.di_engine import FIXED
from ding_lite.config.registry import WRAPPER_REGISTRY
from ding_lite.config.schema import Key
from ding_lite.run.resume import EFFECTS
from ding_lite.tools.key_reference import POLICIES, defaults_of, keys_of_policies, rules

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
    "benchmarks/notes/learning.md",
    "benchmarks/notes/speed.md",
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
        lines += [
            "",
            f"### {title}",
            "",
            f"Section `{section}`." if section else "The top level of a config.",
        ]
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
        _inline(key.doc),
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
        lines += ["", f"### ding-lite {name}", "", "```text", text, "```"]
    return "\n".join(lines) + "\n"


def names() -> str:
    """Returns a table for every kind of registered name."""
    lines: list[str] = []
    for kind in LISTS:
        if kind == "configs":
            continue
        lines += ["", f"### {kind.capitalize()}", "", "| name | |", "|---|---|"]
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


def api_page() -> str:
    """Returns the page with the docstrings of the public names."""
    lines = ["# Library", "", "What `import ding_lite` offers, each with its docstring."]
    lines += [f"\n::: {_home(name)}" for name in ding_lite.__all__ if _is_documented(name)]
    return "\n".join(lines) + "\n"


def _is_documented(name: str) -> bool:
    value = getattr(ding_lite, name)
    return inspect.isclass(value) or inspect.isfunction(value)


def _home(name: str) -> str:
    return f"{getattr(ding_lite, name).__module__}.{getattr(ding_lite, name).__name__}"


# Pages that are made from the code, by the folder that they show.
PAGES = {"configs": configs_page, "examples": examples_page, "ding_lite": api_page}


# ---------------------------------------------------------------------- tables of the pages

TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def with_tables(markdown: str) -> str:
    """Returns a page with its tables as the code is now."""
    return TABLE.sub(lambda match: match[1] + globals()[match[2]]() + match[3], markdown)


def wrappers() -> str:
    """Returns a table of the wrappers with their arguments."""
    lines = ["| name | arguments | effect |", "|---|---|---|"]
    for name, summary in entries("wrappers"):
        lines.append(f"| `{name}` | {_arguments(WRAPPER_REGISTRY.get(name))} | {_inline(summary)} |")
    return "\n".join(lines) + "\n"


def _arguments(wrapper: Any) -> str:
    """Returns the arguments of a wrapper behind the environment, with their defaults."""
    found = list(inspect.signature(wrapper).parameters.values())[1:]
    named = [p for p in found if p.kind is not p.VAR_KEYWORD and p.name not in ("evaluate", "index")]
    return ", ".join(
        f"`{p.name}`" if p.default in (p.empty, None) else f"`{p.name}={p.default}`" for p in named
    )


def resume_changes() -> str:
    """Returns a table of what may change when a run is resumed."""
    meaning = {
        "free": "applied: nothing that is learned depends on it",
        "warned": "applied with a warning: the numbers differ from those of a run that never stopped",
        "refused": "an error, since the saved state would not fit; so are all keys that are not here",
    }
    lines = ["| change | keys |", "|---|---|"]
    for effect, text in meaning.items():
        keys = ", ".join(f"`{path}`" for path, found in EFFECTS.items() if found == effect)
        lines.append(f"| {effect}: {text} | {keys} |")
    return "\n".join(lines) + "\n"


def fixed_keys() -> str:
    """Returns a table of DI-engine's keys that have one value."""
    lines = ["| key | only | because |", "|---|---|---|"]
    lines += [f"| `{path}` | `{value!r}` | {_inline(reason)} |" for path, (value, reason) in FIXED.items()]
    return "\n".join(lines) + "\n"


def exceptions() -> str:
    """Returns a table of the exceptions with their exit codes."""
    found = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, errors.DingLiteError)]
    lines = ["| exception | exit code | |", "|---|---|---|"]
    for error in found:
        text = (inspect.getdoc(error) or "").split("\n")[0].removeprefix("Raised when ")
        lines.append(f"| `{error.__name__}` | {error.exit_code} | {as_markdown(text)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for page in sorted((ROOT / "docs").glob("*.md")):
        page.write_text(with_tables(page.read_text()))
