"""What commands share: their class, options as decorators, the config that options name, tables."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ding_lite.errors import FOREIGN, ConfigError, DingLiteError, error_text, is_of_user

if TYPE_CHECKING:
    from ding_lite.config.compile import Config
    from ding_lite.tools.parallel import Pool

Decorator = Callable[[Callable[..., Any]], Any]
USER_CODE = 2  # exit code for an exception of the user's own classes, or about their files


def option(declaration: str, text: str, kind: Any = None, **more: Any) -> Decorator:
    """Returns an option.

    Args:
        declaration: its names and a placeholder for its value, as in the help: "-o --output FILE". Without
            a placeholder it is a flag.
        text: help text.
        kind: type of the value, as in click; None: a text.
        more: arguments of ``click.option``.
    """
    *names, last = declaration.split()
    if last.startswith("-"):
        return click.option(*names, last, is_flag=True, help=text, **more)
    return click.option(*names, metavar=last, type=kind, help=text, **more)


def words(name: str, metavar: str, text: str, **more: Any) -> Decorator:
    """Returns an argument of any number of words."""
    return click.argument(name, nargs=-1, metavar=metavar, help=text, **more)


class Described(click.Command):
    """A command whose help is its docstring with the docstring's line breaks."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(f"\n{inspect.cleandoc(self.help or '')}\n")


SAME = {"seeds": "seed=", "exp_name": "exp_name=", "init_from": "init_from="}  # options that are keys, too


class Command(Described):
    """A command whose errors are one paragraph."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(click.Option(["--debug"], is_flag=True, help="show the traceback of an error"))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the words; refuses a repeated option, unless it takes several values, and --key."""
        for word in args:
            if word.startswith("--") and "." in word.partition("=")[0]:
                raise click.UsageError(f"a key has no hyphens: {word[2:]} (for W&B: ${{args_no_hyphens}})")
        try:
            _, _, parameters = self.make_parser(ctx).parse_args(list(args))
        except click.NoSuchOption as error:
            hint = f" A key has no hyphens: ding-lite config --explain {error.option_name[2:]} finds it"
            takes_keys = error.option_name.startswith("--") and "key.path" in ctx.get_usage()
            raise click.UsageError(error.format_message() + hint * takes_keys, ctx) from error
        for parameter in parameters:
            if parameters.count(parameter) > 1 and not getattr(parameter, "multiple", False):
                raise click.UsageError(f"{parameter.opts[-1]} is given more than once")
            key = SAME.get(parameter.name)
            if key and any(word.startswith(key) for word in args):
                raise click.UsageError(f"{parameter.opts[-1]} and {key} are the same: type one")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; returns its exit code. With ``--json`` only the report goes to stdout."""
        arguments = {**ctx.params}
        debug = arguments.pop("debug")
        assert self.callback is not None
        try:
            with stdout_to_stderr() if arguments.get("json") else contextlib.nullcontext():
                code = ctx.invoke(self.callback, **arguments)
        except FOREIGN as error:
            # Python's own message names a file that cannot be read or written, or a missing module.
            is_expected = isinstance(error, (DingLiteError, OSError, ImportError)) or is_of_user(error)
            if isinstance(error, BrokenPipeError) or not is_expected:
                raise
            if debug:
                traceback.print_exc()
            print(f"ding-lite {self.name}: error: {error_text(error)}", file=sys.stderr)
            return error.exit_code if isinstance(error, DingLiteError) else USER_CODE
        if "report" in ctx.meta:
            print(ctx.meta["report"])
        return code


command: Callable[..., Decorator] = functools.partial(click.command, cls=Command)


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Redirects standard output to standard error, in this process and in the worker processes it starts.

    So an environment that prints something does not spoil what a program reads.
    """
    sys.stdout.flush()
    stdout = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


# ------------------------------------------------------------------ output


def print_json(report: Any, indent: int | None = None) -> None:
    """Prints JSON data when the command is done; until then ``--json`` keeps standard output empty."""
    click.get_current_context().meta["report"] = json.dumps(report, indent=indent)


