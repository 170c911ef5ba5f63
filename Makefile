# Needs make and Python 3.11 or newer, nothing else. CORES and OVERLAY may be set: make reproduce CORES=4
PYTHON ?= python3
CORES ?= all
OVERLAY ?=
BIN := .venv/bin
SNAKEMAKE := . $(BIN)/activate && snakemake --cores $(CORES)

.PHONY: install check reproduce smoke plan test test-slurm verify lint bench clean

install: .venv/installed

.venv/installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("attnid needs Python 3.11 or newer, found " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

reproduce: check
	$(SNAKEMAKE) $(if $(OVERLAY),--configfile $(OVERLAY))

smoke: install
	$(SNAKEMAKE) --configfile config/smoke.yaml

check: install
	@$(BIN)/attnid check config.yaml $(OVERLAY)

plan: check
	$(SNAKEMAKE) --dry-run --quiet rules $(if $(OVERLAY),--configfile $(OVERLAY))
	$(BIN)/attnid plan config.yaml $(OVERLAY)

test: install
	$(BIN)/python -m pytest -m "not slurm" -n auto --dist loadfile

test-slurm: install
	$(BIN)/python -m pytest -m slurm -rs

verify: install
	$(BIN)/python tools/verify.py

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile workflow
	. $(BIN)/activate && snakemake --lint

bench: install
	$(BIN)/python bench/training.py
	$(BIN)/python bench/exact.py
	$(BIN)/python bench/meter.py

clean:
	rm -rf .venv .snakemake
