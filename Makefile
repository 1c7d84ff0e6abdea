# Every target sets up .venv by itself when it is missing or pyproject.toml changed.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
CHECKPOINT ?= samples/demo_model
BIN := .venv/bin
INSTALLED := .venv/.installed

export RAY_USAGE_STATS_ENABLED := 0

.PHONY: help venv demo serve check test test-slow clean

help:
	@printf '%s\n' \
	  'make demo       ask a real server about pictures, sounds and videos' \
	  'make serve      serve a checkpoint (CHECKPOINT=folder, default samples/demo_model)' \
	  'make check      ruff, mypy, import contracts' \
	  'make test       check, then every test that is not slow' \
	  'make test-slow  the slow tests' \
	  'make venv       only set up .venv (PYTHON=python3.11 chooses the interpreter)' \
	  'make clean      remove caches and build output; keeps .venv'

venv: $(INSTALLED)

$(INSTALLED): pyproject.toml
	@echo 'setting up .venv; the first time takes minutes'
	@if command -v uv >/dev/null; then \
	  [ -x $(BIN)/python ] || uv venv --python '>=3.11' .venv; \
	  uv pip install --quiet --python $(BIN)/python -e '.[dev]'; \
	else \
	  [ -x $(BIN)/python ] || $(PYTHON) -m venv .venv; \
	  $(BIN)/python -m pip install --quiet -e '.[dev]'; \
	fi
	@touch $@

demo: $(INSTALLED)
	$(BIN)/python -m samples.demo --checkpoint $(CHECKPOINT)

serve: $(INSTALLED)
	$(BIN)/mmserve serve $(CHECKPOINT)

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check
	$(BIN)/python -m pytest -m 'not slow'

# pytest exits with 5 when no test is marked slow, which is no failure.
test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow || [ $$? -eq 5 ]

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf
