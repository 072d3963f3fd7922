# `make demo` shows the library; `make test` runs what CI runs. Both need Python 3.11 or later and set up .venv themselves.
PYTHON ?= python3
# One more than the cores of a small machine: tests that wait for processes, disks and deadlines leave a core idle.
WORKERS ?= 3
VENV := .venv
BIN := $(VENV)/bin
MAKEFLAGS += --no-print-directory

# The demo installs the library alone. The tests install every extra, which includes what the demo needs.
ALL := $(VENV)/.installed
CORE := $(if $(wildcard $(ALL)),$(ALL),$(VENV)/.core)

.PHONY: demo test lint types suite coverage docs docs-version outputs generated bench benchmarks bench-gpu clean

demo: $(CORE)
	@$(BIN)/tacitly demo

test: lint
	@$(MAKE) -j 2 types suite

lint: $(ALL)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .

types: $(ALL)
	@echo "types: mypy --strict"
	@$(BIN)/mypy --no-error-summary

# Ledgers wait for the disk at every debit: temporary files lie in memory, where there is room for them.
ROOM := $(shell df -k /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4194304 {print "/dev/shm"}')
suite coverage: export TMPDIR := $(or $(TMPDIR),$(ROOM),/tmp)
# Where the environment forbids bytecode, every process of the tests would compile all the libraries again.
suite coverage: export PYTHONDONTWRITEBYTECODE :=
suite: $(ALL)
	@echo "tests: about a quarter of an hour on two cores"
	@$(BIN)/pytest -n $(WORKERS) --disable-warnings

# Apart from the tests: tracing makes them half as long again. sys.monitoring (Python 3.12) costs less than a trace
# function, and coverage.py does not choose it by itself before 3.14.
coverage: export COVERAGE_CORE = $(shell $(BIN)/python -c "import sys; print('sysmon' if sys.version_info >= (3, 12) else 'ctrace')")
coverage: $(ALL)
	@$(BIN)/pytest -n $(WORKERS) --disable-warnings --cov --cov-report=
	@$(BIN)/coverage report --sort=cover > $(VENV)/coverage.txt
	@echo "coverage: $$(tail -n 1 $(VENV)/coverage.txt), all of it in $(VENV)/coverage.txt; the files with the least:"
	@sed -n '3,10p' $(VENV)/coverage.txt

# The documentation as a site, in site/index.html: a warning is an error.
docs: $(ALL)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "docs: site/index.html; with search: $(BIN)/python -m http.server -d site"

# The same in FOLDER/VERSION, beside the versions that are there, with a menu of them in the header.
FOLDER ?= versions
docs-version: $(ALL)
	@$(BIN)/python tools/versions.py $(FOLDER)

# What commands and examples print, as pages show it: runs them all. The tests compare all but the digits.
outputs: $(ALL)
	@$(BIN)/python tools/outputs.py

# What is committed but made by a program: tables in README and docs, imports for type checkers, the import graph.
GENERATORS := benchmarks/readme.py benchmarks/papers/page.py $(wildcard tools/generated.py) tools/import_graph.py
generated: $(ALL)
	@for program in $(GENERATORS); do PYTHONPATH=. $(BIN)/python $$program || exit 1; done

# Speed on this machine's CPU, in less than twenty minutes: queries against their floors, the way in, whole fits.
bench: $(ALL)
	$(BIN)/python -m benchmarks.speed.floors
	$(BIN)/python -m benchmarks.speed.way_in
	$(BIN)/python -m benchmarks.speed.cold_start
	$(BIN)/python -m benchmarks.speed.driver
	$(BIN)/python -m benchmarks.speed.round
	$(BIN)/python -m benchmarks.speed.gram
	$(BIN)/python -m benchmarks.speed.low_rank_sparse
	$(BIN)/python -m benchmarks.speed.trace
	$(BIN)/python -m benchmarks.speed.mixed_effects --only releases
	$(BIN)/python -m benchmarks.speed.goals
	$(BIN)/python -m benchmarks.readme

# Every program that writes results on this machine's CPU, half a day in all; those that need a GPU are in bench-gpu.
benchmarks: $(ALL)
	$(BIN)/python -m benchmarks.papers.private_fedrep
	$(BIN)/python -m benchmarks.papers.fedpower
	$(BIN)/python -m benchmarks.papers.fedpower_tables --seconds 1e9
	$(BIN)/python -m benchmarks.papers.fedpower_connect4
	$(BIN)/python -m benchmarks.papers.pca
	$(BIN)/python -m benchmarks.papers.fedpower_figures
	$(BIN)/python -m benchmarks.papers.fedpower_routes
	$(BIN)/python -m benchmarks.papers.jester
	$(BIN)/python -m benchmarks.papers.jester --networks
	$(BIN)/python -m benchmarks.papers.centaur
	$(BIN)/python -m benchmarks.papers.centaur_linear
	$(BIN)/python -m benchmarks.papers.centaur_table1
	$(BIN)/python -m benchmarks.speed.modules
	$(BIN)/python -m benchmarks.speed.neural
	$(BIN)/python -m benchmarks.speed.compiled_networks
	$(BIN)/python -m benchmarks.neural_conformance
	$(BIN)/python -m benchmarks.papers.margin
	$(BIN)/python -m benchmarks.papers.low_rank_sparse
	$(BIN)/python -m benchmarks.papers.neural_low_rank_sparse
	$(BIN)/python -m benchmarks.papers.quirks
	$(BIN)/python -m benchmarks.papers.sparse_values
	$(BIN)/python -m benchmarks.speed.gram
	$(BIN)/python -m benchmarks.papers.trace_regression
	$(BIN)/python -m benchmarks.papers.trace_attack
	$(BIN)/python -m benchmarks.papers.trace_designs
	$(BIN)/python -m benchmarks.speed.trace
	$(BIN)/python -m benchmarks.families
	$(BIN)/python -m benchmarks.few_users
	$(BIN)/python -m benchmarks.late_starts
	$(BIN)/python -m benchmarks.panels
	$(BIN)/python -m benchmarks.panel_losses
	$(BIN)/python -m benchmarks.shared_basis_panels
	$(BIN)/python -m benchmarks.standard_errors
	$(BIN)/python -m benchmarks.growth_curves
	$(BIN)/python -m benchmarks.ratings
	$(BIN)/python -m benchmarks.ledger
	$(BIN)/python -m benchmarks.lost_sites
	$(BIN)/python -m benchmarks.idle_sites
	$(BIN)/python -m benchmarks.plan
	$(BIN)/python -m benchmarks.audit
	$(BIN)/python -m benchmarks.speed.round
	$(BIN)/python -m benchmarks.speed.low_rank_sparse
	$(BIN)/python -m benchmarks.speed.mixed_effects
	$(BIN)/python -m benchmarks.speed.engines
	$(BIN)/python -m benchmarks.speed.peers
	$(BIN)/python -m benchmarks.speed.ratings
	$(BIN)/python -m benchmarks.speed.scale
	$(BIN)/python -m benchmarks.papers.theory
	$(BIN)/python -m benchmarks.readme
	$(BIN)/python -m benchmarks.papers.page

# Needs a CUDA device and a PyTorch that sees it.
bench-gpu: $(ALL)
	$(BIN)/python -m benchmarks.speed.cuda
	$(BIN)/python -m benchmarks.papers.centaur_starts
	$(BIN)/python -m benchmarks.papers.centaur_rounds
	$(BIN)/python -m benchmarks.papers.centaur_allocation
	$(BIN)/python -m benchmarks.papers.centaur_writers
	$(BIN)/python -m benchmarks.papers.centaur_names
	$(BIN)/python -m benchmarks.adapters
	$(BIN)/python -m benchmarks.features
	$(BIN)/python -m benchmarks.readme

$(BIN)/python:
	@$(PYTHON) -m venv $(VENV)

# uv downloads in parallel and links from its cache. What must come from an index that only pip is configured for goes first, by
# pip (PyTorch: the CPU build); where uv cannot do the rest, pip does.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
LOG := $(VENV)/install.log
define install
@{ $(PIP) --no-compile uv $(2) && $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e "$(1)" || $(PIP) -e "$(1)"; } \
	>$(LOG) 2>&1 || { cat $(LOG); exit 1; }
@touch $@
endef

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing tacitly into $(VENV)"
	$(call install,.)

$(ALL): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing tacitly, its extras and the test tools into $(VENV): a minute or two"
	$(call install,.[dev],torch)

clean:
	rm -rf $(VENV) .coverage demo-model visits.csv site
