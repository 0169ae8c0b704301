# make demo    set up, then predict a real VGG16
# make test    set up, then run all tests
# make coverage  the same tests, and which lines of dippm they run, in half an hour; fails below fail_under of pyproject.toml
# make check   format, lint, types, import direction
# make docs    build the documentation site, strictly, into build/site
# make team    the store of a team, here and without containers: PostgreSQL, S3, MLflow's server, the page
# make retrain VERSION=... the default predictor from nothing: tables, graphs, fits, checkpoint (hours)
# make retrain-small  the same way with the shipped sample of tables and ten steps, and a prediction (minutes)
# make quick   the tests that cost little, in a minute
# make nightly what make test leaves out, all its parts; damage files of every kind, a minute each (led by coverage
#              where Atheris is installed); retrain-small. make nightly-part PART=docs runs one part
# make durations  run all tests and record what they cost, for the order of make test and the choice of make quick
# make release build the packages of this version, and try them in a clean environment; see scripts/release.py
# make zoo     read every model of every suite, and write docs/coverage.md (hours)
.PHONY: demo test coverage check quick readme benchmark docs nightly nightly-part nightly-parts durations release zoo team retrain retrain-small setup setup-quick setup-test setup-docs setup-zoo setup-team

# The first that runs: a version manager may have names for versions that it does not start.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13; do \
  $$python -c "" 2>/dev/null && echo $$python && break; done || echo python3)
VENV ?= .venv
TEAM ?= build/team
RETRAIN ?= build/retrain
SMALL := build/retrain-small
SAMPLE := migperf parvagpu optimum_benchmark flagperf raphischer
RUN := $(VENV)/bin/python -m
PINS ?= constraints.txt
INSTALL := $(RUN) pip install --quiet --disable-pip-version-check -c $(PINS)

demo: setup
	$(RUN) scripts.demo

# Files stay together, because what a file's fixtures make (written models, warm workers) serves all of
# its tests; tests/conftest.py puts the long ones first. More than four processes would be short of memory
# before they are short of cores.
PYTEST := $(RUN) pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

test: setup-test check
	$(PYTEST) -m "not nightly"

coverage: setup-test
	$(PYTEST) -m "not nightly" --cov --cov-report term

check:
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	$(VENV)/bin/lint-imports

quick:
	$(RUN) pytest -m quick -x

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

# Continuous integration runs two of these after the tests, and more where there is time: .ci/run.
NIGHTLY := answers docs frontends hostile package processes services zoo

nightly: setup-test
	$(PYTEST) -m nightly
	$(RUN) tests.fuzz --seconds 60
	$(MAKE) retrain-small

nightly-parts:
	@echo $(NIGHTLY)

nightly-part:
	@test -n "$(filter $(PART),$(NIGHTLY))" || { echo "Name a part of $(NIGHTLY): make nightly-part PART=docs" >&2; exit 1; }
	$(PYTEST) -m "nightly(part='$(PART)')"

durations: setup-test
	$(PYTEST) --record tests/durations.json

# Sources that cannot be had stop nothing: fetching names them, and so do the training and the card. FROM is
# what `dataset.fetch --from` takes.
retrain: setup-test
	@test -n "$(VERSION)" || { echo "Name the version: make retrain VERSION=0.15.0" >&2; exit 1; }
	@echo "On two cores: tables and graphs 10 minutes, kernels of rows 12, 43 fits 85, effects, answers and the checkpoint 25."
	-$(RUN) dataset.fetch --out $(RETRAIN)/data $(if $(FROM),--from $(FROM))
	$(RUN) dataset.raw_graphs --data-dir $(RETRAIN)/data --out $(RETRAIN)/graphs
	$(RUN) training.hybrid.train --data $(RETRAIN)/data --graphs $(RETRAIN)/graphs --work $(RETRAIN) \
	  --collected dataset/data/h100 --collected dataset/data/h100-timm --collected dataset/data/h200 \
	  --out checkpoints/hybrid-gpu/$(VERSION)

# Its figures say nothing: ten steps, three laboratories, one GPU.
retrain-small: setup-test
	rm -rf $(SMALL)
	$(RUN) dataset.fetch $(SAMPLE) --from dataset/sample --out $(SMALL)/data
	$(RUN) dataset.raw_graphs --data-dir $(SMALL)/data --out $(SMALL)/graphs
	$(RUN) training.hybrid.train --data $(SMALL)/data --graphs $(SMALL)/graphs --work $(SMALL)/work \
	  --out $(SMALL)/hybrid-gpu/0.0.1 --steps 10 --splits L
	$(RUN) dippm predict torchvision:resnet50 --input 3,224,224 --batch 32 --device A100-80GB \
	  --checkpoint $(SMALL)/hybrid-gpu/0.0.1

release: | $(VENV)/bin/python
	$(INSTALL) build hatchling twine -e .
	$(RUN) scripts.release build $(if $(TAG),--tag $(TAG)) $(if $(DRAFT),--draft)

zoo: setup-zoo
	$(RUN) tests.zoo --out build/zoo/outcomes.jsonl --table docs/coverage.md

team: setup-test setup-team
	$(RUN) scripts.team

setup: $(VENV)/demo-ready
setup-quick: $(VENV)/quick-ready
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

$(VENV)/quick-ready: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e ".[dev]"
	touch $@ $(VENV)/docs-ready $(VENV)/demo-ready

$(VENV)/test-ready: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e ".[dev,all]"
	$(RUN) pip check
	touch $@ $(VENV)/quick-ready $(VENV)/docs-ready $(VENV)/demo-ready

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
