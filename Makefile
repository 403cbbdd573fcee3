# `make setup` creates the environment in .venv. `make demo` runs a whole study on this machine, `make test` runs the
# tests. Both create the environment if it does not exist.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RESULTS := results/quick
REPORT := $(RESULTS)/report.html

.PHONY: setup $(VENV) demo test test-wide test-wide-apart test-wide-cluster gpu-fake test-gpu-fake check docs format horovod clean help
.DEFAULT_GOAL := demo

help:
	@echo "make setup      install into $(VENV)"
	@echo "make demo       install, run a small study, write $(REPORT)"
	@echo "make test       install the test dependencies and run the tests; a part: make test ARGS=tests/analysis"
	@echo "make check      lint, format and types"
	@echo "make horovod    build Horovod into $(VENV) (DDP does not need it)"
	@echo "make gpu-fake   stand-ins for NVIDIA's libraries, for tests without a GPU (1.3 GB)"
	@echo "make test-wide  the large tests, with 32 and 512 ranks (10 GB of memory, 13 minutes)"
	@echo "make docs       generate docs/columns.md"
	@echo "make format     format the code"
	@echo "make clean      remove $(VENV), $(RESULTS) and data/demo"

setup $(VENV): $(VENV)/.ready
	@echo "scaleprof is installed: $(BIN)/scaleprof lists its commands"

# The sweep runs what is missing: a second call trains nothing, and an interrupted demo resumes.
demo: configs/quick.yaml | $(VENV)/.ready data/demo/.ready
	$(BIN)/python -m jobs.sweep configs/quick.yaml
	$(BIN)/python -m analysis.scaled $(RESULTS)
	$(BIN)/python -m analysis.report $(RESULTS)
	@echo "The study is complete.  Table:   $(BIN)/python -m analysis.scaled $(RESULTS)"
	@echo "                        Report:  $(REPORT)"

data/demo/.ready: | $(VENV)/.ready
	$(BIN)/python -m train.data make data/demo
	@touch $@

# The stamp is written last, so that an interrupted installation is repeated.
$(VENV)/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("scaleprof needs Python 3.11 or newer; choose one: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	@echo "installing scaleprof, PyTorch and its CUDA libraries into $(VENV): downloads about 3.2 GB, takes minutes"
	@echo "(without a GPU about 0.7 GB suffice: set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU builds, see README.md)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[full]'
	@touch $@

$(VENV)/.test-ready: pyproject.toml | $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[full,test,watch-test]'
	@touch $@

# Some processes share the tests by files (tests/conftest.py).
# A part, in one process:  make test ARGS=tests/analysis   make test ARGS="tests/jobs/test_doctor.py -k srun"
test: $(VENV)/.test-ready
ifdef ARGS
	$(BIN)/python -m pytest $(ARGS)
else
	$(BIN)/python -m pytest -n auto
endif

# What takes long, and is done with less in `make test`. 32 ranks on 32 virtual nodes take 10 GB of memory and a minute
# on two cores, nearly all of it PyTorch's import; 512 ranks that train nothing start twice. These have the machine for
# themselves; CI does the others beside `make test`.
test-wide:
	$(MAKE) test-wide-apart
	$(MAKE) test-wide-cluster

test-wide-apart: $(VENV)/.test-ready
	$(BIN)/python -m pytest -m wide --ignore=tests/cluster -n 3 --durations=0 --durations-min=5

test-wide-cluster: $(VENV)/.test-ready
	$(BIN)/python -m pytest -m wide tests/cluster --durations=0 --durations-min=5

# The host side of GPU runs can be tested without a GPU, on stand-ins for NVIDIA's libraries below the oldest supported
# PyTorch (2.11, for CUDA 13): `make test` does so where the stand-ins are. Takes 1.3 GB and a minute.
GPU_FAKE ?= .venv-gpu-fake
gpu-fake: $(GPU_FAKE)/.ready
	tests/gpu/fake/fake_gpu.sh build $(GPU_FAKE)

$(GPU_FAKE)/.ready: | $(VENV)/.test-ready
	tests/gpu/fake/fake_gpu.sh make $(GPU_FAKE) $(BIN)/python

test-gpu-fake: gpu-fake
	SCALEPROF_FAKE_GPU=$(abspath $(GPU_FAKE)) $(BIN)/python -m pytest tests/gpu/fake

# Build Horovod into the environment (DDP does not need it), or into another: make horovod PREFIX=$CONDA_PREFIX.
# Needs g++, cmake and make.
horovod: $(if $(PREFIX),,$(VENV)/.ready)
	train/backends/build_horovod.sh $(or $(PREFIX),$(VENV))

# What CI checks besides the tests: lint, format, types.
check: $(VENV)/.test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Generate docs/columns.md.
docs: | $(VENV)/.ready
	$(BIN)/python -m analysis.columns > docs/columns.md

format: $(VENV)/.test-ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(RESULTS) data/demo
