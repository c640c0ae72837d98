# Two commands matter: `make lab` (the scenario on a real fabric) and `make test`. Both install what is missing first.

PYTHON ?= python3
SYSTEM_PYTHON ?= /usr/bin/python3
VENV := .venv
BIN := $(VENV)/bin
LAB := $(SYSTEM_PYTHON) topologies/lab.py
LAB_FLAGS := $(if $(IPV6),--ipv6) $(if $(HOLD),--hold) $(if $(ONLY),--only $(ONLY)) $(if $(TRIALS),--trials $(TRIALS)) $(LAB_ARGS)
QUICK := tests/arch tests/unit tests/property tests/wire

.DEFAULT_GOAL := help
.PHONY: help setup system lab test check static bench fuzz clean

help:
	@echo "make lab             build a 4-leaf, 2-spine fabric of Open vSwitch bridges, run the scenario, print the report (root)"
	@echo "make lab IPV6=1      the same with all traffic over IPv6"
	@echo "make lab HOLD=1      build it and stay at the Mininet prompt"
	@echo "make lab ONLY=start,uplink_down TRIALS=5     some rows, fewer trials; LAB_ARGS=--help for the rest"
	@echo "make test            every test, integration included (root)"
	@echo "make check           format, lint, types, quick tests: seconds"
	@echo "make bench           what the project claims about speed"
	@echo "make fuzz            hostile input for SECONDS=60, longer than in make test"
	@echo "make setup           only install what is missing and start Open vSwitch"
	@echo "make clean           remove what make made, stop what make started"

setup: system
	@$(MAKE) -s $(VENV)/.installed

system:
	@PYTHON="$(PYTHON)" deploy/bootstrap system

# The file is newer than the lists of dependencies when they are installed.
$(VENV)/.installed: setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "setup: Python 3.11 or later is needed, $(PYTHON) is $$($(PYTHON) -V); name another: make PYTHON=python3.12" >&2; exit 2; }
	@echo "setup: installing the project into $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { echo "setup: install it with: sudo apt-get install -y python3-venv" >&2; exit 2; }
	@mkdir -p lab-state
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[test]' >lab-state/pip.log 2>&1 </dev/null || \
	  { tail -n 15 lab-state/pip.log >&2; echo "setup: pip failed (see lab-state/pip.log)" >&2; exit 2; }
	@touch $@

lab: setup
	@$(LAB) $(LAB_FLAGS)

# What needs no fabric first, so that a plain mistake shows in the first minutes.
test: setup
	@$(BIN)/python -m pytest --durations=5 tests --ignore=tests/integration
	@$(BIN)/python -m pytest --durations=5 tests/integration
	@$(MAKE) -s static

check: $(VENV)/.installed
	@$(MAKE) -s static
	@$(BIN)/python -m pytest -x $(QUICK) -m "not slow"

static:
	@$(BIN)/ruff format -q --check .
	@$(BIN)/ruff check -q .
	@$(BIN)/mypy

bench: $(VENV)/.installed
	@$(BIN)/python -m bench.wire

fuzz: $(VENV)/.installed
	@$(BIN)/python -m tests.fuzz.run --seconds $(or $(SECONDS),60) $(FUZZ_ARGS)

clean:
	@deploy/bootstrap stop
	@rm -rf $(VENV) lab-state lab-report.json build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
