# Everything runs from .venv, made here from the lock files; a second call changes nothing.
#   make demo [FILES="a b"]   one real exchange, start to end, on this machine
#   make up                   the whole server on this machine (UP_ARGS="--port 8080 --gateways 2")
#   make test                 what must pass before a change goes in (PYTEST_ARGS="-k cursor" narrows it)
#   make test-all             the same and the slow ones
#   make check                formatting, lint, types, room borders
#   make bench                throughput and latency on this machine (BENCH_ARGS="--scenario cycle --seconds 8")
#   make faults               break real processes under traffic, and judge it (ARGS="--short --json")
#   make soak MINUTES=30      a long run with Locust's users, judged on what only time shows (SOAK_ARGS="--users 100")
#   make profile              flame graph of the gateway and PostgreSQL's dearest statements
#   make golden               write the golden schema, the OpenAPI and the AsyncAPI document again
#   make lock                 resolve the lock files again after a change of dependencies
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
FILES ?=
# Without one mailboxd chooses: .mailboxd here, or below /var/lib where root's home is closed to PostgreSQL's user.
DATA_DIR ?=
UP_ARGS ?=
PYTEST_ARGS ?=
BENCH_ARGS ?= --scenario cycle --devices 200 --payload 1024 --seconds 8 --json
ARGS ?=
MINUTES ?= 30
SOAK_ARGS ?=
PROFILE_ARGS ?=

.DEFAULT_GOAL := all
.PHONY: all run demo up test test-all check bench faults soak profile golden lock clean

all: .venv/.installed-dev

run: .venv/.installed

demo: .venv/.installed
	$(BIN)/mailboxd demo $(if $(DATA_DIR),--data-dir $(DATA_DIR)) $(FILES)

up: .venv/.installed
	$(BIN)/mailboxd up $(if $(DATA_DIR),--data-dir $(DATA_DIR)) $(UP_ARGS)

test: .venv/.installed-dev
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS)

test-all: .venv/.installed-dev
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: .venv/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/.installed-dev
	@$(BIN)/python -m loadtest bench $(BENCH_ARGS)

faults: .venv/.installed-dev
	@$(BIN)/python -m loadtest faults $(ARGS)

soak: .venv/.installed-dev
	@$(BIN)/python -m loadtest soak --minutes $(MINUTES) $(SOAK_ARGS)

profile: .venv/.installed-dev
	@$(BIN)/python -m loadtest profile $(PROFILE_ARGS)

golden: .venv/.installed-dev
	$(BIN)/python -m tests.golden.write_schema
	$(BIN)/python -m tests.golden.write_openapi
	$(BIN)/python -m tests.golden.write_asyncapi

lock: .venv/.installed-dev
	$(LOCK) --extra build pyproject.toml -o requirements.lock
	$(LOCK) --extra build --extra dev -c requirements.lock pyproject.toml -o requirements-dev.lock

LOCK = $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --only-binary :all: \
	--generate-hashes --no-emit-index-url --no-header

clean:
	rm -rf .venv .venv.lock build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# Scripts in .venv hold its path, so a clone that was moved needs a new one, as does one whose making was interrupted.
ifneq ($(file <.venv/.place),$(CURDIR))
.PHONY: .venv/.installed .venv/.installed-dev
endif

# The development lock holds the running one: whoever has it needs no second installation.
.venv/.installed: requirements.lock pyproject.toml
	$(call install,requirements.lock)
	@touch $@

.venv/.installed-dev: requirements-dev.lock pyproject.toml
	$(call install,requirements-dev.lock)
	@touch .venv/.installed $@

# --no-deps: the lock is the whole closure, and nothing outside of it may come in.
define install
	@command -v git >/dev/null || { echo "git is missing: apt-get install git" >&2; exit 1; }
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: apt-get install python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed (apt-get install python3, Debian 12 or newer; or make PYTHON=...)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "the venv module is missing: apt-get install python3-venv" >&2; exit 1; }
	@set -e; exec 9>.venv.lock; flock 9; \
	  if ! test "$$(cat .venv/.place 2>/dev/null)" = "$(CURDIR)"; then \
	    rm -rf .venv; $(PYTHON) -m venv .venv; printf %s "$(CURDIR)" >.venv/.place; \
	  fi; \
	  echo "installing $(1) into .venv"; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: -r $(1); \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index -e .
endef
