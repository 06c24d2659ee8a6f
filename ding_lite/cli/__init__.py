"""The command line: ``ding-lite COMMAND ...``, also ``python -m ding_lite COMMAND ...``.

``main`` lists the commands and runs one; each is the function ``run`` in the file of its name. ``options``
is shared by the commands: their class, options as decorators, the config that the options describe.

To add the command ``ding-lite my-command``, put its name into ``COMMANDS`` in ``main.py``, and write
``my_command.py``::

    import click

    from ding_lite.cli import options

    @options.command()
    @click.option("--name", default="you", help="whom to greet")
    def run(name: str) -> None:
        \"\"\"Prints a greeting.\"\"\"
        print(f"Hello {name}")

``ding-lite --help`` imports these files, and must take milliseconds. So they import anything that may load
NumPy, gymnasium or torch inside functions. ``run`` reports a fault of the user by an error of
``ding_lite.errors``.
"""

from ding_lite.cli.main import main

__all__ = ["main"]
