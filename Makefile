# `make setup` makes the environment in .venv; `make demo` runs a whole study on this machine, `make test` proves the
# project. Both make the environment where it is not there yet.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RESULTS := results/quick
REPORT := $(RESULTS)/report.html

.PHONY: setup $(VENV) demo test test-wide test-gpu-fake check docs format horovod clean
.DEFAULT_GOAL := demo

setup $(VENV): $(VENV)/.ready
	@echo "scaleprof is installed: $(BIN)/scaleprof lists its commands"

# A second call does nothing: the report is there.
demo: $(REPORT)
	@echo "All is done: the table with  $(BIN)/python -m analysis.scaled $(RESULTS)"
	@echo "             the report in   $(REPORT)"

$(REPORT): configs/quick.yaml | $(VENV)/.ready data/demo/.ready
	$(BIN)/python -m jobs.sweep configs/quick.yaml
	$(BIN)/python -m analysis.scaled $(RESULTS)
	$(BIN)/python -m analysis.report $(RESULTS)

data/demo/.ready: | $(VENV)/.ready
	$(BIN)/python -m train.data make data/demo
	@touch $@

# The stamp is made last, so that an interrupted installation is taken up again.
$(VENV)/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("scaleprof needs Python 3.11 or newer; say which: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.test-ready: pyproject.toml | $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $@

# The virtual cluster's tests share one cluster, which fills the machine: they come alone, and last.
# A part, in one process:  make test ARGS=tests/analysis   make test ARGS="tests/jobs/test_doctor.py -k srun"
test: $(VENV)/.test-ready
ifdef ARGS
	$(BIN)/python -m pytest $(ARGS)
else
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --ignore tests/cluster
	$(BIN)/python -m pytest tests/cluster
endif

# 64 ranks on 32 virtual nodes: 18 GB of memory, and 7 minutes on two cores, nearly all of them PyTorch's import.
test-wide: $(VENV)/.test-ready
	$(BIN)/python -m pytest tests/cluster -m wide

# The host side of GPU runs on stand-ins for NVIDIA's libraries, with PyTorch's oldest supported release (2.11, for CUDA
# 13): 5 GB and 3 minutes to make, 1 minute to test. Not part of `make test`: CI has neither the room nor the time.
GPU_FAKE ?= .venv-gpu-fake
test-gpu-fake: $(VENV)/.test-ready
	test -e $(GPU_FAKE)/.ready || tests/gpu/fake/fake_gpu.sh make $(GPU_FAKE)
	tests/gpu/fake/fake_gpu.sh build $(GPU_FAKE)
	SCALEPROF_FAKE_GPU=$(abspath $(GPU_FAKE)) $(BIN)/python -m pytest tests/gpu/fake

# Horovod, built into the environment; DDP does without. Needs g++, cmake and make.
horovod: $(VENV)/.ready
	train/backends/build_horovod.sh $(VENV)

# What CI checks beside the tests: lint, format, types.
check: $(VENV)/.test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The page that is made of the columns' own definitions, and the tables of profilers, loaders and launchers.
docs: | $(VENV)/.ready
	$(BIN)/python -m analysis.columns > docs/columns.md
	$(BIN)/python -m jobs.choices --write docs/*.md

format: $(VENV)/.test-ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(RESULTS) data/demo
