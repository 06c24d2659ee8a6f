# Everything a contributor types. Each target makes the virtual environment it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SOURCE := ding_lite entry configs examples benchmarks tests setup.py

.DEFAULT_GOAL := help
.PHONY: help train test test-slow test-all check lint type learn results bench soak format clean

help:           ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 12

# Made anew whenever what is installed could have changed.
$(VENV)/ready: setup.py constraints.txt
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade -c constraints.txt pip setuptools
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

# Tianshou asks for an older pandas than the constraints have, DI-engine for NumPy 1 and more; both run on theirs.
DI_ENGINE_NEEDS = einops flask hickle mpire pynng pyyaml redis requests tabulate URLObject
$(VENV)/peers: $(VENV)/ready
	$(BIN)/pip install --quiet -c constraints.txt -e ".[bench]"
	$(BIN)/pip install --quiet -c constraints.txt --no-deps tianshou
	$(BIN)/pip install --quiet -c constraints.txt $(DI_ENGINE_NEEDS)
	$(BIN)/pip install --quiet --no-deps DI-engine==0.5.3 DI-toolkit==0.3.0 gym==0.25.1
	touch $@

train: $(VENV)/ready   ## install, and solve CartPole
	$(BIN)/ding-lite train -c cartpole_ppo

# A worker takes neighbouring tests, so that what those of one file share is set up once, not in both.
PYTEST := $(BIN)/pytest -n 2 --dist worksteal

test: $(VENV)/ready    ## install, and run the daily tests
	$(PYTEST)

test-slow: $(VENV)/ready  ## the tests that take long
	$(PYTEST) -m slow

test-all: $(VENV)/ready   ## both
	$(PYTEST) -m ""

lint: $(VENV)/ready    ## style and dead code
	$(BIN)/ruff format --check $(SOURCE)
	$(BIN)/ruff check $(SOURCE)

type: $(VENV)/ready    ## types
	$(BIN)/mypy

check: lint type test  ## all that must hold before a commit

learn: $(VENV)/ready   ## every shipped config reaches its score (an hour or two; restartable)
	$(BIN)/python benchmarks/learning.py --check

results: $(VENV)/ready ## one row of that table: make results ROW=cartpole_ppo
	$(BIN)/python benchmarks/learning.py $(ROW)

bench: $(VENV)/peers   ## speed beside other libraries (an hour or two; restartable): make bench ROW=cartpole
	$(BIN)/python benchmarks/throughput.py $(ROW)

soak: $(VENV)/ready    ## half an hour of training while workers die: make soak MINUTES=3
	$(BIN)/python benchmarks/soak.py $(MINUTES)

format: $(VENV)/ready  ## rewrite layout and imports
	$(BIN)/ruff check --select I --fix $(SOURCE)
	$(BIN)/ruff format $(SOURCE)

clean:                 ## remove what was made
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
