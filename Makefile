# Two commands on a fresh machine with Python 3.11 or newer: `make demo` and `make test`.
# They make a virtual environment in .venv and install what they need from the package index pip is set up for.

SHELL := /bin/sh
.DEFAULT_GOAL := help

# The first of these that is there and new enough. `make test PYTHON=python3.13` names one.
CANDIDATES := python3 python3.13 python3.12 python3.11 python
PYTHON ?= $(shell for python in $(CANDIDATES); do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$python"; break; }; done)

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTEST_OPTIONS ?=

.PHONY: help demo example test check style types imports documentation format docs bench clean

help:
	@echo 'make demo    a bad night: two nightly jobs, a crash, a missed night, a broken product'
	@echo 'make example each comment once: killed jobs, deliverers and web workers'
	@echo 'make test    all tests'
	@echo 'make check   style, types, import rules, and whether the documentation is up to date'
	@echo 'make bench   how fast it is, beside what is possible on this machine'
	@echo 'make format  put the code into its form'
	@echo 'make docs    write the generated parts of the documentation again'
	@echo 'make clean   remove what these commands made'

demo: .venv/installed
	$(BIN)/python -m demo.first_night $(DEMO_OPTIONS)

example: .venv/installed-dev
	$(BIN)/python -m examples.side_effects

test: .venv/installed-dev
	$(BIN)/python -m pytest -n auto $(PYTEST_OPTIONS)

# `make -k check` goes on after the first that fails.
check: style types imports documentation

style: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed-dev
	$(BIN)/mypy
	$(BIN)/basedpyright

imports: .venv/installed-dev
	$(BIN)/lint-imports

documentation: .venv/installed-dev
	$(BIN)/python -m tools.reference --check
	$(BIN)/python -m tools.lifecycle_diagram --check

bench: .venv/installed-dev
	$(BIN)/python -m benchmarks $(BENCH_OPTIONS)

format: .venv/installed-dev
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

docs: .venv/installed-dev
	$(BIN)/python -m tools.reference
	$(BIN)/python -m tools.lifecycle_diagram

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the environment ---

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo 'make: no Python 3.11 or newer is on the PATH. Name one: make PYTHON=/path/to/python3.12' >&2; exit 1; }
	@$(PYTHON) -m venv --clear .venv || { rm -rf .venv; echo 'make: $(PYTHON) cannot make a virtual environment; on Debian the package python3-venv is missing.' >&2; exit 1; }

.venv/installed: .venv/bin/python pyproject.toml constraints-dev.txt
	$(PIP) install --constraint constraints-dev.txt --editable .
	@touch $@

.venv/installed-dev: .venv/installed
	$(PIP) install --constraint constraints-dev.txt --editable '.[dev,frameworks]'
	@touch $@
