# Two commands from a fresh checkout: `make demo` and `make test`. Both make .venv first.
PYTHON ?= python3
MINUTES ?= 60
BIN := .venv/bin
NATIVE := CMakeLists.txt pyproject.toml constraints.txt $(wildcard native/*)
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: demo test test-slow test-gpu sanitize soak lint format clean

demo: .venv/ready
	$(BIN)/headrace demo

test: lint
	$(BIN)/python -m pytest -q -n 3 -m "not slow and not gpu"

test-slow: .venv/ready
	$(BIN)/python -m pytest -q -m slow

test-gpu: .venv/ready
	$(BIN)/python -m pytest -q -m gpu tests/gpu

# The native module under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer; CALLS hostile calls a level.
sanitize: .venv/ready
	$(PIP) nanobind
	PYTHON=$(BIN)/python sh tests/faults/sanitize.sh

# Attacks of all kinds for MINUTES, and a table of what came of them.
soak: .venv/ready
	$(BIN)/python tests/faults/soak.py --minutes $(MINUTES)

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# torch is installed first and alone: pip then finds it in place and looks for no other. The package is built in an
# environment of its own, which holds no torch.
.venv/ready: $(NATIVE)
	@echo "Making .venv: an environment of Python, then torch, then headrace with its native module. Minutes, the first time."
	$(PYTHON) -m venv .venv
	@echo "Installing torch (the largest download) ..."
	$(PIP) torch
	@echo "Building headrace's native module, and installing what it and its tests need ..."
	PIP_CONSTRAINT=constraints.txt $(PIP) -e ".[test,lint]"
	touch $@

clean:
	rm -rf .venv build src/headrace/*.so