def shown(text: str) -> str:
    """Returns a text of a foreign file without characters that control the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[int] = ()) -> None:
    """Prints a table; outside of a terminal each row is one line, however long.

    Args:
        header: the titles of the columns.
        rows: the cells.
        right: indices of the columns to align at the right, such as numbers.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, title in enumerate(header):
        table.add_column(Text(title), justify="right" if place in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


# ------------------------------------------------------------------ options


class WholeNumber(click.IntRange):
    """A whole number in any form that a key of a config accepts, such as 10000, 10_000 or 1e4."""

    name = "whole number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            value = int(value)
        except ValueError:
            with contextlib.suppress(ValueError):
                value = int(number) if (number := float(value)).is_integer() else value
        return super().convert(value, param, ctx)


def seeds_of(ctx: click.Context, param: click.Parameter, texts: Sequence[str]) -> tuple[int, ...]:
    """Returns the seeds in texts such as "0,1,2"."""
    seeds = tuple(NUMBER.convert(seed, param, ctx) for text in texts for seed in text.split(","))
    if len(set(seeds)) < len(seeds):
        raise click.BadParameter(f"expected different seeds, got {','.join(texts)}")
    return seeds


def file_of(*suffixes: str) -> Callable[[str], Path]:
    """Returns the click type of a file to write, whose name must end in one of the suffixes."""

    def convert(name: str) -> Path:
        if Path(name).suffix.lower() not in suffixes:
            raise click.BadParameter(f"{name} must end in {' or '.join(suffixes)}")
        if not Path(name).parent.is_dir():
            raise click.BadParameter(f"{name}: there is no folder {Path(name).parent}")
        return Path(name)

    return convert


POSITIVE, NUMBER = WholeNumber(min=1), WholeNumber(min=0)
PATH = click.Path(path_type=Path)
PICTURES = (".png", ".pdf", ".svg")

json_option = option("--json", "print one JSON object and nothing else")
import_option = option(
    "--import imports MODULE",
    "import a module or a .py file first, such as one that registers a policy; may be repeated",
    multiple=True,
)
trust_option = option(
    "--import imports MODULE",
    "let the checkpoint import this module or .py file, and no other; may be repeated",
    multiple=True,
)
run_argument = click.argument("run", type=PATH, metavar="RUN|CKPT", help="a run, or one of its checkpoints")
title_option = option("--title TEXT", "(default: what the runs have in common)")
jobs_option = option(
    "--jobs N",
    "train N runs at a time (default: as many as there are cores for, by num_threads and "
    "env.manager.worker_num)",
    POSITIVE,
)
ray_option = option(
    "--ray ADDRESS",
    "train on the Ray cluster at this address; auto: at RAY_ADDRESS or on this machine, or a new one",
)


def seeds_option(text: str) -> Decorator:
    """Returns the option ``--seed``, which accepts one seed or several."""
    return option("-s --seed seeds SEED,...", text, multiple=True, callback=seeds_of)


class Source(NamedTuple):
    """The words of the command line that describe a config."""

    config: str | None
    env: str | None
    policy: str | None
    plain: bool
    imports: tuple[str, ...]
    overrides: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.config or self.env)

    def read(self, changes: Mapping[str, Any] | None = None) -> Config:
        """Returns the complete config.

        Args:
            changes: values of keys, in addition to the command line's.

        Raises:
            ConfigError: if there is no config, or it has a fault.
        """
        from ding_lite.config.compile import COMMAND_LINE, compile_config, load_config, parse_overrides

        if not self:
            raise ConfigError(
                "no config: give -c FILE or NAME (`ding-lite list configs` lists the names), or --env ENV_ID"
            )
        modules, policy = import_modules(self.imports), self.policy or "ppo"
        overrides = {**parse_overrides(self.overrides), **(changes or {})}
        if self.config:
            if self.env or self.policy or self.plain:
                raise ConfigError(
                    "-c excludes --env, --policy and --plain: a config names both. For another policy begin "
                    "with --env ID --policy NAME; for another environment type env.env_id=ID"
                )
            config = load_config(self.config, overrides)
        elif self.plain:
            config = compile_config({"env": self.env, "policy": policy}, overrides, origin=COMMAND_LINE)
        else:
            from ding_lite.run.settings import config_for

            config = config_for(str(self.env), policy, overrides)
        return dataclasses.replace(config, trusted=(*config.trusted, *modules))


def config_options(function: Callable[..., Any]) -> Any:
    """Adds ``-c``, ``--env``, ``--policy``, ``--import`` and overrides, as the argument ``source``."""

    @functools.wraps(function)
    def with_source(**options: Any) -> Any:
        return function(source=Source(*map(options.pop, Source._fields)), **options)

    for add in (
        words(
            "overrides",
            "[key.path=value]...",
            "set keys of the config, anywhere among the options. `ding-lite config -c NAME` shows all keys",
        ),
        import_option,
        option("--plain", "with --env: begin with only the defaults of the keys"),
        option("--policy NAME", "a policy, with --env (default: ppo)"),
        option(
            "--env ENV_ID",
            "an environment: a gymnasium id, a registered name, or package.module:Class. Begins with the "
            "shipped config of this task, or with settings for its kind: vectors, images or grids",
        ),
        option(
            "-c --config FILE|NAME",
            "a .py or .json config file, or the name of a shipped config (see `ding-lite list configs`)",
        ),
    ):
        add(with_source)  # the last one is the first in the help
    return with_source


def words_with(**changes: Any) -> list[str]:
    """Returns the words that start this command with the same values in another process.

    Args:
        changes: other values of some options and arguments; None leaves one out.
    """
    context = click.get_current_context()
    options, arguments = [str(context.info_name)], list[str]()
    for parameter in context.command.params:
        value = {**context.params, **changes}.get(str(parameter.name))
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(parameter, click.Argument):
                arguments += [] if item is None else [str(item)]
            elif item is not None and item is not False:
                options += parameter.opts[:1] if item is True else [parameter.opts[0], str(item)]
    hyphens = ["--"] if any(word.startswith("-") for word in arguments) else []  # no option follows these
    return [*options, *hyphens, *arguments]


def import_modules(names: Sequence[str]) -> list[str]:
    """Imports modules and .py files; returns their names. It also finds modules beside shipped configs."""
    from ding_lite.config.compile import CONFIG_FOLDER
    from ding_lite.config.registry import import_module

    files = {Path(name).resolve() for name in names if name.endswith(".py")}
    if len({file.stem for file in files}) < len(files):
        raise ConfigError("--import: two of these files have the same name, so one module; rename one")
    shipped = {file.stem: str(file) for file in CONFIG_FOLDER.glob("*.py")}
    return [import_module(shipped.get(name, name)).__name__ for name in names]


def open_pool(
    config: Config, jobs: int | None, ray: str | None, say: Callable[[str], Any]
) -> contextlib.AbstractContextManager[Pool]:
    """Returns a context of the pool that runs commands: local processes, or the Ray cluster of ``--ray``.

    Raises:
        ConfigError: if there is no such cluster.
    """
    from ding_lite.tools.parallel import Pool, load_of

    if ray is None:
        return contextlib.nullcontext(Pool(load_of(config), jobs, say))
    from ding_lite.tools.ray_runs import RayPool

    return contextlib.closing(RayPool("" if ray == "auto" else ray, load_of(config)))
