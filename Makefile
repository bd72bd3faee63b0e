.PHONY: help demo demo-ranks test collected test-virtual test-system test-floor test-clients test-suites test-deep fuzz mutants lint types proto package docs bench storm clean

PYTHON ?= python3
DEMO_STEPS ?= 500
RANKS_STEPS ?= 120
FUZZ_MINUTES ?= 10

# Everything runs in .venv, which is made on demand and again when the dependencies change.
READY = .venv/ready
CLIENTS_READY = .venv/ready-clients
BENCH_READY = .venv/ready-bench
FUZZ_READY = .venv/ready-fuzz
FLOOR_READY = .venv-floor/ready
PROTO_READY = .venv-proto/ready
PACKAGE_READY = .venv-package/ready
DOCS_READY = .venv-docs/ready

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

demo: $(READY) ## three learners, one alone and one data parallel on this machine, in about two minutes; DEMO_STEPS=150 is a quick look
	.venv/bin/python examples/demo.py --steps $(DEMO_STEPS)

demo-ranks: $(READY) ## two racks of two ranks on this machine, FSDP2 inside and rounds between them, in about half a minute
	.venv/bin/python examples/demo_ranks.py --steps $(RANKS_STEPS)

# Many tests start an interpreter. Without bytecode, each would compile the library, and each worker the tests.
unexport PYTHONDONTWRITEBYTECODE

PYTEST = .venv/bin/python -m pytest -n auto --maxprocesses 4 --dist worksteal
# The protocol, with learners and a network that are simulated.
VIRTUAL = tests/virtual
# Whole processes: learners of several ranks, examples, launchers, links, and learners that are killed.
SYSTEM = tests/ranks tests/system

test: $(READY) ## lint, types, then all tests but those of test-virtual and test-system
	$(MAKE) --no-print-directory -j 2 lint types collected
	$(PYTEST) $(VIRTUAL:%=--ignore=%) $(SYSTEM:%=--ignore=%)

# pytest rewrites each module of tests when it is imported first, and keeps the result. Here one process does so beside
# the types, which have a core; else every worker would. What is wrong with a module, the tests say.
collected: $(READY)
	@.venv/bin/python -m pytest --collect-only -qq > /dev/null || true

test-virtual: $(READY) ## the protocol in virtual time: storms, insiders, slow and broken links, endings
	$(PYTEST) $(VIRTUAL)

test-system: $(READY) ## whole processes: several ranks, examples, torchrun, Slurm, pods, links, and learners that are killed
	$(PYTEST) $(SYSTEM)

# What depends on these four: the wire, TLS, certificates and metrics. All else is shared with .venv.
FLOOR = grpcio protobuf cryptography prometheus-client
test-floor: $(FLOOR_READY) ## the wire, TLS and metrics with the oldest grpcio, protobuf, cryptography and prometheus-client
	.venv-floor/bin/python -m tests.support.oldest --check $(FLOOR)
	.venv-floor/bin/python -m pytest -n auto --maxprocesses 4 --dist worksteal tests/unit/transport/security \
		tests/unit/transport/test_wire.py tests/unit/transport/test_frames.py tests/unit/test_security.py \
		tests/unit/test_certs.py tests/together/test_security.py tests/together/test_signed_offers.py \
		tests/together/test_check.py tests/together/test_survey.py tests/hostile/test_handshakes.py tests/fuzz \
		tests/unit/integrations/test_prometheus.py

test-clients: $(CLIENTS_READY) ## two learners inside each client library: Lightning, Accelerate, transformers, peft, stable-baselines3, torch; and what is integrated
	$(PYTEST) tests/clients tests/unit/integrations \
		tests/together/test_unusual.py -k "clients or integrations or free"

test-suites: $(READY) ## suites that others wrote, as they are and with every optimizer wrapped; SUITES="torch skorch --mode alone" are some
	.venv/bin/python -m tests.suites $(SUITES)

test-deep: $(READY) ## 20,000 storms, 2,500 insiders and 500 stragglers in virtual time, then all tests with more examples (DEEP=1); over an hour
	.venv/bin/python -m tests.virtual.storms
	.venv/bin/python -m tests.virtual.insiders --seeds 0:2000
	.venv/bin/python -m tests.virtual.insiders --joint --seeds 0:500
	.venv/bin/python -m tests.virtual.stragglers --seeds 0:500
	DEEP=1 $(PYTEST)

