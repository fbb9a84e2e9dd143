# `make demo`: a private recommender on planted data, in about two minutes with the installation.
# `make test`: the tests that guard privacy, protocol and results; `make test-all`: also those that start whole deployments and browsers, and research's.
# All make .venv from the pinned list first; PYTHON=... picks another interpreter.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install demo recommend test test-rest test-research test-research-slow test-all rehearsal upgrade lock sbom audit ways release mutants flower-versions flower-oldest lint docs docs-site proto clean
install: $(VENV)/.installed

# torch is a build that only pip's own configured index offers, so it is named by its exact version
$(VENV)/.installed: pyproject.toml research/pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "fedrec needs Python 3.11 or newer: $(PYTHON) was not found."; echo "Install it, or name another: make $(MAKECMDGOALS) PYTHON=python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench,news,faiss,dev]' --editable ./research
	@touch $@

demo: install
	$(BIN)/fedrec demo

# a private recommendation from the newest run: a server, a made-up reader, and every byte that left
recommend: install
	$(BIN)/fedrec recommend --demo

# markers: pyproject.toml; what a threat table names is always among the first
FIRST := not (processes or browser or slow) or threat
# not reordered: files that start processes hold few tests, take longest and would come last.
# Three workers for two cores where tests wait for files, threads and connections. A worker that ends
# is not started again: it would begin with the test that ended it
PYTEST := $(BIN)/python -m pytest --dist loadscope --no-loadscope-reorder --max-worker-restart 0 -n
test test-rest test-research test-research-slow mutants: export PYTHONDONTWRITEBYTECODE =  # every process would compile all sources again

test: install
	$(PYTEST) 3 -m "$(FIRST)"

test-rest: install
	$(PYTEST) 2 -m "not ($(FIRST))"

# figures of papers, the study and measurements of quality: research/; slow: whole figures, trainings, and queries to servers
test-research: install
	$(PYTEST) 2 research/tests -m "not slow"

test-research-slow: install
	$(PYTEST) 2 research/tests -m slow

test-all:
	@status=0; for part in test test-rest test-research test-research-slow; do $(MAKE) --no-print-directory $$part || status=1; done; exit $$status

# an environment in folder 1 with the wheel of the sources in folder 2
define from_wheel
	$(PYTHON) -m venv $(1)
	$(1)/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(1)/wheels $(2)
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --constraint $(2)/constraints.txt "$$(echo $(1)/wheels/*.whl)[deploy]"
endef

# docs/deploy.md carried out on five hosts (network namespaces: needs root and iproute2), from a wheel in a clean environment
rehearsal: install
	rm -rf .rehearsal
	$(call from_wheel,.rehearsal,.)
	FEDREC_BIN=$(CURDIR)/.rehearsal/bin $(BIN)/python -m pytest tests/deploy/test_rehearsal.py

# the same hosts with parties of an earlier version, a tag or a commit, which are upgraded one after the other
FROM ?= $(shell git describe --tags --abbrev=0 2>/dev/null)
upgrade: install
	@test -n "$(FROM)" || { echo "There is no tag yet: make upgrade FROM=COMMIT"; exit 1; }
	rm -rf .rehearsal && mkdir -p .rehearsal/source
	git archive $(FROM) | tar -x -C .rehearsal/source
	$(call from_wheel,.rehearsal,.)
	$(call from_wheel,.rehearsal/old,.rehearsal/source)
	FEDREC_BIN=$(CURDIR)/.rehearsal/bin FEDREC_OLD=$(CURDIR)/.rehearsal/old/bin $(BIN)/python -m pytest tests/deploy/test_rehearsal.py -k upgraded

# the image's packages: locked with hashes, listed (CycloneDX), and looked up among known weaknesses (asks the network)
lock: install
	$(BIN)/python deploy/supply.py lock
sbom: install
	$(BIN)/python deploy/supply.py sbom sbom.json
audit:
	$(PYTHON) -m venv .audit
	.audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	.audit/bin/pip-audit --strict --require-hashes --disable-pip --requirement deploy/requirements.lock

# four people's ways from nothing to a result, timed in clean virtual environments with the wheel
ways:
	$(PYTHON) tests/release/clean.py ways

# what speaks to Flower, and real parties as processes, with every minor release that pyproject.toml allows, each in an environment of its own with Ray
FLOWERS ?= 1.40.0 1.41.0 1.42.0
SPEAK_FLOWER := tests/client_flower tests/server_flower tests/contracts tests/simulations/test_grid.py tests/simulations/test_flower_app.py tests/simulations/test_flower_strategy_and_mods.py
FLOWER_TESTS ?= $(SPEAK_FLOWER) tests/processes
# the newest is the one in constraints.txt, with which all tests run
flower-oldest:
	$(MAKE) --no-print-directory flower-versions FLOWERS="$(firstword $(FLOWERS))" FLOWER_TESTS="-n 2 --dist loadscope $(SPEAK_FLOWER)"
flower-versions:
	@status=0; for release in $(FLOWERS); do \
		$(PYTHON) -m venv .flower-versions/$$release \
		&& .flower-versions/$$release/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,news,ray]' "flwr==$$release" \
		&& .flower-versions/$$release/bin/python -m pytest $(FLOWER_TESTS) \
		|| status=1; done; exit $$status

# before a release (CONTRIBUTING.md): wheel and source archive in clean environments, on each Python named
PYTHONS ?= $(PYTHON)
release:
	$(PYTHON) tests/release/clean.py sizes
	$(PYTHON) tests/release/clean.py tests --python $(PYTHONS)

# planted bugs, each in a copy of the tree: the named test must fail; the last line counts survivors.
# MUTANTS="--only releases" or "--sample 0.1 --seed abc" runs some of them
mutants: install
	$(BIN)/python tests/mutants/run.py --check
	$(BIN)/python tests/mutants/run.py $(MUTANTS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: install
	$(BIN)/python -m tests.release.pages
	$(BIN)/fedrec research pages
	$(BIN)/python -m benchmarks --page

# the documentation site, into site/; ends with an error if one of its links is dead
docs-site: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	$(BIN)/python tests/release/site.py site

# the services and their types, each from its one description
proto: install
	$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. \
		fedrec/transport/aggregator_api/aggregator.proto fedrec/transport/serving_api/serving.proto \
		fedrec/transport/rounds_api/rounds.proto

clean:
	rm -rf $(VENV) .rehearsal .audit .flower-versions runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
