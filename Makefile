# Everything sets itself up: a virtual environment in .venv, dependencies by name and range from pyproject.toml.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# The package as one folder, of links: mypy and griffe know nothing of __path__.
ONE_FOLDER = rm -rf build/typed && mkdir -p build/typed/perennial && \
	ln -s $(addprefix $(CURDIR)/,$(wildcard perennial/*.py perennial/py.typed) common server client simulation) build/typed/perennial

.PHONY: help demo test lint docs test-slow test-install test-deploy test-cluster test-page test-predict canary fuzz paper \
	real paper-quick bench clean
.DEFAULT_GOAL := help

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(VENV)/pip:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/simulation: $(VENV)/pip pyproject.toml
	$(BIN)/pip install --quiet --editable '.[simulation]'
	touch $@

$(VENV)/datasets: $(VENV)/pip pyproject.toml
	$(BIN)/pip install --quiet --editable '.[simulation,datasets]'
	touch $(VENV)/simulation $@

$(VENV)/docs: $(VENV)/pip pyproject.toml
	$(BIN)/pip install --quiet --editable '.[docs]'
	touch $@

$(VENV)/real: $(VENV)/pip pyproject.toml
	$(BIN)/pip install --quiet --editable '.[simulation,real]'
	touch $(VENV)/simulation $@

$(VENV)/dev: $(VENV)/pip pyproject.toml
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $(VENV)/simulation $(VENV)/datasets $@

demo: $(VENV)/simulation ## FedAvg forgets, MM-PSGD and MC-PSGD do not: a table and runs/demo/report.html in a minute
	$(BIN)/flower-simulation run simulation/experiments/demo.yaml --overwrite

# What the tests print is kept in build/gate.log; if they fail, under a name that the next run leaves alone.
test: lint ## the gate: ruff, mypy --strict, and the tests (the slow ones, and those that need root, are in test-install and test-deploy)
	@mkdir -p build && rm -f build/gate.code
	{ $(BIN)/pytest -q --numprocesses 2 --dist loadfile 2>&1; echo $$? >build/gate.code; } | tee build/gate.log
	@code=$$(cat build/gate.code); test $$code -eq 0 || { kept=build/gate-failed-$$(date +%Y%m%d-%H%M%S).log; \
		cp build/gate.log $$kept; echo "the tests failed; what they printed is kept in $$kept"; exit $$code; } >&2

lint: $(VENV)/dev ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(ONE_FOLDER)
	$(BIN)/mypy

docs: $(VENV)/docs ## the pages of docs/ as a site, in build/site; a link that leads nowhere is an error
	$(ONE_FOLDER)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

paper: $(VENV)/datasets ## every figure and table of the paper on CIFAR-10, and the theorems (hours; goes on where it stopped)
	$(BIN)/python -m perennial.simulation.paper run
	$(BIN)/python -m perennial.simulation.theory --output docs/results/theory
	$(BIN)/python -m perennial.simulation.paper collect runs/paper --output docs/results --page docs/results.md docs/results/*.md

real: $(VENV)/real ## real data that come in cycles, with every control: docs/real-data.md (goes on where it stopped)
	$(BIN)/python -m perennial.simulation.real

paper-quick: $(VENV)/simulation ## the same in minutes, on digits
	$(BIN)/python -m perennial.simulation.paper run --quick
	$(BIN)/python -m perennial.simulation.theory --output runs/paper-quick/theory --quick
	$(BIN)/python -m perennial.simulation.paper collect runs/paper-quick --output runs/paper-quick/results

bench: $(VENV)/simulation ## seconds a round, ours beside stock Flower's; by clients and model size
	$(BIN)/python -m benchmarks.rounds
	$(BIN)/python -m benchmarks.scaling

# build/lib would bring what an earlier build had, also if it is gone from the tree.
test-install: $(VENV)/dev ## the wheel as users have it: pip install in a clean environment; with all extras, the demo
	rm -rf build/clean build/lib && $(BIN)/pip wheel --quiet --no-deps --wheel-dir build/clean .
	$(PYTHON) -m venv build/clean/venv && build/clean/venv/bin/pip install --quiet build/clean/*.whl
	cd build/clean && venv/bin/python -c 'import perennial.server.strategies, sys; assert "torch" not in sys.modules'
	cd build/clean && ! venv/bin/python -c 'import torch' 2>/dev/null
	cd build/clean && for name in client server simulation; do venv/bin/flower-$$name --help >/dev/null || exit 1; done
	$(BIN)/pytest -q --numprocesses 2 --dist loadfile -m "slow or not slow" tests/install

test-deploy: $(VENV)/dev ## server and devices in network namespaces (root), with all the trouble a fleet has
	tests/deploy/needs.sh
	$(BIN)/pytest -q -m "slow or root" tests/deploy

# flwr 1.42 comes by itself, without its dependencies: another package's pin keeps some of them out.
canary: $(VENV)/dev ## the library and the quick runtime with flwr 1.42, then with the newest flwr that can be had
	$(BIN)/python -m tests.canary '1.42.*' newest

test-slow: $(VENV)/dev ## what takes the gate too long: compiled steps, exported files, KServe's client, a year of twenty clocks
	$(BIN)/pytest -q --numprocesses 2 --dist loadfile -m slow tests/client tests/common tests/server

test-cluster: $(VENV)/dev ## a Ray cluster of two raylets, one of which dies in mid-run, and a third one that joins
	$(BIN)/pytest -q -m "slow or not slow" tests/simulation/test_machines.py

test-predict: $(VENV)/dev ## every export, 20,000 requests beside 200 publications, KServe's client, 300 odd requests a route
	$(BIN)/pytest -q -m slow tests/server/predict
	SCHEMA_EXAMPLES=300 $(BIN)/pytest -q tests/server/predict/serving/test_schema.py
	$(BIN)/python -m tests.server.predict.serving.storm
	$(BIN)/python -m tests.server.predict.serving.kills

test-page: $(VENV)/dev ## the live page of a real run in Chromium, compared with metrics.jsonl, and looked at by axe-core
	tests/page/needs.sh
	$(BIN)/pytest -q -m slow tests/page

fuzz: $(VENV)/dev ## 100,000 hostile inputs to everything that reads from outside
	$(BIN)/python -m tests.fuzz --examples 100000

clean: ## remove caches and the virtual environment
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
