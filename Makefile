# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Needs Python 3.11 or later, pip, make and git; everything else is installed into .venv, once.
# Another Python at hand: make test PYTHON=python3.12 VENV=.venv-3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := pip install -q --no-compile --disable-pip-version-check
# LOCKED=1: exactly the versions that the tests were last green with.
PIP := $(BIN)/$(INSTALL) -c $(if $(LOCKED),constraints-tested.txt,constraints.txt)
# One thread per test worker: the runner uses the cores.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

# Packages are installed without byte code; the first import of each writes it, so let it.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-oldest fuzz lock setup browser check bench reproduce docs clean

demo: $(VENV)/.core
	@$(BIN)/vicinal demo

test: $(VENV)/.test browser
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 --dist worksteal -q $(ARGS)

# The lower bounds of pyproject.toml, held once: a second environment with the oldest versions, and what
# they can break: every import, every file format and command, estimators, engines, cluster, server, ONNX.
# `make test-oldest OLDEST=tests`: everything but the browser.
OLDEST ?= tests/test_public_names.py tests/test_contracts.py tests/test_golden.py tests/test_checks.py \
  tests/test_labels.py tests/doors tests/cli tests/capture tests/confidence tests/neighbors tests/scale
test-oldest: .venv-oldest/.test
	$(TEST_ENV) .venv-oldest/bin/python -m pytest -n 2 --dist worksteal -q -m "not browser" $(OLDEST) $(ARGS)

.venv-oldest/.test: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/$(INSTALL) -c constraints-oldest.txt -e '.[test]'
	@touch $@

# Odd arrays and labels at length: `make fuzz ARGS="audit 3000 1"` (generator, count, seed).
fuzz: $(VENV)/.test
	$(TEST_ENV) PYTHONPATH=tests $(BIN)/python -m fuzz $(ARGS)

# The versions that are installed now, for LOCKED=1.
lock: $(VENV)/.test
	@{ head -2 constraints-tested.txt; $(BIN)/pip freeze --exclude-editable | sed 's/^torch==\([^+]*\).*/torch==\1/'; } \
	  > constraints-tested.new && mv constraints-tested.new constraints-tested.txt

setup: $(VENV)/.test browser

# The tests of the page drive a real Chromium: installed where apt is allowed to, else skipped.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	    { apt-get update -qq; apt-get install -y -qq chromium >/dev/null; }; } || \
	  echo "no Chromium and no right to install it: the browser tests will be skipped"

check: $(VENV)/.dev browser
	$(BIN)/ruff format --check src tests benchmarks examples experiments
	$(BIN)/ruff check src tests benchmarks examples experiments
	$(BIN)/mypy
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 --dist worksteal -q

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks $(ARGS)

# Figures and tables of the papers whose data are in $VICINAL_DATA (or --data DIR), resumable.
reproduce: $(VENV)/.test
	$(TEST_ENV) $(BIN)/python -m experiments --jobs 2 $(ARGS)

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -q -W -b html docs docs/_build/html
	$(BIN)/python -m experiments.reports docs/_build/html/reports $(if $(DATA),--data $(DATA))
	$(BIN)/python docs/check_links.py docs/_build/html
	@echo "docs/_build/html/index.html"

clean:
	rm -rf $(VENV) .venv-oldest build dist docs/_build

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[test]'
	@touch $@ $(VENV)/.core

$(VENV)/.dev: $(VENV)/.test
	$(PIP) -e '.[dev]'
	@touch $@

$(VENV)/.bench: $(VENV)/.test
	$(PIP) -e '.[bench]'
	$(PIP) --no-deps 'nngeometry>=0.3'
	@touch $@

$(VENV)/.docs: $(VENV)/.test
	$(PIP) -e '.[docs]'
	@touch $@
