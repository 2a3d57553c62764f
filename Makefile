# Every target installs what it needs. Python >= 3.11, make and a package index suffice.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 2
RIVALS := .venv-bench
TORCH := torch==2.13.0

.PHONY: demo test test-all lint docs map bench wheel pictures data licences clean

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sagda needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[flower,mlflow,parquet,report,sweep,tensorboard]' --group dev
	touch $@

demo: $(READY)  ## compare four methods on real data: a table and an HTML report
	$(BIN)/sagda compare --problem auc --data a9a --seeds 3 --out runs/demo

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

test: lint  ## check format, lint and types; run tests and doctests; build the docs
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -q
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

test-all: lint  ## the same, with the slow tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -q -m ""
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

map: $(READY)  ## write the list of modules in docs/design.md, from their docstrings
	$(BIN)/python scripts/module_map.py

docs: $(READY)  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The other software has its own environment. Without it, its rows are missing in the tables.
$(RIVALS)/.ready: pyproject.toml
	test -x $(RIVALS)/bin/python || $(PYTHON) -m venv $(RIVALS)
	$(RIVALS)/bin/python -m pip install --quiet --upgrade pip
	$(RIVALS)/bin/python -m pip install --quiet $(TORCH)
	echo $(TORCH) > $(RIVALS)/constraints.txt
	$(RIVALS)/bin/python -m pip install --quiet --group bench \
	  --constraint $(RIVALS)/constraints.txt
	touch $@

bench: $(READY)  ## measure times per round, also of other software, for docs/performance.md
	$(MAKE) $(RIVALS)/.ready || echo "The rivals cannot be installed here."
	$(BIN)/python benchmarks/bench.py $(BENCH)

wheel: $(READY)
	$(BIN)/python -m build --wheel --outdir dist .

licences: $(READY)  ## list the packages of an installation and their licences
	$(BIN)/python scripts/licences.py

pictures: $(READY)  ## draw the pictures of the tutorials by running their programs
	$(BIN)/python scripts/tutorials.py

data: $(READY)  ## rebuild the embedded a9a from the UCI Adult files
	$(BIN)/python scripts/build_a9a.py

clean:
	rm -rf $(VENV) site dist build .pytest_cache .ruff_cache
