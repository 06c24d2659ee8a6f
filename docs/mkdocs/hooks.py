"""Hooks of MkDocs: pages made from the code, links into the project, formulae, and drawings.

The Markdown files are written for a code host. Here they become pages of a site: links to files outside of
docs/ lead to pages of the site, ``$formulae$`` become MathML, which browsers draw without a script or a font,
and drawings (SVG with ``class="drawing"``) become part of the page, so that they follow its light or dark.
"""

from __future__ import annotations

import html
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
sys.path.append(str(Path(__file__).parent))

import pages  # noqa: E402 - found in this folder

FENCE = re.compile(r"^```(\w*)[^\n]*\n.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
IMAGE = re.compile(r'<img alt="([^"]*)" src="([^"]+\.svg)"\s*/?>')
# With the lines up to the end mark, which are for readers of the file.
GENERATED = re.compile(r"<!-- generated: (\w+) -->(?:\n(?:(?!<!--).*\n)*<!-- end -->)?")
PROJECT = "project/"  # folder of the site for files outside of docs/


def on_files(files: Any, config: Any) -> Any:
    """Adds pages from the code, README as the first page, and the project's own documents."""
    files.append(File.generated(config, "index.md", abs_src_path=str(ROOT / "README.md")))
    for name in ("configs", "examples", "ding_lite"):
        files.append(File.generated(config, f"{PROJECT}{name}.md", content=pages.PAGES[name]()))
    for path in pages.DOCUMENTS:
        files.append(File.generated(config, PROJECT + path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Fills in what is made from the code; makes links those of the site, and code blocks plain ones."""
    here = page.file.src_uri
    markdown = GENERATED.sub(lambda match: getattr(pages, match[1])(), markdown)

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        if "://" in target or target.startswith("#"):
            return match[0]
        path, hash_sign, anchor = target.partition("#")
        goal = site_uri(posixpath.normpath(posixpath.join(posixpath.dirname(project_path(here)), path)))
        if files.get_file_from_path(goal) is None:  # tests, licenses: not part of the site
            return text
        return f"[{text}]({posixpath.relpath(goal, posixpath.dirname(here))}{hash_sign}{anchor})"

    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts.append(LINK.sub(link, markdown[end : fence.start()]))
        first, _, rest = fence[0].partition("\n")
        parts.append(f"```{fence[1]}\n{rest}")  # "python no-run" is for the tests
        end = fence.end()
    return "".join([*parts, LINK.sub(link, markdown[end:])])


def project_path(uri: str) -> str:
    """Returns the path in the project of a page of the site."""
    if uri == "index.md":
        return "README.md"
    return uri.removeprefix(PROJECT) if uri.startswith(PROJECT) else f"docs/{uri}"


def site_uri(path: str) -> str:
    """Returns the page of the site for a path in the project."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    # Code is on one page for each folder.
    folder = path if (ROOT / path).is_dir() else posixpath.dirname(path)
    return PROJECT + (path if path.endswith((".md", ".png", ".svg")) else f"{folder}.md")


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Draws formulae as MathML, and drawings as a part of the page."""
    return IMAGE.sub(_drawing, FORMULA.sub(_formula, content))


def _formula(match: re.Match[str]) -> str:
    latex = html.unescape(match[2]).strip()
    display = "block" if match[1] == "div" else "inline"
    return f'<span class="formula-{display}">{convert(latex[2:-2].strip(), display=display)}</span>'


def _drawing(match: re.Match[str]) -> str:
    file = ROOT / "docs" / match[2].removeprefix("../")
    drawing = file.read_text() if file.exists() else ""
    if 'class="drawing"' not in drawing:
        return match[0]
    return drawing[drawing.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{match[1]}"', 1)
