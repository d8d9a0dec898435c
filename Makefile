# `make demo` and `make test` do all set-up on a fresh machine; nothing is installed again when nothing changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Two workers with one thread each beat one worker with two on these small tests.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadgroup

.PHONY: help install demo lint test test-slow test-long test-gpu coverage bench wheel clean

help:
	@echo "make demo       train a small private model and read its guarantee"
	@echo "make test       linters, types and the fast tests"
	@echo "make test-slow  the tests marked slow"
	@echo "make test-long  what takes longer than both; writes tests/long/results.md"
	@echo "make test-gpu   the tests marked gpu (needs a CUDA device)"
	@echo "make coverage   which lines of the package the fast tests run"
	@echo "make bench      time and memory of everything that suits this machine (docs/speed.md)"
	@echo "make wheel      dist/, dated by the last commit: the same bytes from the same commit"

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch --editable ".[dev]"
	touch $@

install: $(INSTALLED)

demo: $(INSTALLED)
	$(BIN)/dpbnn demo

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(PYTEST) -m "not slow and not gpu"

test-slow: $(INSTALLED)
	$(PYTEST) -m "slow and not gpu"

test-long: $(INSTALLED)
	$(BIN)/python -m tests.long

test-gpu: $(INSTALLED)
	$(BIN)/python -m pytest -q -m gpu

coverage: $(INSTALLED)
	$(PYTEST) -m "not slow and not gpu" --cov --cov-report=term

bench: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[bench,plots]"
	$(BIN)/python benchmarks all
	$(BIN)/python benchmarks report

wheel: $(INSTALLED)
	@test -z "$$(git status --porcelain)" || { echo "commit or remove what git status names: a wheel holds one commit"; exit 1; }
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) PIP_CONSTRAINT=constraints.txt $(BIN)/python -m build

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .coverage*
