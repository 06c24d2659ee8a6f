"""The site of the documentation: what it says from the code, and what the built pages contain."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ding_lite.config.compile import compile_config
from ding_lite.config.schema import leaves

ROOT = Path(__file__).parents[1]
POLICIES = ("ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy")
# Where a page makes a browser load something, and where a style sheet does.
LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?([^\"' >]+)|<link\b([^>]*)>|url\(([^)]+)\)"
)
HREF = re.compile(r"\bhref=[\"']?([^\"' >]+)")


@pytest.fixture(scope="module")
def pages():
    spec = importlib.util.spec_from_file_location("pages", ROOT / "docs/mkdocs/pages.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["pages"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["pages"]


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
    facts = {path: line for path, line, _ in entries}
    rates = "default `0.0003`, for `ppo_offpolicy` `0.001`, for `ppg` and `ppg_offpolicy` `0.0005`"
    assert facts["policy.learn.learning_rate"] == f"a number, above 0 · {rates}"
    assert facts["policy.learn.aux_freq"].endswith("only `ppg` and `ppg_offpolicy`")


def test_other_generated_parts_name_commands_configs_and_examples(pages):
    commands = pages.commands()
    assert all(f"## ding-lite {name}" in commands for name in ("train", "eval", "check-env", "export"))
    assert "| `nature_cnn` |" in pages.names()
    assert "| `SerialPipeline` |" in pages.public_names()
    assert "## cartpole_ppo {" in pages.configs_page()
    assert "## Custom env" in pages.examples_page()


def test_docstrings_become_markdown(pages):
    text = "See :class:`~ding_lite.run.pipeline.SerialPipeline` and ``x``::"
    assert pages.as_markdown(text) == "See `SerialPipeline` and `x`:"


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"^ +- (?:[\w ]+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages - listed == set(), "add a line to `nav` in mkdocs.yml"
    assert {path for path in listed - pages if not path.startswith("project/")} == set()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; a warning of MkDocs fails it, since mkdocs.yml is strict."""
    for module in ("mkdocs", "material", "mkdocstrings", "latex2mathml"):
        pytest.importorskip(module, reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


def loaded(text):
    """Returns what a browser loads for a page or a style sheet."""
    found = []
    for source, link, url in LOADED.findall(text):
        is_resource = "stylesheet" in link or "icon" in link or "preload" in link or "preconnect" in link
        found += [source or url.strip("\"'")] if source or url else HREF.findall(link) if is_resource else []
    return found


def test_what_a_browser_loads_is_found():
    page = '<link rel="stylesheet" href="https://a/x.css"><script src=https://b/y.js></script><a href="https://c">'
    assert loaded(page) == ["https://a/x.css", "https://b/y.js"]
    assert loaded("p { background: url('https://d/z.png') }") == ["https://d/z.png"]


@pytest.mark.slow
def test_site_loads_nothing_from_the_network(site):
    files = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(files) > 30
    addresses = [(file.name, address) for file in files for address in loaded(file.read_text())]
    assert len(addresses) > 100
    assert [found for found in addresses if re.match(r"(https?:)?//", found[1])] == []


@pytest.mark.slow
def test_built_pages_have_formulae_drawing_keys_and_docstrings(site):
    algorithms = (site / "algorithms.html").read_text()
    assert algorithms.count("<math") > 40
    assert "arithmatex" not in algorithms
    assert "$" not in re.sub(r"<(script|style|math).*?</\1>", "", algorithms, flags=re.DOTALL)
    assert '<svg role="img" aria-label="One iteration' in (site / "concepts.html").read_text()
    assert 'id="policy.learn.clip_ratio"' in (site / "reference/keys.html").read_text()
    assert 'id="ding_lite.rl.returns.gae"' in (site / "reference/api/functions.html").read_text()
    assert "no-run" not in (site / "project/ARCHITECTURE.html").read_text()
    for page in site.rglob("*.html"):
        assert "<!-- generated" not in page.read_text(), page
