# `make fastcheck` runs the main job, `make test` the tests, `make vllm` both for vLLM. All set up what they need first.
PYTHON ?= python3
VENV ?= .venv
PYTEST = $(VENV)/bin/python -m pytest
WORKERS ?= 2
REPORT ?= .piecewise

.PHONY: setup ci-tools fastcheck pipeline test test-long vllm lint clean

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

# vLLM has its own environment, since it pins versions. torch comes first, as above; what vLLM wants beside it of the same
# family is made for another torch, fails to import, and takes transformers down with it.
.venv-vllm/ready: pyproject.toml constraints-vllm.txt
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --constraint constraints-vllm.txt torch==2.13.0
	.venv-vllm/bin/python -m pip install --quiet --constraint constraints-vllm.txt --editable '.[vllm]' pytest-xdist
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

fastcheck: setup
	$(PYTEST) --piecewise -n $(WORKERS) --piecewise-report $(REPORT) suites/fastcheck

# The same as a step of the pipeline in .buildkite, with its report, on this machine.
pipeline: ci-tools
	.venv-ci/bin/pytest-piecewise pipeline run-local --without gpu --without gpu-quiet --env RUN_ALL=1 \
		--only fastcheck-cpu --only report

# Left to `make test-long`: whole canary runs, costs of real builds, gates of the pipeline.
LONG = tests/faults/test_canary.py tests/ci/test_gates.py tests/test_costs.py

test: setup lint
	$(PYTEST) -n $(WORKERS) --dist loadfile tests $(LONG:%=--ignore=%)

test-long: setup
	$(PYTEST) -n $(WORKERS) --dist loadfile $(LONG)

vllm: .venv-vllm/ready
	.venv-vllm/bin/python -m pytest --piecewise -n $(WORKERS) --piecewise-report $(REPORT)/vllm suites/vllm
	.venv-vllm/bin/python -m pytest -n $(WORKERS) --dist loadfile tests/test_vllm.py tests/test_vllm_llm.py

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

clean:
	rm -rf $(VENV) .venv-ci .venv-vllm .piecewise .pytest_cache .mypy_cache .ruff_cache *.egg-info
