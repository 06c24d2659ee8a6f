"""Writes the files that a part of the user's own begins with: the part, its config and its test.

The templates are the files in ``templates/`` of the project: working files, in which ``my_policy`` and
``MyPolicy`` stand for the name that is asked for.
"""

from __future__ import annotations

import keyword
from pathlib import Path

from ding_lite.errors import ConfigError

KINDS = ("policy", "env", "model", "encoder", "config")
TEMPLATE_FOLDERS = (
    Path(__file__).parents[1] / "_templates",  # an installed package
    Path(__file__).parents[2] / "templates",  # a checkout
)


def write_new(kind: str, name: str, folder: str | Path = ".") -> list[Path]:
    """Writes the files of a new part, and returns them: the part, its config and its test.

    Args:
        kind: one of ``KINDS``.
        name: "my_part" or "my-part"; the class is MyPart.
        folder: is made if there is none.

    Raises:
        ConfigError: if the name cannot be that of a module, or a file of that name exists.
    """
    module = name.replace("-", "_")
    if not module.isidentifier() or keyword.iskeyword(module):
        raise ConfigError(f"{name!r} cannot be the name of a Python module; write one such as my_part")
    cls = "".join(part[:1].upper() + part[1:] for part in module.split("_"))
    templates = next(folder for folder in TEMPLATE_FOLDERS if folder.is_dir()) / kind

    def renamed(text: str) -> str:
        return text.replace(f"my_{kind}", module).replace(f"My{kind.capitalize()}", cls)

    texts = {
        Path(folder) / renamed(file.name): renamed(file.read_text("utf-8"))
        for file in sorted(templates.glob("*.py"))
    }
    if existing := [str(file) for file in texts if file.exists()]:
        raise ConfigError(f"{', '.join(existing)} exists already; choose another name")
    Path(folder).mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        file.write_text(text, "utf-8")
    return list(texts)
