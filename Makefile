# Everything that Hearth needs is installed by these targets into .venv; nothing else on the machine is touched.
#   make demo    runs the main job on this machine's devices (GPUs if there are any, else the CPU backend)
#   make test    lint and tests
#   make tools   installs what some tests drive: Chromium and systemd's tools, on Debian and its kin (as root), and
#                Kubernetes' schemas
#   make docs    the reference of the client, from its docstrings, into build/reference
#   make bench   measures, with its baselines, into tests/bench/results/

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Of the tests; three keep two cores busy, for they wait a good deal.
JOBS ?= 3
comma := ,

# A C++ compiler of the system, else the one that comes as a Python package.
COMPILER_EXTRA := $(shell command -v g++ >/dev/null 2>&1 || command -v c++ >/dev/null 2>&1 || command -v clang++ >/dev/null 2>&1 || echo ,cpu)
# CuPy for the driver that is installed, if one is.
CUDA_VERSION := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: \([0-9]*\)\..*/\1/p')
CUDA_EXTRA := $(if $(CUDA_VERSION),$(if $(filter 12,$(CUDA_VERSION)),$(comma)cuda12,$(comma)cuda13))

.PHONY: demo test tools docs lint typecheck proto proto-check bench clean serve

demo: $(VENV)/.server
	$(BIN)/hearthd demo

test: $(VENV)/.dev $(VENV)-proto/.tools
	$(BIN)/ruff check client server proto tests docs deploy
	$(BIN)/ruff format --check -q client server proto tests docs deploy
	$(BIN)/mypy client/hearth server/hearthd proto/hearth_proto
	$(BIN)/pytest -n $(JOBS) --dist loadfile $(PYTEST_ARGS)

# Without them their tests are skipped. Of Prometheus only promtool is taken: the package would start a server.
tools: | $(VENV)/bin/python
	$(BIN)/pip install -q --disable-pip-version-check kubernetes-validate==1.37.0
	@for package in chromium systemd; do dpkg -s $$package >/dev/null 2>&1 || missing="$$missing $$package"; done; \
	  if [ -n "$$missing" ] || [ ! -x $(BIN)/promtool ]; then apt-get update -q; fi; \
	  if [ -n "$$missing" ]; then \
	    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $$missing; fi; \
	  if [ ! -x $(BIN)/promtool ]; then cd $(VENV) && mkdir -p deb && cd deb && apt-get download -q prometheus \
	    && dpkg -x prometheus_*.deb . && mv usr/bin/promtool ../bin/ && cd .. && rm -rf deb; fi

lint: $(VENV)/.dev
	$(BIN)/ruff check client server proto tests docs deploy
	$(BIN)/ruff format --check client server proto tests docs deploy
	$(BIN)/mypy client/hearth server/hearthd proto/hearth_proto

serve: $(VENV)/.server
	$(BIN)/hearthd serve

bench: $(VENV)/.dev
	$(BIN)/python -m tests.bench

docs: $(VENV)/.dev
	$(BIN)/python docs/reference.py build/reference

# The generator lives in an environment of its own: see proto/generate.py.
proto: $(VENV)-proto/.tools
	$(VENV)-proto/bin/python proto/generate.py

proto-check: $(VENV)-proto/.tools
	$(VENV)-proto/bin/python proto/generate.py --check

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -U pip

$(VENV)/.server: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install -q --disable-pip-version-check -e ".[server$(COMPILER_EXTRA)$(CUDA_EXTRA)]"
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install -q --disable-pip-version-check -e ".[dev$(COMPILER_EXTRA)$(CUDA_EXTRA)]"
	touch $@ $(VENV)/.server

$(VENV)-proto/.tools: Makefile
	$(PYTHON) -m venv $(VENV)-proto
	$(VENV)-proto/bin/pip install -q --disable-pip-version-check grpcio-tools==1.76.0
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-proto build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
