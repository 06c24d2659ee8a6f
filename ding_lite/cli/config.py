"""``ding-lite config``: shows every key of a config, its value, and the source of the value."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from ding_lite.cli import options
from ding_lite.errors import ConfigError


@options.command()
@options.config_options
@options.option("--json", "print a JSON file that -c accepts")
@options.option(
    "--explain TEXT",
    "print value, type, range and effect of the keys whose path contains TEXT; without -c and --env: for "
    "all policies, with the defaults",
)
@options.option(
    "-o --output FILE",
    "write a new .py file that -c accepts, with the keys that are not defaults",
    options.file_of(".py"),
)
def run(source: options.Source, json: bool, explain: str | None, output: Path | None) -> None:
    """Shows every key of a config, its value and its source.

    The value of a key comes from its default, the config file, the command line, or other keys. Each key
    can be set as key.path=value. With --env the config is the one that ding-lite train --env begins with.

    A file of DI-engine (main_config and create_config) is shown as the config that it becomes here; what
    was converted or left out is printed to stderr. -o FILE writes it as a config of ding_lite.
    """
    from ding_lite.config.compile import save_config
    from ding_lite.config.schema import leaves
    from ding_lite.config.values import plain

    if sum(map(bool, (json, explain is not None, output))) > 1:
        raise ConfigError("--json, --explain and -o exclude each other")
    if explain is not None:
        _explain(explain, source)
        return
    config = source.read()
    for note in config.notes:
        print(note, file=sys.stderr)
    if output:
        save_config(config, output)
        imports = "".join(f" --import {module}" for module in source.imports)
        print(f"{output} is written   try: ding-lite train -c {output}{imports}")
    elif json:
        options.print_json(config.as_json(), indent=2)
    else:
        rows = [(path, repr(value), config.source[path]) for path, value in leaves(plain(config.values))]
        options.print_table(["key", "value", "source"], rows)


def _explain(text: str, source: options.Source) -> None:
    """Prints the keys that a text names: in their path, in another library, or in their explanation.

    Raises:
        ConfigError: if there is none.
    """
    from ding_lite.config.compile import POLICIES
    from ding_lite.config.schema import leaves, paths_named
    from ding_lite.config.values import plain
    from ding_lite.tools.key_reference import defaults_of, keys_of, keys_of_policies, rules

    values = {}
    policies = [source.policy] if source.policy else POLICIES
    if source or source.overrides:
        config = source.read()
        values = dict(leaves(plain(config.values)))
        policies = [config.values.policy.type]
        keys = {path: {policies[0]: key} for path, key in keys_of(config.values).items() if path in values}
    else:
        keys = keys_of_policies(policies)
    key_of = {path: next(iter(by_policy.values())) for path, by_policy in keys.items()}
    paths = (
        [path for path in keys if text in path]
        or paths_named(text.replace("-", "_"), key_of)
        or [path for path, key in key_of.items() if text.lower() in key.doc.lower()]
    )
    if not paths:
        raise ConfigError(
            f"--explain: no key contains {text!r}, nor its explanation; `ding-lite config -c NAME` lists all"
        )
    for path in paths:
        (first, _), *others = defaults_of(keys[path]).items()
        value = repr(values[path]) if values else first
        shown = ", ".join([value, *(f"{' and '.join(names)}: {other}" for other, names in others)])
        only = "" if len(keys[path]) == len(policies) else f"; only {' and '.join(keys[path])}"
        print(f"{path} = {shown}    ({rules(key_of[path])}{only})")
        print(textwrap.indent(textwrap.fill(key_of[path].doc, 100), "    "))
