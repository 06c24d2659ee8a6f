"""``ding-lite config``: shows every key of a config, its value, and the source of the value."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING

from ding_lite.cli.options import PATH, Source, command, config_options, option, print_json, print_table
from ding_lite.errors import ConfigError

if TYPE_CHECKING:
    from ding_lite.config.compile import Config
    from ding_lite.tools.key_reference import DocumentedKey

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
    from ding_lite.tools.key_reference import documented_keys

    values = dict(leaves(plain(config.values)))
    documented = [entry for entry in documented_keys(config.values) if entry.path in values]
    for entry in _named(text, documented, [config.values.policy.type]):
        _print_key(entry, repr(values[entry.path]))


def _explain_defaults(text: str, policies: list[str]) -> None:
    """Prints the keys of policies, or of all that are shipped, that a text names, with their defaults."""
    from ding_lite.tools.key_reference import POLICIES, defaults_of, keys_of_policies

    policies = policies or list(POLICIES)
    keys = {path: key.by_policy for path, key in keys_of_policies(policies).items()}
    for entry in _named(text, [next(iter(key.values())) for key in keys.values()], policies):
        key = keys[entry.path]
        (first, _), *others = defaults_of(key).items()
        default = ", ".join([first, *(f"{' and '.join(names)}: {value}" for value, names in others)])
        _print_key(entry, default, "" if len(key) == len(policies) else f"; only {' and '.join(key)}")


def _named(text: str, documented: list[DocumentedKey], policies: list[str]) -> list[DocumentedKey]:
    """Returns the keys with a text in their path, of another library's word for them, or explained by it.

    Raises:
        ConfigError: if there is none.
    """
    from ding_lite.config.schema import paths_named
    from ding_lite.config.sections import schema_of

    word = text.replace("-", "_")
    meant = {
        path for name in policies for path in paths_named(word, schema_of({"policy": {"type": name}})[0])
    }
    keys = (
        [entry for entry in documented if text in entry.path]
        or [entry for entry in documented if entry.path in meant]
        or [entry for entry in documented if text.lower() in entry.sentences.lower()]
    )
    if not keys:
        raise ConfigError(
            f"--explain: no key contains {text!r}, and no explanation; `ding-lite config --explain {text}` "
            "looks through all policies"
        )
    return keys


def _print_key(entry: DocumentedKey, value: str, note: str = "") -> None:
    rules = f"{entry.type}, {entry.range}" if entry.range else entry.type
    print(f"{entry.path} = {value}    ({rules}{note})")
    for line in textwrap.wrap(entry.sentences, 100):
        print(f"    {line}")
