# `make demo`: a private recommender on planted data, in about two minutes with the installation.
# `make test`: the tests that guard privacy, protocol and results; `make test-all`: also those that start whole deployments and browsers, rare faults, and research's.
# All make .venv from the pinned list first; PYTHON=... picks another interpreter.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install demo recommend test test-rest test-rare test-research test-research-slow test-all rehearsal upgrade lock sbom audit ways release mutants flower-versions flower-oldest newest extras pythons lenskit lower-bounds lint docs docs-site proto clean
install: $(VENV)/.installed

PIP := python -m pip install --quiet --disable-pip-version-check
# what is worked on: all parties are tested, and groups of pyproject.toml
EXTRAS := flower,postgres,store,telemetry
DEVELOPING := --editable '.[$(EXTRAS),news]' --group dev
# what tests need beside fedrec's own packages
TOOLS := pytest pytest-xdist hypothesis mpmath pandas pyyaml scikit-learn griffelib websockets nbclient ipykernel
# torch is a build that only pip's own configured index offers, so it is named by its exact version
$(VENV)/.installed: pyproject.toml research/pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "fedrec needs Python 3.11 or newer: $(PYTHON) was not found."; echo "Install it, or name another: make $(MAKECMDGOALS) PYTHON=python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(PIP) 'pip>=25.1' # knows dependency groups
	$(BIN)/$(PIP) --constraint constraints.txt $(DEVELOPING) --group bench --editable ./research
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
test test-rest test-rare test-research test-research-slow mutants: export PYTHONDONTWRITEBYTECODE =  # every process would compile all sources again

# each shows a table of processor seconds by room, beside its budget in tests/budgets.toml
test: install
	FEDREC_ROOMS=test $(PYTEST) 3 -m "$(FIRST)"

# a worker more: parties and browsers are waited for, four tenths of the time of three workers
test-rest: install
	FEDREC_ROOMS=rest $(PYTEST) 4 -m "not ($(FIRST)) and not rare"

# rare faults and long studies, which .ci/run leaves out
test-rare: install
	$(PYTEST) 2 -m "rare and not ($(FIRST))"

# figures of papers, the study and measurements of quality: research/; slow: whole figures, trainings, and queries to servers
test-research: install
	$(PYTEST) 2 research/tests -m "not slow"

test-research-slow: install
	$(PYTEST) 2 research/tests -m slow

test-all:
	@status=0; for part in test test-rest test-rare test-research test-research-slow; do $(MAKE) --no-print-directory $$part || status=1; done; exit $$status

# an environment in folder 1 with the wheel of the sources in folder 2
define from_wheel
	$(PYTHON) -m venv $(1)
	$(1)/bin/$(PIP) --only-binary :all: $(3)
	$(1)/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(1)/wheels $(2)
	$(1)/bin/$(PIP) --only-binary :all: $(4) "$$(echo $(1)/wheels/*.whl)[deploy]"
endef
# what the image installs: no package is held back by Flower
LOCKED := --require-hashes --requirement deploy/requirements.lock

# docs/deploy.md carried out on five hosts (network namespaces: needs root and iproute2), from a wheel in a clean environment
rehearsal: install
	rm -rf .rehearsal
	$(call from_wheel,.rehearsal,.,$(LOCKED),--no-deps)
	FEDREC_BIN=$(CURDIR)/.rehearsal/bin $(BIN)/python -m pytest tests/deploy/test_rehearsal.py

# the same hosts with parties of an earlier version, a tag or a commit, which are upgraded one after the other
FROM ?= $(shell git describe --tags --abbrev=0 2>/dev/null)
upgrade: install
	@test -n "$(FROM)" || { echo "There is no tag yet: make upgrade FROM=COMMIT"; exit 1; }
	rm -rf .rehearsal && mkdir -p .rehearsal/source
	git archive $(FROM) | tar -x -C .rehearsal/source
	$(call from_wheel,.rehearsal,.,$(LOCKED),--no-deps)
	$(call from_wheel,.rehearsal/old,.rehearsal/source,pip,--constraint .rehearsal/source/constraints.txt)
	FEDREC_BIN=$(CURDIR)/.rehearsal/bin FEDREC_OLD=$(CURDIR)/.rehearsal/old/bin FEDREC_OLD_PAGE=$(CURDIR)/.rehearsal/source/docs/deploy.md $(BIN)/python -m pytest tests/deploy/test_rehearsal.py -k upgraded

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

# packages of the image at the versions of its lock, as new as they are, and tests of all that these packages are used for, without Flower
WITHOUT_FLOWER := $(addprefix tests/,aggregator aggregator_service cli client contracts device federation operations recommend server serving serving_server sharing status)
newest:
	$(PYTHON) -m venv .newest
	.newest/bin/$(PIP) $(LOCKED)
	sed 's/ --hash.*//' deploy/requirements.lock > .newest/pins.txt
	.newest/bin/$(PIP) --constraint .newest/pins.txt $(TOOLS)
	.newest/bin/$(PIP) --no-deps --editable . --editable ./research
	.newest/bin/python -m pytest -n 2 --dist loadscope -m "$(FIRST)" $(WITHOUT_FLOWER)

