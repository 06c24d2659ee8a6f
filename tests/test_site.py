"""The site of the documentation: the tables that come from the code, and what the built pages contain."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ding_lite.config.compile import POLICIES, compile_config
from ding_lite.config.schema import leaves

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def pages():
    spec = importlib.util.spec_from_file_location("pages", ROOT / "docs/mkdocs/pages.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["pages"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["pages"]


@pytest.mark.parametrize("page", [path.name for path in sorted((ROOT / "docs").glob("*.md"))])
def test_tables_are_as_the_code_has_them(page, pages):
    text = (ROOT / "docs" / page).read_text()
    assert text == pages.with_tables(text), "run `python docs/mkdocs/pages.py`"


def complete_keys(policy):
    config = {"env": {"env_id": "CartPole-v1"}, "policy": {"type": policy, "intrinsic": {"type": "rnd"}}}
    return {path for path, _ in leaves(compile_config(config).values)}


def test_page_of_keys_has_each_key_of_the_four_policies_once_with_its_effect(pages):
    text = pages.keys()
    entries = re.findall(r"^#### `(\S+)` \{ #\1 \.key \}\n\n(.*)\n\{ \.facts \}\n\n(.*)$", text, re.MULTILINE)
    named = [path for path, _, _ in entries]
    assert set(named) == set().union(*map(complete_keys, POLICIES))
    assert len(named) == len(set(named)) > 100
    assert all(len(effect) > 10 for _, _, effect in entries)


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"^ +- (?:[\w ]+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    found = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert {path for path in listed if not path.startswith("project/")} == {*found, "index.md"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; a warning of MkDocs fails it, since mkdocs.yml is strict."""
    for module in ("mkdocs", "material", "mkdocstrings", "latex2mathml"):
        pytest.importorskip(module, reason="needs the extra dev")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_built_pages_have_formulae_drawing_keys_and_docstrings(site):
    algorithms = (site / "algorithms.html").read_text()
    assert algorithms.count("<math") > 40
    assert "arithmatex" not in algorithms
    assert "$" not in re.sub(r"<(script|style|math|code)\b.*?</\1>", "", algorithms, flags=re.DOTALL)
    assert '<svg role="img" aria-label="One iteration' in (site / "quick_start.html").read_text()
    assert 'id="policy.learn.clip_ratio"' in (site / "reference.html").read_text()
    assert 'id="ding_lite.run.pipeline.SerialPipeline"' in (site / "project/ding_lite.html").read_text()
    for page in site.rglob("*.html"):
        assert "<!-- generated" not in page.read_text(), page
