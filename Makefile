# `make demo` and `make test` need nothing but Python 3.11 or newer, pip and make: whatever else there is to
# install goes into .venv, once.
#
#   make demo                   diagnose a real job that hangs    (SCENARIO=… another fault)
#   make hang CLASS=dtype       such a job to look at oneself, until Ctrl-C    (without CLASS: all kinds)
#   make check                  lint, types, and unit tests, without the gate and live jobs: 1 min on 2 cores
#   make test                   lint, types, tests
#   make test-all               the long matrix as well, more random examples, attacks on every expression
#   make site                   the manual as a site, in build/site
#   make bench                  what ddx costs, against its targets
#   make evals                  what ddx and the other baselines score on all incidents, as build/evals.{json,md}
#   make lint, make format      parts of the above; tidy the code
#   make accept-incidents       take over what the incidents are judged now, where it is no loss (LOST=1: there, too)
#   make mutants                does anything notice a wrong edit?
#   make clean                  remove what was made, .venv included

PYTHON ?= python3
VENV ?= .venv

# From the usual index this brings gigabytes of CUDA, which nothing here needs. Where that matters, name the
# index of CPU wheels that pytorch.org gives for your platform: make test TORCH='torch==2.13.0 --index-url …'.
# All of pip's own variables (PIP_INDEX_URL, …) work, too; a torch that .venv holds already is left as it is.
TORCH ?= torch==2.13.0

BIN := $(VENV)/bin
# Set up for the demo; for the tests, types and evals as well.
READY := $(VENV)/.ready
READY_TO_TEST := $(VENV)/.ready-to-test

LINT = $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

# Tests start many interpreters. Without cached bytecode each of them compiles all that it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo hang check test test-all site bench evals accept-incidents mutants lint format setup clean

demo: $(READY)
	$(BIN)/ddx demo $(SCENARIO)

hang: $(READY)
	@$(BIN)/python -m ddx_evals.lab hang $(CLASS)

# What takes minutes is left out: the gate, live jobs, whole commands, programs, and of tests/tools what is `slow`.
check: $(READY_TO_TEST)
	@mkdir -p build
	@($(LINT)) >build/lint.txt 2>&1 & lint=$$!; trap 'kill $$lint' INT TERM; \
		$(BIN)/python -m pytest -q -m unit tests/tools --numprocesses auto --dist worksteal; tests=$$?; \
		wait $$lint; lint=$$?; cat build/lint.txt; exit $$((tests ? tests : lint))

test: SELECTED := not long
test-all: SELECTED := long or not long
test-all: export DDX_LONG := 1

# Lint and types run beside the tests, and speak when these have ended.
test test-all: $(READY_TO_TEST)
	@mkdir -p build
	@($(LINT)) >build/lint.txt 2>&1 & lint=$$!; trap 'kill $$lint' INT TERM; \
		$(BIN)/python -m pytest -m "$(SELECTED)" --numprocesses auto --dist worksteal --durations=10; tests=$$?; \
		wait $$lint; lint=$$?; cat build/lint.txt; exit $$((tests ? tests : lint))

site: $(READY_TO_TEST)
	$(BIN)/python -m mkdocs build --strict

bench: $(READY_TO_TEST)
	$(BIN)/python -m benchmarks

evals: $(READY_TO_TEST)
	@mkdir -p build
	$(BIN)/ddx evals run --out build/evals.json --markdown build/evals.md

accept-incidents: $(READY_TO_TEST)
	$(BIN)/python -m ddx_evals.gate --accept $(if $(LOST),--lost)

mutants: $(READY_TO_TEST)
	$(BIN)/python tests/mutants.py

lint: $(READY_TO_TEST)
	$(LINT)

format: $(READY_TO_TEST)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: $(READY_TO_TEST)

# Without its package python3-venv, Debian's Python makes no environment with pip in it, but it has a pip that can.
$(BIN)/pip:
	@command -v $(PYTHON) >/dev/null || \
		{ echo "No $(PYTHON) here. Name a Python of 3.11 or newer: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit("debug-distributed needs Python 3.11 or newer, and $(PYTHON) is %d.%d. Name another one: make PYTHON=python3.12" % v if v < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV) || \
		{ $(PYTHON) -m venv --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install pip; }

$(READY): pyproject.toml | $(BIN)/pip
	$(BIN)/python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' || \
		$(BIN)/python -m pip install $(TORCH)
	$(BIN)/python -m pip install --editable '.[lab]'
	@touch $@

$(READY_TO_TEST): pyproject.toml | $(READY)
	$(BIN)/python -m pip install --editable '.[lab,agent,evals,dev,docs]'
	@touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
