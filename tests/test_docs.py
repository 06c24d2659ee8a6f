"""The documents are true: code blocks run, paths exist, and each DI-engine key is as its table says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ding_lite.cli import main
from ding_lite.config import compile_config
from ding_lite.errors import ConfigError
from ding_lite.registry import MODEL_REGISTRY, POLICY_REGISTRY
from ding_lite.schema import leaves, merged_config

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"),
    *("docs/di_engine.md", "docs/environments.md", "docs/ppg.md"),
]
BLOCK = re.compile(r"^```(\S*)( no-run)?\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(language, document="README.md"):
    found = BLOCK.findall((ROOT / document).read_text())
    return [text for kind, skip, text in found if kind == language and not skip]


def run(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}: {done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.parametrize("document", [*DOCUMENTS, "benchmarks/RESULTS.md"])
def test_what_a_document_links_to_is_part_of_the_project(document):
    links = re.findall(r"\]\(([^)#\s]+)", (ROOT / document).read_text())
    paths = [(ROOT / document).parent / link for link in links if "://" not in link]
    ignored = subprocess.run(["git", "check-ignore", *paths], cwd=ROOT, capture_output=True, text=True).stdout
    assert not ignored, "it is left out by .gitignore"
    assert [path for path in paths if not path.exists()] == []


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_python_blocks_of_the_readme_run(number, tmp_path):
    (tmp_path / "block.py").write_text(blocks("python")[number])
    assert run([sys.executable, "block.py"], tmp_path)


@pytest.mark.parametrize("text", blocks("python", "docs/environments.md"))
def test_python_blocks_about_environments_run(text, tmp_path):
    (tmp_path / "block.py").write_text(text)
    run([sys.executable, "block.py"], tmp_path)


def test_commands_of_the_readme_run_in_their_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [line[2:] for text in blocks("console") for line in text.splitlines() if line.startswith("$ ")]
    commands = [shlex.split(line) for line in lines if line.startswith("ding-lite ")]
    assert len(commands) >= 8
    for command in commands:
        assert main(command[1:]) == 0, command
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_make_targets_and_extras_that_the_documents_name_exist():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    setup = (ROOT / "setup.py").read_text()
    for document in DOCUMENTS:
        text = (ROOT / document).read_text()
        named = set(re.findall(r"(?:`|\$ )make (\w+)", text))
        assert named <= targets, f"{document} names {named - targets}"
        for extras in re.findall(r'"(?:\.|ding_lite)\[([\w,]+)\]"', text):
            assert all(f'"{extra}"' in setup for extra in extras.split(",")), f"{document}: {extras}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_that_a_document_names_exist(document):
    text = BLOCK.sub("", (ROOT / document).read_text())
    linked = re.findall(r"\]\((?!http)([^)#]+)\)", text)
    named = re.findall(r"`((?:ding_lite|configs|docs|benchmarks|examples|entry|tests)/[\w./]*)`", text)
    missing = [
        p
        for p in [*linked, *named]
        if not (ROOT / p).exists() and not (ROOT / document).parent.joinpath(p).exists()
    ]
    assert not missing


def table(title):
    """Returns what the last column of a table says of each key."""
    section = (ROOT / "docs/di_engine.md").read_text().split(f"## {title}")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `([\w.]+)` \|(?:.*\|)? ([^|]+)", section, re.MULTILINE))


def schema(kind="ppo"):
    policy = merged_config(POLICY_REGISTRY.get(kind))
    policy["model"] = policy["model"] | merged_config(MODEL_REGISTRY.get(policy["model"]["type"].default))
    return {f"policy.{path}": key for path, key in leaves(policy)}


PPO_KEYS = table("Every key of its PPOPolicy")
OFF_KEYS = table("Every key of its PPOOffPolicy")
PPG_KEYS = table("Every key of its PPGPolicy")
KEYS = {
    "ppo": PPO_KEYS,
    "ppo_offpolicy": OFF_KEYS,
    "ppg": PPG_KEYS,
    "ppg_offpolicy": PPG_KEYS,
}


@pytest.mark.parametrize(("kind", "path"), [(kind, path) for kind in KEYS for path in KEYS[kind]])
def test_di_engine_key_is_what_the_table_says(kind, path):
    key, said = schema(kind)[path], KEYS[kind][path]
    if said.startswith("honoured"):
        assert not key.fixed_because
        return
    value = re.match(r"only `([^`]+)`", said).group(1)
    literal = {"True": True, "False": False, "None": None, "0.0": 0.0, '"k1"': "k1"}[value]
    assert key.default == literal
    assert type(key.default) is type(literal)
    compile_config(nested(path, literal, kind))
    with pytest.raises(ConfigError, match=f"{path}.*{re.escape(key.fixed_because)}"):
        compile_config(nested(path, "something else", kind))


def nested(path, value, kind="ppo"):
    config = {"env": {"env_id": "CartPole-v1"}, "policy": {"type": kind}}
    *parents, last = path.split(".")
    section = config
    for parent in parents:
        section = section.setdefault(parent, {})
    section[last] = value
    return config


def test_every_fixed_key_is_in_the_table():
    fixed = {path for path, key in schema().items() if key.fixed_because}
    assert fixed == {path for path, said in {**PPO_KEYS, **OFF_KEYS}.items() if said.startswith("only")}


def test_every_key_that_the_other_tables_name_exists():
    section = (ROOT / "docs/di_engine.md").read_text().split("## Keys that it lacks")[1]
    named = re.findall(r"`(policy\.[\w.]+)", section)
    known = {path for kind in KEYS for path in schema(kind)}
    assert named
    assert all(any(path == n or path.startswith(f"{n}.") for path in known) for n in named)