fuzz: $(FUZZ_READY) ## bytes of peers and files, guided by coverage, for FUZZ_MINUTES (10) in all; what breaks a law is kept in .fuzz
	.venv/bin/python -m tests.fuzz --minutes $(FUZZ_MINUTES)

mutants: $(READY) ## break the engine on purpose, one rule at a time; fails if no test notices
	.venv/bin/python -m tests.mutation.mutants

lint: $(READY) ## ruff: rules, and the formatter's layout
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: $(READY) ## mypy, strict
	.venv/bin/mypy

bench: $(READY) ## measure: one JSON line per run
	.venv/bin/python -m bench

storm: $(BENCH_READY) ## real learners, killed, stopped and cut off for ten minutes; STORM="--minutes 2" or other options
	.venv/bin/python -m bench.storm $(STORM)

# The oldest tools whose code runs on every protobuf that pyproject.toml promises: 1.72 writes code for 6.30 and up.
# The virtual path registers the file as mend_optim/transport/_pb/peer.proto: a bare peer.proto could be some other package's.
proto: $(PROTO_READY) ## write mend_optim/transport/_pb from protos/peer.proto
	.venv-proto/bin/python -m grpc_tools.protoc --proto_path=mend_optim/transport/_pb=protos \
		--python_out=. --pyi_out=. mend_optim/transport/_pb/peer.proto

# Outside of the repository, nothing but the installed package can be imported. PYTHON=python3.10 installs into another
# Python; a torch that was built for CUDA may then bring gigabytes.
package: $(PACKAGE_READY) ## build the wheel and the sdist, check what they hold, and use the wheel in an environment of its own
	rm -rf dist build/installed
	.venv-package/bin/python -m build --outdir dist .
	.venv-package/bin/python -m twine check --strict dist/*
	.venv-package/bin/python -m tests.package files dist
	$(PYTHON) -m venv build/installed
	build/installed/bin/python -m pip install -q --disable-pip-version-check --no-compile -c constraints.txt "$$(ls dist/*.whl)[certs]"
	.venv-package/bin/python -m tests.package use build/installed

docs: $(DOCS_READY) ## the pages in docs/ as a site in build/docs; fails on every warning, such as a link that leads nowhere
	.venv-docs/bin/python -m sphinx -q -W --keep-going -d build/doctrees docs build/docs

clean: ## remove everything that these targets made, the environments too
	rm -rf .venv .venv-proto .venv-floor .venv-package .venv-docs .suites .fuzz build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev,certs,cli,prometheus]'
	touch $@

$(CLIENTS_READY): $(READY)
	.venv/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev,certs,cli,prometheus,clients]'
	touch $@

$(BENCH_READY): $(READY)
	.venv/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev,certs,cli,prometheus,bench]'
	touch $@

SITE = import sysconfig; print(sysconfig.get_path("purelib"))
$(FLOOR_READY): $(READY)
	.venv/bin/python -m venv .venv-floor
	.venv-floor/bin/python -m pip install -q --disable-pip-version-check $$(.venv/bin/python -m tests.support.oldest $(FLOOR))
	.venv/bin/python -c '$(SITE)' > "$$(.venv-floor/bin/python -c '$(SITE)')/shared.pth"
	touch $@

$(FUZZ_READY): $(READY)
	.venv/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev,certs,cli,prometheus,fuzz]'
	touch $@

# The site needs neither mend_optim nor torch: of the extra, only the names in it are installed.
DOCS_EXTRA = sed -n '/^docs = \[/,/^\]/s/^ *"\([^"]*\)".*/\1/p' pyproject.toml
$(DOCS_READY): pyproject.toml
	$(PYTHON) -m venv .venv-docs
	$(DOCS_EXTRA) > .venv-docs/requirements
	.venv-docs/bin/python -m pip install -q --disable-pip-version-check -r .venv-docs/requirements
	touch $@

$(PROTO_READY): Makefile
	$(PYTHON) -m venv .venv-proto
	.venv-proto/bin/python -m pip install -q --disable-pip-version-check 'grpcio-tools==1.72.*'
	touch $@

# build: reads hatchling's project, and builds the wheel from the sdist since 0.8; its options are the same in all of 1.
# twine: from 6.1 it knows the metadata 2.4 that license expressions need; a new major version may drop checks.
$(PACKAGE_READY): Makefile
	$(PYTHON) -m venv .venv-package
	.venv-package/bin/python -m pip install -q --disable-pip-version-check 'build>=1.2,<2' 'twine>=6.1,<7'
	touch $@
