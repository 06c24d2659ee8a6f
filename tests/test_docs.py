"""The documents are true: code blocks run, links and paths exist, DI-engine's keys are as the table says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from worlds import trainee

from ding_lite import SerialPipeline, load_policy
from ding_lite.cli import main
from ding_lite.config.compile import compile_config
from ding_lite.config.di_engine import FIXED
from ding_lite.config.registry import MODEL_REGISTRY, POLICY_REGISTRY, WRAPPER_REGISTRY
from ding_lite.config.schema import leaves, merged_config
from ding_lite.data.collector import Collector
from ding_lite.data.episodes import Evaluation
from ding_lite.data.timer import PHASES
from ding_lite.run.progress import evaluation_metrics

ROOT = Path(__file__).parents[1]
GUIDES = ["README.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")))]
DOCUMENTS = [*GUIDES, "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
# ```python no-run            is not run
# ```python file=my_config.py  is a file that the blocks after it use, and is not run by itself
# ```console exit=2            commands that fail, each with a part of its message below it
BLOCK = re.compile(r"^```(\w*)(?: ([^\n]*))?\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(language, document, note=""):
    matches = BLOCK.findall((ROOT / document).read_text())
    return [text for kind, found, text in matches if (kind, found) == (language, note)]


def calls(document, program="ding-lite"):
    """Yields ``(arguments, exit code, message)`` of each call of a program in the console blocks."""
    for kind, note, text in BLOCK.findall((ROOT / document).read_text()):
        if kind == "console" and note != "no-run":
            for call in text.split("$ ")[1:]:
                line, _, message = call.partition("\n")
                if line.startswith(f"{program} "):
                    code = int(note.removeprefix("exit=") or 0)
                    yield shlex.split(line)[1:], code, message.strip()


def commands(document, program="ding-lite"):
    """Returns the arguments of each call of a program that succeeds."""
    return [arguments for arguments, code, _ in calls(document, program) if code == 0]


def write_files(document, folder):
    """Writes the blocks of a document that are files into a folder."""
    for kind, note, text in BLOCK.findall((ROOT / document).read_text()):
        if kind == "python" and note.startswith("file="):
            (folder / note.removeprefix("file=")).write_text(text)


PYTHON_BLOCKS = [
    (document, number) for document in GUIDES for number in range(len(blocks("python", document)))
]


def without_code(document):
    return BLOCK.sub("", (ROOT / document).read_text())


@pytest.mark.parametrize("document", [*DOCUMENTS, "benchmarks/RESULTS.md"])
def test_links_lead_to_files_of_the_project(document):
    links = re.findall(r"\]\(([^)#\s]+)", without_code(document))
    paths = [(ROOT / document).parent / link for link in links if "://" not in link]
    ignored = subprocess.run(["git", "check-ignore", *paths], cwd=ROOT, capture_output=True, text=True).stdout
    assert not ignored, "these files are excluded by .gitignore"
    assert [path for path in paths if not path.exists()] == []


def anchors(document):
    """Returns the anchors that GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", without_code(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", [*DOCUMENTS, "benchmarks/RESULTS.md"])
def test_links_to_headings_lead_to_headings(document):
    for link, anchor in re.findall(r"\]\((?!http)([^)#\s]*)#([^)\s]+)\)", without_code(document)):
        target = ((ROOT / document).parent / link).resolve() if link else ROOT / document
        assert anchor in anchors(target), f"{link}#{anchor}"


