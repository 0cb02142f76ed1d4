# Everything sets itself up: a virtual environment in .venv, dependencies by name and range from pyproject.toml.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo test lint test-deploy paper paper-quick bench clean
.DEFAULT_GOAL := help

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(VENV)/pip:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/simulation: $(VENV)/pip pyproject.toml
	$(BIN)/pip install --quiet --editable '.[simulation]'
	touch $@

$(VENV)/dev: $(VENV)/pip pyproject.toml
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $(VENV)/simulation $@

demo: $(VENV)/simulation ## FedAvg forgets, MM-PSGD and MC-PSGD do not: a table and runs/demo/report.html in a minute
	$(BIN)/flower-simulation run simulation/experiments/demo.yaml --overwrite

test: lint ## the gate: ruff, mypy --strict, and all tests
	$(BIN)/pytest -q

lint: $(VENV)/dev ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean: ## remove caches and the virtual environment
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
