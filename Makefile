# make help. Everything happens in .venv, which `setup` makes and fills once for each change of what it installs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=
STORE ?= outputs/wandb

.DEFAULT_GOAL := help
.PHONY: help setup train sweep sync test chromium check format clean

help:  ## show what there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 10

setup: $(STAMP)  ## make .venv and install everything, pinned by constraints.txt

train: $(STAMP)  ## train the lesson's decoder; options in ARGS="model.width=64 seed=2"
	$(BIN)/python src/train.py $(ARGS)

sweep: $(STAMP)  ## with and without the causal mask, 5 seeds each, on all cores
	$(BIN)/python src/train.py -m experiment=causal_mask hydra/launcher=joblib $(ARGS)

# It finds the runs below WANDB_DIR and skips those that it has marked as uploaded, or that are not at their end.
sync: $(STAMP)  ## upload to Weights & Biases the runs that it does not have yet
	@if ls -d $(STORE)/wandb/offline-run-* >/dev/null 2>&1; then \
		WANDB_ERROR_REPORTING=false WANDB_DIR=$(STORE) $(BIN)/wandb sync --yes $(ARGS); \
	else \
		echo "no offline run in $(STORE)/wandb: python src/train.py makes one"; \
	fi

test: $(STAMP) chromium  ## run all tests
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

# A board is looked at in a real browser: Debian's, where it is missing and may be installed; without one, tests skip.
chromium:
	@which chromium chromium-browser google-chrome 2>/dev/null | grep -q . || \
		{ [ "$$(id -u)" = 0 ] && apt-get -qq update && \
		apt-get -qq install --yes --no-install-recommends chromium fonts-dejavu-core >/dev/null; } || \
		echo "no chromium and no right to install it: the tests that need it are skipped"

check: $(STAMP)  ## formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP)  ## format, and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove .venv and caches; outputs/ stays
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist

# uv, where there is one, is faster; it compiles only if told to, and uncompiled packages cost 20 s at every start.
$(STAMP): pyproject.toml constraints.txt
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@if command -v uv >/dev/null 2>&1; then \
		UV_COMPILE_BYTECODE=1 uv pip install --python $(BIN)/python -c constraints.txt -e ".[dev]"; \
	else \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"; \
	fi
	@touch $@
