# Everything runs from a fresh clone with python3 (3.11 or newer) and make; `make help` lists the targets.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 2
NAME :=

# Work is split by test, in stretches of neighbours, which share fixtures and what is compiled: a worker that has
# nothing left to do takes half of another's stretch.
# Most tests wait for compilation, so what XLA compiles by its own defaults is compiled with the least effort.
QUICK := XLA_FLAGS="--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
PYTEST := $(QUICK) $(BIN)/python -m pytest
WORKERS := -n $(JOBS) --dist worksteal
EXAMPLES := --doctest-modules --doctest-glob=README.md src/mgvi experiments/datasets README.md

.DEFAULT_GOAL := help
.PHONY: help venv demo test lint types imports unit doctest slow bench format clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## *(.*)/\1|\2/' | awk -F'|' '{printf "  make %-8s  %s\n", $$1, $$2}'

venv: $(STAMP)  ## create the virtual environment with all development tools

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

demo: $(STAMP)  ## infer a rate from counts that it generates: a table, and a picture in out/
	$(BIN)/python examples/poisson_lognormal.py

# One recipe, not prerequisites: the cheap checks come first, also under `make -j`.
test: $(STAMP)  ## everything that has to pass before a commit
	$(MAKE) lint
	$(MAKE) types
	$(MAKE) imports
	$(PYTEST) $(WORKERS) tests $(EXAMPLES)

lint: $(STAMP)  ## rules and formatting (ruff)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(STAMP)  ## type check of the package (pyright)
	$(BIN)/pyright --pythonpath $(BIN)/python

imports: $(STAMP)  ## order of the rooms (import-linter)
	$(BIN)/lint-imports

unit: $(STAMP)  ## the fast tests
	$(PYTEST) $(WORKERS) tests

doctest: $(STAMP)  ## the examples in docstrings and in the README
	$(PYTEST) $(WORKERS) $(EXAMPLES)

# Exit status 5 of pytest: there is no slow test.
slow: $(STAMP)  ## the slow tests
	$(PYTEST) -m slow tests || [ $$? -eq 5 ]

bench: $(STAMP)  ## one measurement, as in `make bench NAME=cold`; without NAME, a list of them
	$(BIN)/python -m benchmarks $(NAME)

format: $(STAMP)  ## rewrite the files the way `make lint` wants them
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:  ## remove the virtual environment, builds, caches and outputs
	rm -rf $(VENV) build dist out .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests examples experiments benchmarks -type d -name __pycache__ -prune -exec rm -rf {} +