@pytest.mark.daily(1)
@pytest.mark.parametrize(("document", "number"), PYTHON_BLOCKS)
def test_python_blocks_run(document, number, tmp_path):
    write_files(document, tmp_path)
    (tmp_path / "block.py").write_text(blocks("python", document)[number])
    command = [sys.executable, "block.py"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr[-2000:]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, where modules are found; what they register is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(POLICY_REGISTRY, "entries", dict(POLICY_REGISTRY.entries))
    modules = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - modules:
        if (tmp_path / f"{name}.py").exists():
            del sys.modules[name]


def run_commands(document, capsys):
    """Runs the commands of a document in their order, in the working directory."""
    write_files(document, Path())
    for command, code, message in calls(document):
        if "foreign.pt" in command:
            torch.save(load_policy("runs/cartpole_ppo").model.state_dict(), "foreign.pt")
        capsys.readouterr()
        assert main(command) == code, command
        printed = capsys.readouterr()
        assert not code or message in printed.err + printed.out, command


@pytest.mark.slow
def test_commands_of_the_readme_run_in_their_order(here, capsys):
    assert len(commands("README.md")) >= 8
    run_commands("README.md", capsys)
    assert Path("curves.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "document", [guide for guide in GUIDES if guide != "README.md" and any(calls(guide))]
)
def test_commands_of_a_guide_run_in_their_order(document, here, capsys):
    run_commands(document, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("document", [guide for guide in GUIDES if commands(guide, "torchrun")])
def test_torchrun_commands_run(document, tmp_path):
    for command in commands(document, "torchrun"):
        start = [sys.executable, "-m", "torch.distributed.run", *command]
        done = subprocess.run(start, cwd=tmp_path, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr[-2000:]
        assert (tmp_path / "runs" / "two_ranks" / "result.json").exists()


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


def table(title, after):
    """Returns the rows of a table: its second column up to the first colon, by the first one."""
    section = (ROOT / "docs/di_engine.md").read_text().split(f"## {title}")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| (`[^|]+`) \| ([^|:]+):", section.split(after)[1], re.MULTILINE))


def schema(kind="ppo"):
    policy = merged_config(POLICY_REGISTRY.get(kind))
    policy["model"] = policy["model"] | merged_config(MODEL_REGISTRY.get(policy["model"]["type"].default))
    return {f"policy.{path}": key for path, key in leaves(policy)}


def test_keys_with_one_value_are_those_that_the_conversion_refuses():
    rows = table("Keys of its policies", "These keys of a pair").items()
    said = {path.strip("`"): value for paths, value in rows for path in paths.split(", ")}
    assert said == {path: f"`{value!r}`" for path, (value, _) in FIXED.items()}


def test_every_key_that_the_other_tables_name_exists():
    section = (ROOT / "docs/di_engine.md").read_text().split("## Keys of its policies")[1]
    section = re.sub(r"These keys of a pair.*?## ", "", section, flags=re.DOTALL)
    named = re.findall(r"`(policy\.[\w.]+)", section)
    known = {path for kind in POLICY_REGISTRY.names() for path in schema(kind)}
    assert len(named) > 20
    assert all(any(path == n or path.startswith(f"{n}.") for path in known) for n in named)


def nested(path, value, kind="ppo"):
    config = {"env": {"env_id": "CartPole-v1"}, "policy": {"type": kind}}
    *parents, last = path.split(".")
    section = config
    for parent in parents:
        section = section.setdefault(parent, {})
    section[last] = value
    return config


def test_the_37_details_are_numbered_and_their_keys_metrics_and_wrappers_exist(tmp_path):
    text = (ROOT / "docs/37_details.md").read_text()
    assert re.findall(r"^\| (\d+) \|", text, re.MULTILINE) == [str(n) for n in range(1, 38)]
    config = compile_config(nested("policy.model.rnn", "lstm"))
    known = {path for path, _ in leaves(config.values)}
    named = set(re.findall(r"`((?:policy|env)\.[\w.]+\w)[`={]", text)) - {"policy.reset"}
    assert len(named) > 20
    assert not {n for n in named if not any(path == n or path.startswith(f"{n}.") for path in known)}
    pipeline = SerialPipeline(nested("policy.learn.batch_size", 64), folder=tmp_path / "run", max_env_step=1)
    metrics = next(iter(pipeline)).metrics
    pipeline.close()
    named = set(re.findall(r"`(learn/\w+)`", text))
    assert len(named) == 6
    assert named <= set(metrics)
    for wrapper in (
        "atari",
        "atari_preprocessing",
        "episodic_life",
        "fire_reset",
        "reward_clip",
        "frame_stack",
    ):
        assert f"`{wrapper}`" in text
        assert wrapper in WRAPPER_REGISTRY.names()


@pytest.mark.parametrize("kind", ["ppo", "ppo_offpolicy", "ppg", "ppg_offpolicy"])
def test_every_metric_has_its_meaning(kind):
    page = (ROOT / "docs" / "metrics.md").read_text()
    learn = {} if kind.startswith("ppo") else {"aux_freq": 1}
    scales = {"obs": True, "reward": True, "obs_samples": 8}
    policy, collector = trainee(kind, normalize=scales, intrinsic={"type": "rnd"}, learn=learn)
    metrics = policy.learn_mode.forward(collector.collect())
    names = [f"collect/{name}" for name in (*Collector.METRICS, "is_success")]
    names += [f"learn/{name}" for name in metrics]
    names += evaluation_metrics(Evaluation((0.0,), (0,), infos=({"is_success": 0.0},)))
    names += [f"time/{name}" for name in (*(f"{phase}_s" for phase in PHASES), "wall_s")]
    for name in [*names, "time/env_steps_per_second"]:
        assert f"`{re.sub(r'_[0-9]+$', '_k', name)}`" in page
    assert "`learn/reference_kl`" in page
