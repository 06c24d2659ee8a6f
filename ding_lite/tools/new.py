"""Writes the files that a part of the user's own begins with: the part, its config and its test.

The templates are the files in ``templates/`` of the project: working files, in which ``my_policy`` and
``MyPolicy`` stand for the name that is asked for.
"""

from __future__ import annotations

import builtins
import importlib.util
import keyword
import re
import sys
from pathlib import Path

from ding_lite.config.registry import ENCODER_REGISTRY, MODEL_REGISTRY, POLICY_REGISTRY
from ding_lite.errors import ConfigError

TEMPLATE_FOLDERS = (
    Path(__file__).parents[1] / "_templates",  # an installed package
    Path(__file__).parents[2] / "templates",  # a checkout
)
# The registry in which the name must be free; None: the template registers nothing under it.
KINDS = {
    "policy": POLICY_REGISTRY,
    "env": None,
    "model": MODEL_REGISTRY,
    "encoder": ENCODER_REGISTRY,
    "config": None,
}
# Where a lower-case letter or digit is followed by a capital, or the last capital of several by a small one.
WORD_STARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def write_new(kind: str, name: str, folder: str | Path = ".") -> list[Path]:
    """Writes the files of a new part, and returns them: the part, its config and its test.

    Args:
        kind: a key of ``KINDS``.
        name: in any of the forms "my_part", "my-part" and "MyPart".
        folder: is made if there is none.

    Raises:
        ConfigError: if the name cannot be the name of a module, or one of the files exists.
    """
    module, cls = names_of(name)
    files = {}
    for template in sorted(_templates(kind)):
        text = template.read_text(encoding="utf-8")
        _refuse_taken_class(cls, _renamed(text, kind, "", ""))
        file = Path(folder) / _renamed(template.name, kind, module, cls)
        files[file] = _renamed(text, kind, module, cls)
    _refuse_taken(kind, module, Path(folder), list(files))
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            with file.open("x", encoding="utf-8") as stream:
                stream.write(text)
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error}") from error
    return list(files)


def names_of(name: str) -> tuple[str, str]:
    """Returns the names of the module and the class: ``("my_part", "MyPart")`` for "my-part".

    Raises:
        ConfigError: if no module can be imported by such a name.
    """
    module = re.sub(r"[-\s]+", "_", WORD_STARTS.sub("_", name.strip())).lower()
    if not module.isidentifier() or module.startswith("_"):
        raise ConfigError(
            f"the name {name!r} cannot be that of a Python module: write letters, digits and _, a letter "
            "first, such as my_part, my-part or MyPart"
        )
    if keyword.iskeyword(module):
        raise ConfigError(
            f"the name {name!r} is a Python keyword, so no module can have it; choose another one"
        )
    return module, "".join(part[:1].upper() + part[1:] for part in module.split("_"))


def _templates(kind: str) -> list[Path]:
    folder = next(folder for folder in TEMPLATE_FOLDERS if folder.is_dir())
    return list((folder / kind).glob("*.py"))


def _renamed(text: str, kind: str, module: str, cls: str) -> str:
    return text.replace(f"my_{kind}", module).replace(f"My{kind.capitalize()}", cls)


def _refuse_taken_class(cls: str, text: str) -> None:
    """Raises ConfigError if ``text``, a template without the part's own name, uses that of the class."""
    if cls in dir(builtins) or re.search(rf"(?<![.\w]){cls}\b", text):
        raise ConfigError(
            f"the class would be named {cls}, and the file needs that name for something else; choose "
            "another name"
        )


def _refuse_taken(kind: str, module: str, folder: Path, files: list[Path]) -> None:
    """Raises ConfigError if a file exists, or the module would hide another one or an entry of a registry."""
    existing = [str(file) for file in files if file.exists()]
    if existing:
        raise ConfigError(
            f"{', '.join(existing)} exists already, and nothing is overwritten; choose another name"
        )
    registry = KINDS[kind]
    if registry is not None and module in registry:
        raise ConfigError(f"{module!r} is the name of another {registry.noun}; choose another one")
    if module in sys.builtin_module_names or importlib.util.find_spec(module) is not None:
        raise ConfigError(
            f"there is a Python module {module!r} already, which {folder / module}.py would hide; choose "
            "another name"
        )
