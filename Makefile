# The commands of a contributor. Each target makes the virtual environment it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SOURCE := ding_lite docs entry configs examples benchmarks tests setup.py

.DEFAULT_GOAL := help
.PHONY: help train test test-slow test-all check lint type learn results evidence bench gpu soak docs format clean

help:           ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 12

# Built again when the requirements have changed.
$(VENV)/ready: setup.py constraints.txt
	[ ! -e $@ ] || rm -rf $(VENV)  # one that a user has made stays
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade -c constraints.txt pip setuptools
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

# DI-engine requires NumPy 1 and more; it runs with the constraints' versions.
DI_ENGINE_NEEDS = einops flask hickle mpire pynng pyyaml redis requests tabulate URLObject
$(VENV)/peers: $(VENV)/ready
	$(BIN)/pip install --quiet -c constraints.txt -e ".[envpool]" sb3-contrib tianshou
	$(BIN)/pip install --quiet -c constraints.txt $(DI_ENGINE_NEEDS)
	$(BIN)/pip install --quiet --no-deps DI-engine==0.5.3 DI-toolkit==0.3.0 gym==0.25.1
	touch $@

train: $(VENV)/ready   ## install, and solve CartPole
	$(BIN)/ding-lite train -c cartpole_ppo

# Each worker takes neighbouring tests, so that the fixtures of a file are set up once and not by both.
PYTEST := $(BIN)/pytest -n 2 --dist worksteal

test: $(VENV)/ready    ## install, and run the daily tests
	$(PYTEST)

# Tests that need these packages are slow ones; contributors who run only the daily tests need not install them.
$(VENV)/extras: $(VENV)/ready
	$(BIN)/pip install --quiet -c constraints.txt -e ".[envpool,export]" mlflow-skinny sqlalchemy alembic ray wandb
	touch $@

test-slow: $(VENV)/extras   ## run the slow tests, and the properties on more examples
	$(PYTEST) -m "slow or hypothesis" --hypothesis-profile=slow

test-all: $(VENV)/extras    ## run the daily and the slow tests
	$(PYTEST) -m "not bench" --hypothesis-profile=slow

lint: $(VENV)/ready    ## check style and dead code
	$(BIN)/ruff format --check $(SOURCE)
	$(BIN)/ruff check $(SOURCE)

type: $(VENV)/ready    ## check types
	$(BIN)/mypy

check: lint type test  ## run lint, type and test: required before a commit

learn: $(VENV)/extras  ## run the longest tests, compare with the reference, measure learning (hours; restartable)
	$(PYTEST) -m bench
	PYTHONPATH=tests $(BIN)/python -m reference.sweep 0 600
	$(BIN)/python benchmarks/learning.py --check

results: $(VENV)/ready ## measure one row of learning results: make results ROW=cartpole_ppo
	$(BIN)/python benchmarks/learning.py $(ROW)

evidence: $(VENV)/peers ## measure learning beside Stable-Baselines3 (a day; restartable)
	$(BIN)/python benchmarks/side_by_side.py
	$(BIN)/python benchmarks/out_of_the_box.py

bench: $(VENV)/peers   ## measure speed beside other libraries (an hour or two; restartable): make bench ROW=cartpole
	$(BIN)/python benchmarks/throughput.py $(ROW)

gpu: $(VENV)/extras    ## measure what needs a GPU (hours; restartable): make gpu STEPS="tests atari" MINUTES=9
	$(BIN)/python benchmarks/gpu.py $(STEPS) $(if $(MINUTES),--minutes $(MINUTES))

soak: $(VENV)/ready    ## train for half an hour while workers die: make soak MINUTES=3
	$(BIN)/python benchmarks/soak.py $(MINUTES)

# The variable silences a notice about the future of MkDocs; a warning about a page ends the build.
docs: $(VENV)/ready    ## build the site of the documentation into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

format: $(VENV)/ready  ## rewrite layout and imports
	$(BIN)/ruff check --select I --fix $(SOURCE)
	$(BIN)/ruff format $(SOURCE)

clean:                 ## remove all generated files
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