# every extra in one environment, with the newest pandas that LensKit allows, and the tests of each: one that is skipped for a missing package fails
extras:
	$(PYTHON) -m venv .extras
	.extras/bin/$(PIP) 'pip>=25.1'
	grep -v '^pandas==' constraints.txt > .extras/pins.txt
	.extras/bin/$(PIP) --constraint .extras/pins.txt --editable ".[$$($(PYTHON) tests/release/extras.py names)]" --group dev
	.extras/bin/python tests/release/extras.py tests

# other Pythons, with pinned and with the newest versions: all tests of `make test` that need no PyTorch on the first; each verb answers on the others
NEWER ?= python3.13
SMOKED ?= python3.12
pythons:
	@status=0; for pins in "--constraint constraints.txt" ""; do \
		folder=.pythons/$(NEWER)$${pins:+-pinned}; \
		$(NEWER) -m venv $$folder && $$folder/bin/$(PIP) 'pip>=25.1' \
		&& $$folder/bin/$(PIP) $$pins --editable '.[$(EXTRAS)]' --group dev \
		&& $$folder/bin/python -m pytest --dist loadscope --no-loadscope-reorder --max-worker-restart 0 -n 3 -m "$(FIRST)" \
		|| status=1; done; \
	$(SMOKED) -m venv .pythons/$(SMOKED) && .pythons/$(SMOKED)/bin/$(PIP) 'pip>=25.1' \
	&& .pythons/$(SMOKED)/bin/$(PIP) --constraint constraints.txt --editable '.[$(EXTRAS)]' $(TOOLS) \
	&& .pythons/$(SMOKED)/bin/python -m pytest -n 2 tests/cli tests/readme/test_deploy_page.py tests/api/test_estimators.py || status=1; exit $$status

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
		&& .flower-versions/$$release/bin/$(PIP) 'pip>=25.1' \
		&& .flower-versions/$$release/bin/$(PIP) --editable '.[$(EXTRAS),news,ray]' --group dev "flwr==$$release" \
		&& .flower-versions/$$release/bin/python -m pytest $(FLOWER_TESTS) \
		|| status=1; done; exit $$status

# the component for LensKit, with the release that pyproject.toml allows: it needs another pandas than constraints.txt has, so it is installed beside the other packages
lenskit: install
	$(PYTHON) -m venv .lenskit
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > "$$(.lenskit/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/others.pth"
	.lenskit/bin/python -m pip install --quiet --disable-pip-version-check "$$($(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['lenskit'])")"
	.lenskit/bin/python -m pytest -n 0 tests/api/test_lenskit.py

# the lowest version that pyproject.toml allows of each direct dependency, and the tests of `make test` on them
LOWEST := .lower-bounds
comma := ,
lower-bounds:
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/$(PIP) 'pip>=25.1' uv packaging
	$(LOWEST)/bin/uv pip compile --quiet --resolution lowest-direct --python $(LOWEST)/bin/python $(foreach extra,$(subst $(comma), ,$(EXTRAS)) news,--extra $(extra)) --group bench --group dev --output-file $(LOWEST)/constraints.txt pyproject.toml
	$(LOWEST)/bin/python tests/release/bounds.py $(LOWEST)/constraints.txt
	$(LOWEST)/bin/$(PIP) --constraint $(LOWEST)/constraints.txt $(DEVELOPING) --group bench --editable ./research
	$(LOWEST)/bin/python -m pytest --dist loadscope --no-loadscope-reorder --max-worker-restart 0 -n 3 -m "$(FIRST)"

# before a release (CONTRIBUTING.md): wheel and source archive in clean environments, on each Python named
PYTHONS ?= $(PYTHON)
release:
	$(PYTHON) tests/release/clean.py sizes
	$(PYTHON) tests/release/clean.py tests --python $(PYTHONS)

# planted bugs, each in a copy of the tree: the named test must fail; the last line counts survivors.
# MUTANTS="--only releases" runs some of them, "--since COMMIT --sample 0.02 --seed abc" what changes can reach and a share of the others
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

# the documentation site, into site/, with docs/api.md made of docstrings; ends with an error if one of its links is dead
docs-site: install
	$(BIN)/$(PIP) --constraint constraints.txt --group docs
	$(BIN)/python -m zensical build --clean --strict
	$(BIN)/python tests/release/site.py site

# the services and their types, each from its one description
proto: install
	$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. \
		fedrec/transport/aggregator_api/aggregator.proto fedrec/transport/serving_api/serving.proto \
		fedrec/transport/rounds_api/rounds.proto

clean:
	rm -rf $(VENV) .cache site .rehearsal .audit .flower-versions .newest .extras .pythons $(LOWEST) runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
