# `make demo` and `make test` start from a bare clone: Python 3.11 and pip are all they need.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help demo demo-attention docs test app-test lint bench bench-models bench-text bench-training bench-data
.PHONY: pictures clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-15s %s\n", $$1, $$2}' Makefile

demo: $(READY) ## Train a vision model and a language model, see what it took, use both; minutes, no network
	HF_HUB_OFFLINE=1 $(BIN)/python scripts/demo.py $(ARGS)

demo-attention: $(READY) ## Every attention mechanism held to its formula and timed
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.mechanisms $(ARGS)

# Two workers with one thread each: the tensors are too small to gain from threads, so two processes beat one. Each
# takes half of the files, and from the other's half when done: what a file's tests share is made once.
test: lint ## Lint, then run every test; ARGS="-k lsh" picks some
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal $(ARGS)

# Chromium is the system's.
app-test: $(READY) ## Install what the page needs, and use it in a browser as people do
	$(BIN)/python -m pip install -q -e ".[app]" playwright -c constraints.txt
	command -v chromium || apt-get install -y chromium || { echo "Install Chromium first: apt install chromium"; exit 1; }
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/pytest tests/app $(ARGS)

lint: $(READY) ## Check style with ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: $(READY) ## Benchmark the attention mechanisms; ARGS="--help" lists the options
	$(BIN)/python -m benchmarks.attention $(ARGS)

bench-models: $(READY) ## Benchmark the models against transformers' own; ARGS="--help" lists the options
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.models $(ARGS)

bench-text: $(READY) ## Steps per second of classifiers of texts against BERT; ARGS="--help" lists the options
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.text $(ARGS)

bench-training: $(READY) ## Time the training script against a bare loop; ARGS="--help" lists the options
	$(BIN)/python -m benchmarks.training $(ARGS)

bench-data: $(READY) ## Steps with images decoded on demand against stored ones; ARGS="--help" lists the options
	$(BIN)/python -m benchmarks.data $(ARGS)

docs: $(READY) ## Write figures and tables into README.md and docs/; ARGS=--check says what is out of date
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.docs_pages $(ARGS)

pictures: $(READY) ## Draw the pictures in docs/ again, from the figures beside them
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks.docs_pictures

clean: ## Remove .venv, caches and build products; results stay
	rm -rf .venv .pytest_cache .ruff_cache build dist *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -e ".[train,energy,export,interop,dev]" -c constraints.txt
	touch $@
