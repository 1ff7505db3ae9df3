# Everything sets itself up: a virtual environment in .venv (by uv where it is there, else by venv
# and pip), from whatever package index this machine is configured for.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Tests and benchmarks start hundreds of processes: each would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
QUICK ?=
ONLY ?=
MINUTES ?= 150
FILE ?=
COUNT ?= 50

.PHONY: help
help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.PHONY: demo
demo: .venv/.ready-cli ## See the point in under a minute; the data stays in ./demo-store
	@$(BIN)/holdfast demo
	@echo 'In this checkout, holdfast is $(BIN)/holdfast.'

.PHONY: check
check: .venv/.ready-dev ## Lint, types and the tests nearest to what changed, in a minute; FILE=path for some
	@$(BIN)/python tools/check.py $(FILE)

.PHONY: test
test: .venv/.ready-dev ## Lint, types, imports, tests of everything, the wheel; under 15 minutes
	@$(BIN)/python tools/run_tests.py

.PHONY: test-all
test-all: .venv/.ready-dev ## Full shares, every planted fault, all interpreters, races COUNT=50 times; hours
	@COUNT=$(COUNT) $(BIN)/python tools/run_tests.py --all

.PHONY: lint
lint: .venv/.ready-dev ## Style, types and import contracts only
	@$(BIN)/python tools/run_tests.py style types imports

.PHONY: wheel-smoke
wheel-smoke: .venv/.ready-dev ## Build the wheel and use it where nothing else is installed
	@$(BIN)/python tools/run_tests.py wheel

.PHONY: format
format: .venv/.ready-dev ## Put the sources into shape
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format .

.PHONY: docs
docs: .venvs/docs/.ready ## Build the site of the documentation: build/site/index.html
	@.venvs/docs/bin/python tools/site.py

.PHONY: recording
recording: .venv/.ready-cli ## Record the demo anew for the home page of the documentation
	@$(BIN)/python tools/record_demo.py

.PHONY: bench
bench: .venv/.ready-dev .venvs/peers/.ready ## Measure; QUICK=1 for three minutes, ONLY=a,adk for some
	@$(BIN)/python -m bench $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY))

.PHONY: performance
performance: .venv/.ready-dev .venvs/plots/.ready ## Put the newest full runs into docs/performance.md
	@$(BIN)/python -m bench.report

.PHONY: torture
torture: .venv/.ready-dev ## Go on with the whole torture programme; MINUTES=150, ONLY="t1-files t4-files"
	@$(BIN)/python -m tests.torture --minutes $(MINUTES) $(ONLY)

.PHONY: powerloss
powerloss: .venv/.ready-dev ## Cut the power of real file systems, 2,000 times; needs root; MINUTES=150
	@names=$$($(BIN)/python -m tests.torture.t3_power); \
	$(BIN)/python -m tests.torture --minutes $(MINUTES) $$names

.PHONY: clean
clean: ## Remove everything that the other targets made
	rm -rf .venv .venvs build dist demo-store* bench/out .torture .pytest_cache .ruff_cache .hypothesis
	rm -rf .import_linter_cache .coverage htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.ready-cli: pyproject.toml tools/environment.sh
	@tools/environment.sh .venv -e '.[cli]'
	@touch $@

.venv/.ready-dev: pyproject.toml tools/environment.sh tools/redis_server.py
	@tools/environment.sh .venv -e '.[dev]'
	@$(BIN)/python tools/redis_server.py
	@touch $@ .venv/.ready-cli

.venvs/docs/.ready: docs/site/requirements.txt tools/environment.sh
	@tools/environment.sh .venvs/docs -r docs/site/requirements.txt
	@touch $@

.venvs/plots/.ready: bench/plots.txt tools/environment.sh
	@tools/environment.sh .venvs/plots -r bench/plots.txt
	@touch $@

.venvs/peers/.ready: bench/peers.txt tools/environment.sh
	@tools/environment.sh .venvs/peers -r bench/peers.txt
	@touch $@
