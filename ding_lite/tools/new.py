"""Writes the first files of a custom policy, environment or model: the class with a config, and its test.

The templates are working files; the requested name replaces ``my_policy`` and ``MyPolicy`` in them.
"""

from __future__ import annotations

import keyword
from importlib.util import find_spec
from pathlib import Path

from ding_lite.config.registry import REGISTRIES
from ding_lite.errors import ConfigError

TEMPLATES = Path(__file__).with_name("templates")


def write_new(kind: str, name: str, folder: str | Path = ".") -> tuple[Path, Path]:
    """Writes the files of a new part, and returns their paths: the part and its test.

    Args:
        kind: "policy", "env" or "model".
        name: "my_part" or "my-part"; the class is MyPart.
        folder: is created if it does not exist.

    Raises:
        ConfigError: if a module cannot have the name, or a file of that name exists.
    """
    module = name.replace("-", "_")
    if not module.isidentifier() or keyword.iskeyword(module):
        raise ConfigError(f"{name!r} cannot be the name of a Python module; write one such as my_part")
    if find_spec(module) or any(module in registry.names() for registry in REGISTRIES):
        raise ConfigError(f"{name!r} is a module or a registered name already; write one such as my_part")
    cls = "".join(part[:1].upper() + part[1:] for part in module.split("_"))
    files = Path(folder) / f"{module}.py", Path(folder) / f"test_{module}.py"
    if existing := [str(file) for file in files if file.exists()]:
        raise ConfigError(f"{', '.join(existing)} exists already; choose another name")
    Path(folder).mkdir(parents=True, exist_ok=True)
    for file, template in zip(files, (f"my_{kind}.py", f"test_my_{kind}.py"), strict=True):
        text = (TEMPLATES / kind / template).read_text("utf-8")
        file.write_text(text.replace(f"my_{kind}", module).replace(f"My{kind.capitalize()}", cls), "utf-8")
    return files
