# make train and make test work on a fresh clone; everything lives in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help setup train test check test-all docs docs-serve wheel pythons bench regress chaos clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/.dev  ## create .venv with everything development needs

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.run

train: $(VENV)/.run  ## train CartPole with asynchronous actors, about a minute
	$(BIN)/lrl fit --config configs/cartpole.yaml

test: $(VENV)/.dev  ## the fast tests
	$(BIN)/python -m pytest -n 2 --dist loadscope -m "not slow and not learning and not ddp and not gpu"

test-all: $(VENV)/.dev  ## all tests: also slow, learning and ddp
	$(BIN)/python -m pytest

check: $(VENV)/.dev  ## format, lint, types, layers, spelling, pyproject.toml
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/typos
	$(BIN)/validate-pyproject pyproject.toml

docs: $(VENV)/.dev  ## build the site of docs/ into build/site; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open build/site/index.html"

docs-serve: $(VENV)/.dev  ## the same on http://localhost:8000, with a search, built anew at every change
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

wheel: $(VENV)/.dev  ## build dist/lrl-VERSION-py3-none-any.whl and the source archive
	$(BIN)/python -m build --no-isolation --outdir dist .

PYTHONS ?= python3.10 python3.12 python3.13
pythons:  ## fast tests and a real training with other Pythons: make pythons PYTHONS="python3.12"
	.ci/pythons $(PYTHONS)

bench: $(VENV)/.run  ## what each part of lrl, and whole runs, do on this machine, half an hour
	$(BIN)/python -m benchmark.parts
	$(BIN)/lrl bench

regress: $(VENV)/.dev  ## train a dozen recipes and compare their scores with the recorded ones, 20 minutes
	$(BIN)/python -m benchmark.scores.regress

chaos: $(VENV)/.dev  ## kill, stop, starve and damage everything, for about two hours
	$(BIN)/python -m benchmark.chaos --json docs/reliability.json --page docs/reliability.md

clean:  ## remove the virtual environment, caches and what was built
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
