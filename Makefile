# The newest that runs and can make a virtual environment: a name alone may stand for nothing, as with pyenv.
PYTHON ?= $(shell for version in 3.13 3.12 3.11; do \
	python$$version -c "import ensurepip, venv" 2>/dev/null && echo python$$version && break; done)
BIN := .venv/bin
# Each process of a test would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run test test-all lint bench soak kill limits fuzz bench-trust bench-learning bench-gpu docs

help:
	@echo "make run      train the preset quickstart on the bundled prices"
	@echo "make test     lint, types, and the tests to run before each commit: some minutes"
	@echo "make test-all the thorough tests that make test leaves out"
	@echo "make setup    create .venv and install the pinned dependencies"
	@echo "make docs     build the documentation as a site in site/, with its links checked"
	@echo "make bench    measure, and write benchmarks/RESULTS.md"
	@echo "make kill     100 kills on each store, with all ends compared; 50 stops"
	@echo "make limits   20 runs under memory limits below their need, with all ends looked at"
	@echo "make fuzz     inputs drawn at random whose right treatment is known"
	@echo "make bench-trust  100 markets of noise and edges of growing strength, and what is claimed of them"
	@echo "make bench-learning  markets whose edge is known, and what each way to learn finds of it: hours"
	@echo "make bench-gpu  preset eigen2 on a GPU: times, memory, kernels, shares of what the GPU can do"
	@echo "make soak     300 small generations with everything on, resident memory fitted"

setup: .venv/installed

# Most modules are never imported: those of a training are compiled by the last two commands, others when they are.
.venv/installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "No Python 3.11, 3.12 or 3.13 with venv was found: install one (on Debian python3 \
	and python3-venv), or name it: make PYTHON=/path/to/python" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable ".[dev,mujoco,tensorboard,mlflow,sweep,download,calendars,baselines]"
	$(BIN)/python -P tests/support/kept_database.py
	$(BIN)/python -P -c "import eigen_core.generation, eigen_core.workers"
	@touch $@

run: setup
	$(BIN)/eigen train --preset quickstart

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Files stay together: their tests share what is costly to set up. In their order the longest tests are not the last.
PYTEST := $(BIN)/pytest --maxprocesses 8 --dist loadfile --no-loadscope-reorder

TESTS := not thorough and not slow
PROCESSES := auto
test: lint
	$(PYTEST) --numprocesses $(PROCESSES) -m "$(TESTS)"

# Half as many processes more than cores: many of these tests wait for servers.
test-all: setup
	$(PYTEST) --numprocesses $$(( $$(nproc) * 3 / 2 )) -m "thorough and not slow"

bench: setup
	$(BIN)/python -m benchmarks

kill: setup
	$(BIN)/python -m benchmarks.kill
	$(BIN)/python -m benchmarks.stop

bench-trust: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.trust

bench-learning: setup
	for part in market learners portfolio; do \
	  OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.learning bench --part $$part || exit 1; \
	done

bench-gpu: setup
	$(BIN)/python -m benchmarks.gpu

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
