# The project's commands. `make run` (CLOUD=azure or CLOUD=oci simulates a cloud) and `make test` set up what is missing;
# nothing but Python 3.11 with pip is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PACKAGES := packages/unbounded packages/unbounded-apiserver packages/unbounded-lab
PROJECTS := $(PACKAGES:%=%/pyproject.toml)
# scripts/test-tools puts there what the system lacks.
export PATH := $(CURDIR)/$(VENV)/tools/bin:$(PATH)
# What is imported is compiled once, whatever the environment says: tests start hundreds of processes, and each would
# spend half of its start on that.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run check format lint types layers generated tools compiled quick test soak bench docs docs-build screenshots release lock \
  generate clean

run: $(STAMP)
	@exec $(BIN)/unbounded up --lab 3 $(if $(CLOUD),--lab-cloud $(CLOUD) )--console --allow-operations --data data

# .pre-commit-config.yaml runs the quick ones of these.
check: format lint types layers generated

format: $(STAMP)
	$(BIN)/ruff format --check .

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/python -m scripts.language

types: $(STAMP)
	$(BIN)/mypy

layers: $(STAMP)
	for package in $(PACKAGES); do $(BIN)/lint-imports --config $$package/pyproject.toml || exit 1; done

generated: $(STAMP)
	$(BIN)/python -m scripts.generate --check

quick: $(STAMP)
	@$(MAKE) --no-print-directory --output-sync --keep-going -j 2 quick-1 quick-2

# Two processes that share nothing: each imports a half of the modules, and no test is reported to another process.
quick-%: $(STAMP)
	@$(BIN)/python -m pytest -q -m "not slow and not soak" --part $*/2 -p no:xdist -p no:rerunfailures --hypothesis-profile quick \
	  --durations 10 --durations-min 0.5

tools: $(STAMP)
	scripts/all-tools

# The test runner compiles each test module at its first collection: here once, and not in every one of its processes.
compiled: $(STAMP)
	@$(BIN)/python -m pytest -qq --collect-only >$(VENV)/collected 2>&1 || { cat $(VENV)/collected; exit 1; }

# A failed test runs once more, to tell a fault of a seed or of the code from one of time on a busy machine. A test that
# passes only then fails the build all the same, unless tests/reruns.txt lists it with a reason and a date. A test that
# its time limit does not end ends its process, which prints where each thread is, and the others go on.
test: tools
	$(BIN)/python -m pytest -m "not soak" -n 3 --dist worksteal --reruns 1 --max-suite-reruns 10 --rerun-show-tracebacks \
	  -o faulthandler_timeout=1500 -o faulthandler_exit_on_timeout=true --durations 20

soak: tools
	scripts/node-image ubuntu2404
	scripts/boot-tools arm64
	scripts/host-image arm64
	scripts/host-image signed
	scripts/host-image arm64-signed
	scripts/host-image general
	scripts/host-image general-signed
	UNBOUNDED_SOAK=1 $(BIN)/python -m pytest -n 2 --timeout 7200 --hypothesis-profile soak

bench: $(STAMP)
	scripts/bench-tools
	scripts/ssh-tools
	scripts/test-tools
	scripts/agent-tools
	$(BIN)/python -m benchmarks

# Tests make these pictures, too. They fail where a command prints another text than its picture has, or where a page of
# the console lacks a text that its picture has to have. Here the pictures are written to docs/screenshots.
screenshots: tools
	UNBOUNDED_SCREENSHOTS=write $(BIN)/python -m pytest tests/docs/test_*_pictures.py \
	  packages/unbounded/tests/agent/e2e/test_reboots.py

# The site of mkdocs.yml. Material for MkDocs announces its successor on each run, which is no warning of this site.
docs docs-build: export NO_MKDOCS_2_WARNING := 1

docs: $(STAMP)
	@mkdir -p build/site-pages
	$(BIN)/python -m mkdocs serve

docs-build: $(STAMP)
	@mkdir -p build/site-pages
	$(BIN)/python -m mkdocs build --strict

generate: $(STAMP)
	$(BIN)/python -m scripts.generate

# One folder with all that is released; RELEASE_KEY=FILE signs it, ARCH="amd64 arm64" makes images for both
# (scripts/release.py). The bases of images need root.
release: $(STAMP)
	set -e; for arch in $(or $(ARCH),amd64); do scripts/release-tools $$arch; done
	$(BIN)/python -m scripts.release $(if $(RELEASE_KEY),--key $(RELEASE_KEY) )\
	  $(addprefix --arch ,$(ARCH)) $(or $(OUT),release)

lock: $(STAMP)
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	  --no-emit-index-url --no-emit-find-links $(PACKAGES:packages/%=--no-emit-package %) \
	  --all-extras --group pyproject.toml:dev packages/unbounded/pyproject.toml -o requirements.lock

$(STAMP): $(PROJECTS) requirements.lock
	@echo "Setting up $(VENV), once"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.8
	@$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation $(PACKAGES:%=--editable %)
	@touch $@

clean:
	rm -rf $(VENV) data
