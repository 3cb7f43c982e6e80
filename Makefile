# Every target sets itself up: nothing has to be installed first but make, Python >= 3.11 and a C++20 compiler.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
MODEL ?= smollm2
PROMPT ?= In two sentences: why is reading a prompt faster than writing an answer?
OUT ?= measure.json
SOAK ?= 3600
BASE ?= HEAD~1
ARGS ?=

# make's own default is g++ even where only clang is installed
ifeq ($(origin CXX),default)
CXX := $(firstword $(foreach name,c++ g++ clang++,$(if $(shell command -v $(name) 2>/dev/null),$(name))) c++)
endif

# what the compiled extension and the installed dependencies depend on
BUILD_INPUTS := pyproject.toml $(wildcard CMakeLists.txt) $(shell find src/phaseline/csrc -type f 2>/dev/null)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test soak check sanitize bench bench-base lab wheel clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

demo: $(VENV)/.core  ## fetch a small model, answer one prompt, measure both phases
	$(BIN)/phaseline pull $(MODEL)
	$(BIN)/phaseline run $(MODEL) "$(PROMPT)"
	$(BIN)/phaseline measure $(MODEL)

test: $(VENV)/.dev  ## run all tests (ARGS="-k name" goes to pytest)
	$(BIN)/python -m pytest $(ARGS)

soak: $(VENV)/.dev  ## a server under mixed load for SOAK seconds (3600): known answers, flat memory, no page lost
	PHASELINE_SOAK_S=$(SOAK) $(BIN)/python -m pytest -q -s tests/serve/test_soak.py $(ARGS)

check: $(VENV)/.dev  ## lint, check types and import arrows
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_arrows.py

# Without site (-S) no editable install can put the plain build first. Leaks are not counted: Python itself has some. A
# finding ends the process, and would be lost in what pytest captures (-s).
KERNEL_TESTS := tests/execute/test_arena.py tests/execute/test_packing.py $(wildcard tests/execute/test_*_kernels.py) \
  tests/execute/test_same_bits.py tests/execute/test_team.py
sanitize: $(VENV)/.dev  ## kernel tests under AddressSanitizer and UBSan, in a build of its own
	$(PIP) install --quiet --no-deps --upgrade --target build/sanitized -C build-dir=build/sanitize \
	  -C cmake.define.PHASELINE_SANITIZE=ON .
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	  PYTHONPATH="build/sanitized:$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
	  $(BIN)/python -S -m pytest -q -s -p no:cacheprovider $(KERNEL_TESTS) $(ARGS)

bench: $(VENV)/.dev  ## both phases against every peer that is installed, by turns; then accuracy
	$(BIN)/python benchmarks/versus.py $(ARGS)
	$(BIN)/python benchmarks/accuracy.py

bench-base: $(VENV)/.dev  ## both phases against a revision of this project: make bench-base BASE=HEAD~1
	$(BIN)/phaseline lab compare rev:$(BASE) this --model $(MODEL) --aa $(ARGS)

lab: $(VENV)/.core  ## the full measurement, with its raw samples in OUT (measure.json)
	$(BIN)/phaseline measure $(MODEL) --full --out $(OUT)

wheel: $(VENV)/.made  ## build an installable wheel in dist/
	$(PIP) wheel --no-deps --wheel-dir dist .

clean:  ## remove what was built (the environment goes with: rm -r .venv)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
	rm -f $(VENV)/.core $(VENV)/.dev

$(VENV)/.core: $(VENV)/.made $(BUILD_INPUTS)
	@echo "Building Phaseline: about a minute, up to three on two cores."
	$(PIP) install --quiet --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.made $(BUILD_INPUTS)
	@echo "Building Phaseline and installing what its tests need."
	$(PIP) install --quiet --editable '.[dev,reference]'
	@touch $(VENV)/.core $@

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Phaseline needs Python >= 3.11; '$(PYTHON)' is older or missing. Name another: make PYTHON=python3.12"; exit 1; } >&2
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo "'$(PYTHON)' cannot make a virtual environment: install python3-venv (Debian, Ubuntu)"; exit 1; } >&2
	@test -e "$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" || \
	  { echo "'$(PYTHON)' lacks its C headers: install python3-dev (Debian, Ubuntu) or python3-devel (Fedora)"; exit 1; } >&2
	@echo 'int main() {}' | $(CXX) -std=c++20 -fsyntax-only -x c++ - 2>/dev/null || \
	  { echo "'$(CXX)' is not a C++20 compiler: install g++ (Debian, Ubuntu: g++; Fedora: gcc-c++) or name one: make CXX=clang++"; exit 1; } >&2
	$(PYTHON) -m venv $(VENV)
	@touch $@
