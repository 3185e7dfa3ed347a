# Every target is one command; `make help` lists them.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH := torch==2.13.0

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-bot test test-gpu check format types walls docs facts lock cases survey bench-static bench-gradient bench-gradient-sizes bench-unseen bench-compile bench-service bench-team bench-reanalysis precision fuzz real-functions gradient-cases compile-faults device-faults mutants examples clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv, install the lock, put `gradproof` into .venv/bin

# torch is asked for by its exact version and apart from the lock: a CPU and a CUDA build share that version, so its
# hash can't be pinned; everything else is installed by hash.
$(STAMP): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or newer is needed: set PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed, this is $$($(PYTHON) --version)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

lock: $(STAMP) ## write requirements.lock anew (everything but torch, with hashes)
	sed -e 's/"torch==[0-9.]*", //' pyproject.toml > $(VENV)/pyproject.toml
	cp README.md LICENSE $(VENV)/
	cd $(VENV) && bin/pip-compile --quiet --strip-extras --generate-hashes --allow-unsafe --no-emit-index-url \
	  --no-emit-find-links --no-emit-trusted-host --extra runtime --extra broker --extra dev \
	  --output-file ../requirements.lock pyproject.toml
	cp requirements.lock $(VENV)/constraints.txt && echo hatchling > $(VENV)/build.in
	cd $(VENV) && for wanted in "--extra runtime --output-file ../docker/requirements.lock pyproject.toml" \
	  "--output-file ../docker/build.lock build.in"; do CUSTOM_COMPILE_COMMAND="make lock" bin/pip-compile --quiet \
	  --strip-extras --generate-hashes --allow-unsafe --no-annotate --no-emit-index-url --no-emit-find-links \
	  --no-emit-trusted-host --constraint constraints.txt $$wanted || exit 1; done

format: $(STAMP) ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only --quiet .

types: $(STAMP) ## strict types
	$(BIN)/mypy

walls: $(STAMP) ## the walls between the rooms
	$(BIN)/lint-imports --no-logo

check: $(STAMP) ## format, lint, types, walls, docs in step with code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tools.make_docs --check

test: $(STAMP) ## every test that needs no GPU; starts its own servers
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not gpu"

facts: $(STAMP) ## write analyzer/facts anew, out of the torch in .venv
	$(BIN)/python tools/make_facts.py

# One after the other: they watch who is on the device. Eight minutes end it, as `timeout` says with 124.
test-gpu: $(STAMP) ## every test that needs a CUDA device; under 8 minutes
	timeout --kill-after=10 480 $(BIN)/python -m pytest -n 0 -m gpu --durations=0 tests/gpu

demo: $(STAMP) ## start the service, submit a faulty repository, show what was found (KEEP=1: leave it up)
	$(BIN)/python -m tools.demo $(if $(KEEP),--keep)

demo-bot: $(STAMP) ## a pull request on a stand-in for GitHub, and what the bot writes there (KEEP=1: leave it up)
	$(BIN)/python -m tools.demo_bot $(if $(KEEP),--keep)

docs: $(STAMP) ## write the pages that come from the code
	$(BIN)/python -m tools.make_docs

examples: $(STAMP) ## run the examples of docs/gradients.md, write what they print and draw its picture
	$(BIN)/python -m tools.page_examples docs/gradients.md

cases: $(STAMP) ## score tests/cases, confirmed by kind, each miss (ARGS=--static: reading only)
	$(BIN)/python -m tools.cases $(ARGS)

compile-faults: $(STAMP) ## a compiler's kernels right and wrong, and what is said of each (ARGS=--verbose)
	$(BIN)/python -m benchmarks.compile_faults $(ARGS)

device-faults: $(STAMP) ## kernels right and wrong on the simulated device, and what is said of each (ARGS=--verbose)
	$(BIN)/python -m benchmarks.device_faults $(ARGS)

survey: $(STAMP) ## zero-configuration rates on real packages (PACKAGES="vit-pytorch entmax" ARGS="--sample 40")
	$(BIN)/python -m benchmarks.survey $(PACKAGES) $(ARGS)

bench-static: $(STAMP) ## the analyzer against ast, libcst and two linters on the same files (ARGS=--scaling)
	$(BIN)/python -m benchmarks.static_speed $(ARGS) $(PACKAGES)

bench-compile: $(STAMP) ## fourteen modules compiled, cold and warm, and what is said of each (ARGS="MLP --wheels DIR")
	$(BIN)/python -m benchmarks.compile_modules $(ARGS)

bench-service: $(STAMP) ## whole packages through the service: minutes, targets, findings, memory (ARGS="--budget 5")
	$(BIN)/python -m benchmarks.end_to_end $(PACKAGES) $(ARGS)

bench-team: $(STAMP) ## every page and list over 100,000 findings, on both databases (ARGS="--database sqlite --times 5")
	$(BIN)/python -m benchmarks.team_scale $(ARGS)

bench-reanalysis: $(STAMP) ## what a change of one file costs in a repository of 300, and that nothing is missed (ARGS="--targets 60")
	$(BIN)/python -m benchmarks.reanalysis $(ARGS)

precision: $(STAMP) ## findings per rule on ten packages, and a random sample to judge (ARGS="--seed 2 --count 50")
	$(BIN)/python -m benchmarks.precision $(ARGS) $(PACKAGES)

fuzz: $(STAMP) ## 10,000 mutated real files through the analyzer (ARGS="--count 500")
	$(BIN)/python -m benchmarks.static_fuzz $(ARGS) $(PACKAGES)

bench-gradient: $(STAMP) ## our gradient check against gradcheck on right and wrong Functions (ARGS="--quick --jobs 2")
	$(BIN)/python -m benchmarks.gradient $(ARGS)

bench-gradient-sizes: $(STAMP) ## seconds and memory of a gradient check at 10,000 and 1,000,000 elements
	$(BIN)/python -m benchmarks.gradient_sizes $(ARGS)

bench-unseen: $(STAMP) ## our gradient check on kinds of faults it wasn't written for (SET=b ARGS="--verbose --stock")
	$(BIN)/python -m benchmarks.unseen $(or $(SET),a) $(ARGS)

real-functions: $(STAMP) ## the gradient engine on released autograd.Functions (PACKAGES="entmax timm", ARGS="--wheels DIR")
	$(BIN)/python -m benchmarks.real_functions $(ARGS) $(PACKAGES)

gradient-cases: $(STAMP) ## the reported cases about gradients, from ordinary inputs (ARGS="--kind numerical")
	$(BIN)/python -m benchmarks.gradient_cases $(ARGS)

mutants: $(STAMP) ## break every condition of every rule, and see whether its examples notice (ARGS=--survivors)
	$(BIN)/python -m tools.mutants $(ARGS)

clean: ## remove what was built
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache benchmarks/results
