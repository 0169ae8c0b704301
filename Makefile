# make demo    set up, then predict a real VGG16
# make test    set up, then run all tests
# make check   format, lint, types, import direction
# make docs    build the documentation site, strictly, into build/site
# make team    the store of a team, here and without containers: PostgreSQL, S3, MLflow's server, the page
# make nightly damage files of every kind, a minute each (led by coverage where Atheris is installed)
# make zoo     read every model of every suite, and write docs/coverage.md (hours)
.PHONY: demo test check quick readme benchmark docs nightly zoo team setup setup-test setup-docs setup-zoo setup-team

# The first that runs: a version manager may have names for versions that it does not start.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13; do \
  $$python -c "" 2>/dev/null && echo $$python && break; done || echo python3)
VENV ?= .venv
TEAM ?= build/team
RUN := $(VENV)/bin/python -m
INSTALL := $(RUN) pip install --quiet --disable-pip-version-check -c constraints.txt

demo: setup
	$(RUN) scripts.demo

# Files stay together, because what a file's fixtures make (written models, warm workers) serves all of
# its tests; tests/conftest.py puts the long ones first. More than four processes would be short of memory
# before they are short of cores.
test: setup-test check
	$(RUN) pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

check:
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	$(VENV)/bin/lint-imports

quick:
	$(RUN) pytest -m "not slow" -x tests/unit tests/test_public_api.py

readme:
	$(RUN) scripts.readme_output
	$(RUN) scripts.site.blocks
	$(VENV)/bin/jupyter-execute --inplace examples/*.ipynb

benchmark:
	$(RUN) benchmarks.prediction
	$(RUN) benchmarks.conversion
	$(RUN) benchmarks.exploration
	$(RUN) benchmarks.run_store
	$(RUN) benchmarks.page

docs: setup-docs
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict

nightly: setup-test
	$(RUN) tests.fuzz --seconds 60

zoo: setup-zoo
	$(RUN) tests.zoo --out build/zoo/outcomes.jsonl --table docs/coverage.md

team: setup-test setup-team
	$(RUN) scripts.team

setup: $(VENV)/demo-ready
setup-test: $(VENV)/test-ready
setup-docs: $(VENV)/docs-ready
setup-zoo: $(VENV)/zoo-ready
setup-team: $(TEAM)/ready

# What failed half-way is made anew: Debian's Python without python3-venv leaves one that lacks pip.
.DELETE_ON_ERROR:

# The versions of `requires-python`; pip would say it too, after a minute of setting up.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
	  echo "DIPPM needs Python 3.11, 3.12 or 3.13, and PYTHON=$(PYTHON) is none of them. Name one: make $(firstword $(MAKECMDGOALS) demo) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo-ready: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e ".[timm]"
	touch $@

$(VENV)/test-ready: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e ".[dev,all]"
	$(RUN) pip check
	touch $@ $(VENV)/docs-ready $(VENV)/demo-ready

$(VENV)/docs-ready: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e ".[docs]"
	touch $@

$(VENV)/zoo-ready: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e ".[dev,all,zoo]"
	$(RUN) pip check
	touch $@ $(VENV)/test-ready $(VENV)/demo-ready

# MLflow's server needs four times what its client does, and other versions of what both need.
$(TEAM)/ready: deploy/requirements.txt
	$(PYTHON) -m venv $(TEAM)
	$(TEAM)/bin/pip install --quiet --disable-pip-version-check -r deploy/requirements.txt
	touch $@
