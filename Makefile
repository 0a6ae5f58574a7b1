# make quickstart: the main job · make test: the tests. Both make .venv and install into it what they need.
PYTHON ?= python3
VENV ?= .venv
WORKDIR ?= runs/quickstart
BIN := $(VENV)/bin
include launch/cpu.env
# The versions tested with this Python; NEWEST=1 takes the newest instead.
CONSTRAINTS = $(if $(NEWEST),,$(wildcard constraints/$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])').txt))

.PHONY: quickstart test lint coverage clean

quickstart: export GLIBC_TUNABLES := $(GLIBC_TUNABLES)
quickstart: $(VENV)/.installed
	$(BIN)/python -m t5x_lite compare --config=configs/compare/quickstart.py --workdir=$(WORKDIR)

test: $(VENV)/.tested-with
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -q -n 2

coverage: $(VENV)/.tested-with
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q -n 2
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python %d.%d is too old: t5x_lite needs 3.11 or newer; name one with make PYTHON=python3.12" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: setup.py $(CONSTRAINTS) | $(VENV)/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check $(CONSTRAINTS:%=-c %) -e .
	touch $@

$(VENV)/.tested-with: setup.py $(CONSTRAINTS) | $(VENV)/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check $(CONSTRAINTS:%=-c %) -e '.[dev]'
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .coverage*
