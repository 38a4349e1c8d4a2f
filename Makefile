# make demo    one task step by step, then the comparison of device, cloud and cascade; offline, no key
# make test    all tests
# make judges  the environments of LiteLLM and the SDKs that some tests need; `make test` does it first
# make windows the tests of what works without POSIX, with POSIX taken away
# make node    Node.js, buf and the gRPC packages for JavaScript, which `make check` and some tests need; both do it first
# make check   ruff, mypy --strict on the installed wheel, generated code up to date, buf on the .proto files
# make bars    every benchmark with --quick, within ten minutes, and which bars are missed
# make bench   all benchmarks in full, which takes hours; keeps the figures and writes docs/benchmarks.md
# make pictures   draw the graphs in docs/strategies.md from the strategies
# make reference  write docs/api.md and the tables of docs/configuration.md from the docstrings, docs/cli.md and the shells' completions
#                 from the commands, and the stubs of the public names
# make generate   write the gRPC code from protocols/proto/nearfar/v1/*.proto
# make accept-protos   let the .proto files be the contract that later ones are compared with
#
# Each target sets up what it needs and does so again when pyproject.toml has changed. llama.cpp comes as a wheel where pip finds one (its
# index, PIP_FIND_LINKS, NEARFAR_LLAMA=FOLDER), else it is compiled; without a compiler, or with NEARFAR_LLAMA=no, it is left out.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

VENV := .venv
# grpcio-tools 1.75 wants an older protobuf than grpcio needs at run time, so it lives alone.
PROTO_VENV := .venv-proto
# mypy cannot see through an editable installation, so it checks an installed wheel.
CHECK_VENV := .venv-check
NODE_VENV := .venv-node

export PYTHONUNBUFFERED := 1

# Where llama.cpp was left out, set up again once the machine has a compiler, or another source of wheels is named.
CHANGED := $(if $(wildcard $(VENV)/.without-llama),$(shell $(VENV)/bin/python scripts/install.py --changed && echo changed))

.PHONY: $(CHANGED) demo test judges node check bars bench generate lint types generated protos accept-protos pictures reference clean

demo: $(VENV)/.ready-to-run
	@$(VENV)/bin/nearfar demo

# The tests of a file share models and servers, so that a process gets whole files; each process computes on one core.
test: $(VENV)/.ready-to-test judges node
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(VENV)/bin/python -m pytest --numprocesses 2 --dist loadfile $(PYTEST_OPTIONS)

# The first file runs code in an interpreter that has no more than Windows has; the others are what to run on Windows itself.
WITHOUT_POSIX := tests/layout/test_without_posix.py tests/cloud/test_near_servers.py tests/cloud/test_near_addresses.py

windows: $(VENV)/.ready-to-test
	@$(VENV)/bin/python -m pytest $(WITHOUT_POSIX) $(PYTEST_OPTIONS)

judges: $(VENV)/.ready-to-test
	@$(VENV)/bin/python scripts/judges.py

node:
	@scripts/set_up_node.sh $(NODE_VENV)

check: lint types generated protos
	@echo "check: all passed"

lint: $(CHECK_VENV)/.ready
	@$(CHECK_VENV)/bin/ruff check .
	@$(CHECK_VENV)/bin/ruff format --check .

types: $(CHECK_VENV)/.ready
	@scripts/check_types.sh $(CHECK_VENV)

generated: $(PROTO_VENV)/.ready
	@scripts/generate.sh $(PROTO_VENV) --check

generate: $(PROTO_VENV)/.ready
	@scripts/generate.sh $(PROTO_VENV)

protos: node
	@scripts/check_protos.sh $(NODE_VENV)

accept-protos: node
	@scripts/check_protos.sh $(NODE_VENV) --accept

# NAMES="graph wire" for these alone; DATA names the folder of recorded data.
bars: $(VENV)/.ready-to-test judges
	@$(VENV)/bin/python scripts/bars.py $(NAMES) $(if $(DATA),--data $(DATA))

bench: $(VENV)/.ready-to-test judges
	@$(VENV)/bin/python scripts/bars.py --full $(NAMES) $(if $(DATA),--data $(DATA))

pictures: $(VENV)/.ready-to-run
	@$(VENV)/bin/python scripts/draw_graphs.py

reference: $(VENV)/.ready-to-run
	@$(VENV)/bin/python scripts/stubs.py
	@$(VENV)/bin/python scripts/reference.py
	@$(VENV)/bin/python scripts/configuration_tables.py

clean:
	rm -rf $(VENV) $(PROTO_VENV) $(CHECK_VENV) $(NODE_VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.ready-to-run: pyproject.toml $(CHANGED)
	@scripts/set_up.sh $(VENV) --editable '.[all]'
	@touch $@

$(VENV)/.ready-to-test: pyproject.toml $(CHANGED)
	@scripts/set_up.sh $(VENV) --editable '.[all,test,train]'
	@touch $(VENV)/.ready-to-run $@

$(CHECK_VENV)/.ready: pyproject.toml
	@scripts/set_up.sh $(CHECK_VENV) '.[all,test,check]'
	@touch $@

$(PROTO_VENV)/.ready: scripts/set_up.sh
	@scripts/set_up.sh $(PROTO_VENV) 'grpcio-tools~=1.75.1'
	@touch $@
