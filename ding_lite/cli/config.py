"""``ding-lite config``: shows every key of a config, its value, and the source of the value."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ding_lite.cli.options import PATH, Source, command, config_options, option, print_json, print_table
from ding_lite.errors import ConfigError

if TYPE_CHECKING:
    from ding_lite.config.compile import Config
    from ding_lite.config.schema import Key

FORM = "Form, such as: --explain clip"


@command()
@config_options
@option("--json", is_flag=True, group=FORM, help="print a JSON file that -c accepts")
@option(
    "--explain",
    metavar="TEXT",
    group=FORM,
    help="print value, type, range and effect of the keys whose path contains TEXT; without -c and --env: of "
    "all policies, with the defaults",
)
@option(
    *("-o", "--output"),
    type=PATH,
    metavar="FILE",
    group=FORM,
    help="write a new file that -c accepts: a .py file with the keys that are not defaults, or a .json file "
    "with all keys",
)
def run(source: Source, json: bool, explain: str | None, output: str | None) -> None:
    """Shows every key of a config, its value and its source.

    The value of a key comes from its default, the config file, the command line, or other keys. Each key
    can be set as key.path=value.

    A file of DI-engine (main_config and create_config) is shown as the config that it becomes here; what
    was converted or left out is printed to stderr. -o FILE keeps it as a config of ding_lite.
    """
    from ding_lite.config.compile import save_config
    from ding_lite.config.schema import leaves
    from ding_lite.config.values import plain

    if explain is not None and not (source or source.overrides):
        _explain_defaults(explain, [source.policy] if source.policy else [])
        return
    config = source.read()
    for note in config.notes:
        print(note, file=sys.stderr)
    if output:
        save_config(config, output)
        print(f"{output} is written   try: ding-lite train -c {output}")
    elif json:
        print_json(config.as_json(), indent=2)
    elif explain is not None:
        _explain(explain, config)
    else:
        rows = [(path, repr(value), config.source[path]) for path, value in leaves(plain(config.values))]
        print_table(["key", "value", "source"], rows)


def _explain(text: str, config: Config) -> None:
    """Prints the keys of a config that a text names, with their values."""
    from ding_lite.config.schema import leaves
    from ding_lite.config.values import plain
    from ding_lite.tools.key_reference import keys_of

    values = dict(leaves(plain(config.values)))
    keys = {path: key for path, key in keys_of(config.values).items() if path in values}
    for path in _named(text, keys):
        _print_key(path, keys[path], repr(values[path]))


def _explain_defaults(text: str, policies: list[str]) -> None:
    """Prints the keys of policies, or of all that are shipped, that a text names, with their defaults."""
    from ding_lite.tools.key_reference import POLICIES, defaults_of, keys_of_policies

    policies = policies or list(POLICIES)
    keys = keys_of_policies(policies)
    for path in _named(text, {path: next(iter(key.values())) for path, key in keys.items()}):
        (first, _), *others = defaults_of(keys[path]).items()
        default = ", ".join([first, *(f"{' and '.join(names)}: {value}" for value, names in others)])
        only = "" if len(keys[path]) == len(policies) else f"; only {' and '.join(keys[path])}"
        _print_key(path, next(iter(keys[path].values())), default, only)


def _named(text: str, keys: Mapping[str, Key]) -> list[str]:
    """Returns the keys with a text in their path, of another library's word for them, or explained by it.

    Raises:
        ConfigError: if there is none.
    """
    from ding_lite.config.schema import paths_named

    found = (
        [path for path in keys if text in path]
        or paths_named(text.replace("-", "_"), dict(keys))
        or [path for path, key in keys.items() if text.lower() in key.doc.lower()]
    )
    if not found:
        raise ConfigError(
            f"--explain: no key contains {text!r}, and no explanation; `ding-lite config -c NAME` lists all"
        )
    return found


def _print_key(path: str, key: Key, value: str, note: str = "") -> None:
    from ding_lite.tools.key_reference import rules, sentences

    print(f"{path} = {value}    ({rules(key)}{note})")
    for line in textwrap.wrap(sentences(key), 100):
        print(f"    {line}")
