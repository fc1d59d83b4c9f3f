# Everything runs in the project's own environment, .venv. `make help` lists the targets.

PYTHON ?= python3
PYTEST_ARGS ?=
BIN := .venv/bin
STAMP := .venv/installed
BRIDGES := .venv/bridges
# Twice: warnings, for example of places in the user's pip configuration that are not there, are hidden, errors are not.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --quiet
TYPING := build/typing

.DEFAULT_GOAL := help
.PHONY: help install quickstart test test-fast lint catalogue scores bench clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(STAMP) $(BRIDGES) ## make .venv and install envgym with its development tools and the bridges

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP_INSTALL) -e '.[dev]' -c constraints.txt
	touch $(STAMP)

$(BRIDGES): $(STAMP) bridges.txt
	$(PIP_INSTALL) --no-deps -r bridges.txt
	touch $(BRIDGES)

quickstart: $(STAMP) ## train a small policy and show it before and after
	$(BIN)/envgym quickstart

# One thread per process: the tests start several processes, and small models gain nothing from more.
test test-fast: export OMP_NUM_THREADS := 1

# The slow tests train and serve models, which takes all cores; the others, a file at a time, share two.
test: test-fast lint ## style, types and all tests
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

test-fast: install ## the tests that take seconds
	$(BIN)/python -m pytest -m 'not slow' -n 2 --dist loadfile $(PYTEST_ARGS)

# mypy does not follow the mapping in pyproject.toml that puts environments/ and agents/ below envgym, so it reads links
# that lie where the installed packages do. The paths it reports begin there.
lint: install ## style and types
	$(BIN)/ruff check .
	rm -rf $(TYPING) && mkdir -p $(TYPING)/envgym
	cd $(TYPING)/envgym && ln -s ../../../envgym/* ../../../environments ../../../agents .
	cd $(TYPING) && ../../$(BIN)/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p envgym

catalogue: $(STAMP) ## write docs/environments.md
	$(BIN)/python -m envgym.cli.catalogue

scores: install ## play every environment, write environments/scores.json and docs/environments.md
	$(BIN)/python -m envgym.cli.catalogue --measure

bench: $(STAMP) ## speed of the embedded engine
	$(BIN)/python tests/benchmarks/bench_engine.py

clean: ## remove what was built and cached, but not .venv or runs
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find envgym environments agents tests examples -name __pycache__ -prune -exec rm -rf {} +
