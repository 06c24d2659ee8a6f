"""An extension of Griffe, which reads docstrings for the API pages."""

from __future__ import annotations

from typing import Any

import griffe
from pages import as_markdown


class Docstrings(griffe.Extension):
    """Makes Markdown of every docstring before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
