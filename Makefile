# Two commands are enough on a machine with Python, pip and make:
#   make demo       trains on corrupted data, prints the comparison, writes out/demo.png
#   make test       runs the tests, but for those marked `slow`
# The others:
#   make test-slow  the tests marked `slow`: exhaustive cross-products and sweeps
#   make test-all   every test, with more examples per property (what .ci/run does)
#   make test-gpu   the tests of the PyTorch backend, on the CPU and on a CUDA device
#   make docs       writes docs/_build/html/index.html
#   make lint types checks style, and the types of src
#   make dist       writes dist/*.whl and dist/*.tar.gz
# Tests that need PyTorch, Chromium or the Mulan data sets (GORELM_DATA) are skipped where those are
# missing, and say so. ARGS is passed on to pytest: make test ARGS="tests/solver -x".
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# pytest-xdist workers; each is held to one BLAS thread, as two processes sharing threads stall each other.
WORKERS ?= 2
ARGS ?=
PYTEST := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 SCIPY_ARRAY_API=1 $(BIN)/python -m pytest -n $(WORKERS)

.PHONY: demo test test-slow test-all test-gpu docs lint types dist bench clean

$(VENV)/.plot: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[plot]"
	@touch $@

$(VENV)/.dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	@touch $@ $(VENV)/.plot

$(VENV)/.docs: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	@touch $@ $(VENV)/.plot

demo: $(VENV)/.plot
	$(BIN)/python examples/demo.py

test: $(VENV)/.dev
	$(PYTEST) -m "not slow" $(ARGS)

test-slow: $(VENV)/.dev
	HYPOTHESIS_PROFILE=thorough $(PYTEST) -m slow $(ARGS)

test-all: $(VENV)/.dev
	HYPOTHESIS_PROFILE=thorough $(PYTEST) $(ARGS)

test-gpu: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --editable ".[torch]"
	$(PYTEST) tests/backends -k "torch or cuda or device or tensor" $(ARGS)

# A warning is an error: of Sphinx, of a formula that cannot be shown, of a link that leads nowhere.
docs: $(VENV)/.docs
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

dist: $(VENV)/.dev
	$(BIN)/python -m build

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/solver.py

clean:
	rm -rf $(VENV) out dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf docs/_build docs/gallery docs/generated
