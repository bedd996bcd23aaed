# `make fastcheck` runs the main job, `make test` the tests. Both set up what they need first.
PYTHON ?= python3
VENV ?= .venv
PYTEST = $(VENV)/bin/python -m pytest
WORKERS ?= 2
REPORT ?= .piecewise

.PHONY: setup ci-tools fastcheck test lint clean

setup: $(VENV)/ready
ci-tools: .venv-ci/ready

# torch comes first and by itself: alone on a CPU-only machine it is the CPU wheel, as a dependency gigabytes of CUDA.
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[torch,models,dev]'
	touch $@

# What generates, lints, runs and reports pipelines: without torch, so that an agent has it in seconds.
.venv-ci/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-ci
	.venv-ci/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[ci]'
	touch $@

fastcheck: setup
	$(PYTEST) --piecewise -n $(WORKERS) --piecewise-report $(REPORT) suites/fastcheck

test: setup lint
	$(PYTEST) tests

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

clean:
	rm -rf $(VENV) .venv-ci .piecewise .pytest_cache .mypy_cache .ruff_cache *.egg-info
