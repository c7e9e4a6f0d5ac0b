PYTHON ?= python3.11
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup run test lint bench soak kill limits fuzz docs

help:
	@echo "make run    train the preset quickstart on the bundled prices"
	@echo "make test   lint, type-check and test"
	@echo "make setup  create .venv and install the pinned dependencies"
	@echo "make docs   build the documentation as a site in site/, with its links checked"
	@echo "make bench  measure, and write benchmarks/RESULTS.md"
	@echo "make kill   100 kills on each store, with all ends compared; 50 stops"
	@echo "make limits 20 runs under memory limits below their need, with all ends looked at"
	@echo "make fuzz   inputs drawn at random whose right treatment is known"
	@echo "make soak   300 small generations with everything on, resident memory fitted"

setup: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

run: setup
	$(BIN)/eigen train --preset quickstart

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest

bench: setup
	$(BIN)/python -m benchmarks

kill: setup
	$(BIN)/python -m benchmarks.kill
	$(BIN)/python -m benchmarks.stop

soak: setup
	$(BIN)/python -m benchmarks.soak

limits: setup
	$(BIN)/python -m benchmarks.limits

fuzz: setup
	$(BIN)/python -m benchmarks.fuzz

# Installed here alone, so that training and tests do not wait for it.
.venv/docs-installed: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[docs]"
	@touch $@

docs: .venv/docs-installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The site is in site/index.html."
