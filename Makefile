# Two commands are enough on a machine with Python, pip and make:
#   make demo   trains on corrupted data, prints the comparison, writes out/demo.png
#   make test   runs every test
# and a third builds the documentation:
#   make docs   writes docs/_build/html/index.html
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# pytest-xdist workers; each is held to one BLAS thread, as two processes sharing threads stall each other.
WORKERS ?= 2

.PHONY: demo test docs lint types bench clean

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
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 SCIPY_ARRAY_API=1 $(BIN)/python -m pytest -n $(WORKERS)

# A warning is an error: of Sphinx, of a formula that cannot be shown, of a link that leads nowhere.
docs: $(VENV)/.docs
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/solver.py

clean:
	rm -rf $(VENV) out .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf docs/_build docs/gallery docs/generated
