# Everything needs only Python 3.11+; both targets are idempotent.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 2

.PHONY: demo test types suite lint benchmarks clean

demo: $(STAMP)
	$(BIN)/tacitly demo

# Types beside tests, not before them: mypy has one core to itself and leaves the other idle.
test: lint
	$(MAKE) --no-print-directory -j 2 types suite

types: $(STAMP)
	$(BIN)/mypy

suite: $(STAMP)
	$(BIN)/pytest -n $(WORKERS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

benchmarks: $(STAMP)
	$(BIN)/python -m benchmarks.papers.private_fedrep
	$(BIN)/python -m benchmarks.papers.fedpower
	$(BIN)/python -m benchmarks.papers.centaur
	$(BIN)/python -m benchmarks.papers.centaur_linear
	$(BIN)/python -m benchmarks.speed.neural
	$(BIN)/python -m benchmarks.neural_conformance
	$(BIN)/python -m benchmarks.papers.margin
	$(BIN)/python -m benchmarks.papers.low_rank_sparse
	$(BIN)/python -m benchmarks.papers.neural_low_rank_sparse
	$(BIN)/python -m benchmarks.speed.gram
	$(BIN)/python -m benchmarks.papers.trace_regression
	$(BIN)/python -m benchmarks.papers.trace_attack
	$(BIN)/python -m benchmarks.papers.trace_designs
	$(BIN)/python -m benchmarks.speed.trace
	$(BIN)/python -m benchmarks.families
	$(BIN)/python -m benchmarks.audit
	$(BIN)/python -m benchmarks.speed.round
	$(BIN)/python -m benchmarks.speed.low_rank_sparse
	$(BIN)/python -m benchmarks.speed.engines

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) demo-model demo-model.ledger
