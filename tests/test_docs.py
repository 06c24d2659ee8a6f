"""The documents are true: every code block runs; links, pictures, keys and metrics exist."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from worlds import trainee

from ding_lite.cli import main
from ding_lite.config import registry
from ding_lite.data.episodes import Evaluation
from ding_lite.data.timer import PHASES
from ding_lite.run.progress import evaluation_metrics
from ding_lite.tools.key_reference import keys_of_policies

ROOT = Path(__file__).parents[1]
GUIDES = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
OTHERS = (
    "ARCHITECTURE",
    "CONTRIBUTING",
    "CHANGELOG",
    "SECURITY",
    "benchmarks/RESULTS",
    "benchmarks/notes/learning",
    "benchmarks/notes/speed",
)
DOCUMENTS = [*GUIDES, *(f"{name}.md" for name in OTHERS)]
KEY = re.compile(r"`((?:policy\.\w+|env|checkpoint|logger)\.[\w.]+)[`=]")
# ```python no-run            is not run: it needs what a test machine lacks
# ```python file=my_config.py  is a file that the blocks after it use
# ```console exit=2            commands that fail, with a part of their message below the last one
BLOCK = re.compile(r"^```(\w*)(?: ([^\n]*))?\n(.*?)^```", re.DOTALL | re.MULTILINE)


def text_of(document, *, code=True):
    text = (ROOT / document).read_text()
    return text if code else BLOCK.sub("", text)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, where modules are found; what they register is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for found in registry.REGISTRIES:
        found.names()  # which imports the library's own
        monkeypatch.setattr(found, "entries", dict(found.entries))
    modules = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - modules:
        if (tmp_path / f"{name}.py").exists():
            del sys.modules[name]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")  # of CartPole-v0, which DI-engine has
@pytest.mark.parametrize("document", [guide for guide in GUIDES if "```" in text_of(guide)])
def test_blocks_run_in_their_order(document, here, capsys):
    for number, (language, note, block) in enumerate(BLOCK.findall(text_of(document))):
        if note.startswith("file="):
            Path(note.removeprefix("file=")).write_text(block)
        elif language == "python" and not note:
            file = Path(f"block_{number}.py")
            file.write_text(block)
            runpy.run_path(str(file), run_name="__main__")
        elif language == "console" and note != "no-run":
            run_commands(block, int(note.removeprefix("exit=") or 0), capsys)


def run_commands(block, code, capsys):
    """Runs the commands of a block in this process; ``code`` is their exit code."""
    assert block.startswith("$ ")
    for call in re.split(r"^\$ ", block.replace("\\\n", ""), flags=re.MULTILINE)[1:]:
        line, _, message = call.partition("\n")
        program, *arguments = shlex.split(line, comments=True)
        assert program == "ding-lite", line
        capsys.readouterr()
        assert main(arguments) == code, (line, capsys.readouterr())
        printed = capsys.readouterr()
        assert message.strip() in printed.out + printed.err, line


def anchors(document):
    """Returns the anchors that GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", text_of(document, code=False), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_pictures_and_paths_exist(document):
    text, folder = text_of(document, code=False), (ROOT / document).parent
    for link, _, anchor in re.findall(r"\]\((?!http)([^)#\s]*)(#([^)\s]+))?\)", text):
        target = (folder / link).resolve() if link else ROOT / document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), f"{link}#{anchor}"
    linked = [str(folder / link) for link in re.findall(r"\]\((?!http)([^)#\s]+)", text)]
    ignored = subprocess.run(["git", "check-ignore", *linked], cwd=ROOT, capture_output=True, text=True)
    assert not ignored.stdout, "these files are excluded by .gitignore"
    named = re.findall(r"`((?:ding_lite|configs|docs|benchmarks|examples|entry|tests)/[\w./]*)`", text)
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_files_and_names_of_the_architecture_exist():
    text, package = text_of("ARCHITECTURE.md"), ROOT / "ding_lite"
    files = set(re.findall(r"\b((?:config|rl|envs|models|data|fast|policies|run|tools|cli)/\w+\.py)\b", text))
    assert len(files) > 20
    assert {file for file in files if not (package / file).exists()} == set()
    for names, file in re.findall(r"((?:`\w+`(?:, )?)+) (?:in|of) `(\w+/\w+\.py)`", text):
        assert [name for name in re.findall(r"\w+", names) if name not in (package / file).read_text()] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_make_targets_extras_and_keys_exist(document):
    text = text_of(document)
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"(?:`|\$ )make ([\w-]+)", text)) <= set(targets)
    setup = (ROOT / "setup.py").read_text()
    for extras in re.findall(r'"(?:\.|ding_lite)\[([\w,]+)\]"', text):
        assert all(f'"{extra}"' in setup for extra in extras.split(",")), extras
    if document in GUIDES and document != "docs/di_engine.md":  # which names keys of DI-engine, too
        known = [f"{key}." for key in keys_of_policies()]
        for path in KEY.findall(text_of(document, code=False)):
            assert any(key.startswith(f"{path}.") or f"{path}.".startswith(key) for key in known), path


@pytest.mark.parametrize("kind", ["ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy"])
def test_every_metric_has_its_meaning(kind):
    page = text_of("docs/debugging.md")
    learn = {} if kind.startswith("ppo") else {"aux_freq": 1}
    scales = {"obs": True, "reward": True, "obs_samples": 8}
    policy, collector = trainee(kind, normalize=scales, intrinsic={"type": "rnd"}, learn=learn)
    metrics = policy.learn_mode.forward(collector.collect())
    names = [*collector.metrics(), *metrics, *(f"{phase}_s" for phase in PHASES)]
    names += evaluation_metrics(Evaluation((0.0,), (0,), infos=({"is_success": 0.0},)))
    assert [name for name in names if f"`{name.rpartition('/')[2]}`" not in page] == []
