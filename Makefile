# make quickstart: the main job · make test: the tests. Both make .venv and install into it what they need.
VENV ?= .venv
WORKDIR ?= runs/quickstart
BIN := $(VENV)/bin
PYTHON ?= $(or $(wildcard $(BIN)/python),python3)
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
include launch/cpu.env
# The versions tested with this Python, each with its hashes; NEWEST=1 takes the newest instead.
LOCKS = $(if $(NEWEST),,$(wildcard constraints/$(VERSION)))
# Bytecode is made of what is imported, not of all that is installed; without it each of the tests' processes
# would compile jax and the package anew, which doubles their time.
unexport PYTHONDONTWRITEBYTECODE
LOCK_FILES = $(if $(LOCKS),constraints/uv.txt $(wildcard $(LOCKS)/*))
PIP_INSTALL = $(BIN)/python -m pip install -q --no-compile --disable-pip-version-check
# $(call LOCKED,file,options): uv installs a lock much faster than pip, but does not know pip's settings,
# such as another index.
LOCKED = { $(BIN)/uv pip install -q --python $(BIN)/python $2 --require-hashes -r $1 || \
	{ echo "uv failed; pip takes over" >&2; $(PIP_INSTALL) $2 --require-hashes -r $1; }; }
# $(call INSTALL,dev): the package and an extra. LIBTPU: Google's compiler of TPUs, which is for Linux on
# x86 alone; in a place where only its tests find it.
ifneq ($(LOCKS),)
INSTALL = $(PIP_INSTALL) --require-hashes -r constraints/uv.txt && \
	$(call LOCKED,$(LOCKS)/$1.txt) && $(PIP_INSTALL) --no-deps --no-build-isolation -e .
LIBTPU = sed -n '/^libtpu==/,/[^\\]$$/p' $(LOCKS)/tpu.txt > $(VENV)/libtpu.txt && \
	$(call LOCKED,$(VENV)/libtpu.txt,--no-deps --target $(VENV)/libtpu)
else
INSTALL = $(PIP_INSTALL) $(if $(NEWEST),-U) -e '.[$1]'
LIBTPU = $(PIP_INSTALL) --no-deps --target $(VENV)/libtpu "$$($(BIN)/python -c '$(FITTING_LIBTPU)')"
FITTING_LIBTPU = from importlib.metadata import requires; \
	print(*{name.split(";")[0] for name in requires("jax") if name.startswith("libtpu")})
endif

.PHONY: quickstart test test-slow test-faults test-peers docs coverage clean same-python

quickstart: export GLIBC_TUNABLES := $(GLIBC_TUNABLES)
quickstart: $(VENV)/.installed$(NEWEST)
	$(BIN)/python -m t5x_lite compare --config=configs/compare/quickstart.py --workdir=$(WORKDIR) --jobs=2

test: $(VENV)/.tested-with$(NEWEST)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow"

# What takes long and rarely tells anything.
test-slow: $(VENV)/.tested-with$(NEWEST)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m slow

# Break runs, checkpoints and files in every way we know: more than an hour; it prints a table.
test-faults: $(VENV)/.tested-with$(NEWEST)
	$(BIN)/python tests/faults/suite.py --jobs=2

# Against transformers and torch, in an environment of its own, which takes some gigabytes.
test-peers:
	$(MAKE) VENV=.venv-peers .venv-peers/.with-peers
	.venv-peers/bin/python -m pytest -q -W default tests/peers

.venv-peers/.with-peers: .venv-peers/.tested-with$(NEWEST)
	$(PIP_INSTALL) -e '.[dev,peers]'
	touch $@

# The manual, built into site/ without a network; mkdocs serve shows it while it is written.
docs: $(VENV)/.tested-with$(NEWEST)
	$(BIN)/mkdocs build --strict

coverage: $(VENV)/.tested-with$(NEWEST)
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q -n 2 -m "not slow"
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python %d.%d is too old: t5x_lite needs 3.11 or newer; name one with make PYTHON=python3.12" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)

same-python: | $(VENV)/bin/python
	@$(BIN)/python -c 'import sys; have = "%d.%d" % sys.version_info[:2]; sys.exit(have != "$(VERSION)" and "$(VENV) holds Python " + have + ", not $(VERSION): make clean first, or name another with VENV=")'

$(VENV)/.installed$(NEWEST): pyproject.toml $(LOCK_FILES) | same-python
	rm -f $(VENV)/.installed* $(VENV)/.tested-with*
	$(call INSTALL,report)
	touch $@

$(VENV)/.tested-with$(NEWEST): pyproject.toml $(LOCK_FILES) | same-python
	rm -rf $(VENV)/.installed* $(VENV)/.tested-with* $(VENV)/libtpu
	$(call INSTALL,dev)
	$(if $(filter Linux x86_64,$(shell uname -sm)),$(LIBTPU))
	touch $@ $(VENV)/.installed$(NEWEST)

clean:
	rm -rf $(VENV) build site *.egg-info .pytest_cache .ruff_cache .coverage*
