.DEFAULT_GOAL := help
.PHONY: help demo demo-ablation demo-encoders test test-slow test-gpu test-versions lint bench bench-gpu completions docs clean
PYTHON ?= python3
export HF_HUB_DISABLE_TELEMETRY := 1
PIP = .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# bf16 if the CPU has instructions for it
BF16 = $(shell grep -qwE 'avx512_bf16|amx_bf16' /proc/cpuinfo 2>/dev/null && echo --bf16 true)
# glibc keeps freed memory instead of returning it to the system: about 10 % faster on a CPU. One thread by default, because
# on a shared machine threads wait for each other
TRAIN = MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184 OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} \
    .venv/bin/python run_pretraining.py
# one process per core, at most four; the tests of a file run in one process
PYTEST = .venv/bin/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile
# a GPU machine brings its own PyTorch, and may have no network to fill .venv from
GPU_PYTHON = $(if $(wildcard .venv/bin/python),.venv/bin/python,$(PYTHON))

help:  ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

.venv/demo: constraints.txt setup.cfg pyproject.toml
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) -e '.[demo]'
	touch $@

.venv/test: .venv/demo
	$(PIP) -e '.[test]'
	touch $@

.venv/bench: .venv/demo
	$(PIP) -e '.[bench]'
	touch $@

demo: .venv/demo  ## pre-train a small model on real sentence pairs in minutes, evaluate it, write a report
	rm -rf runs/demo
	.venv/bin/hictl demo

demo-ablation: .venv/demo  ## the same with only the language model loss, compared with the demo
	test -f runs/demo/results.json || $(MAKE) demo
	rm -rf runs/demo-lm-only
	$(TRAIN) recipes/demo-lm-only.json $(BF16)
	.venv/bin/hictl compare runs/demo-lm-only runs/demo

# finished runs are kept
runs/%/results.json: recipes/encoders/%.json | .venv/demo
	$(TRAIN) $< $(BF16)

ENCODERS = $(patsubst recipes/encoders/%.json,runs/%/results.json,$(wildcard recipes/encoders/*.json))
demo-encoders: $(ENCODERS)  ## the demo with each other family of encoders, compared with the demo
	test -f runs/demo/results.json || $(MAKE) demo
	.venv/bin/hictl compare runs/demo $(ENCODERS)

test: .venv/test  ## the default tests
	$(PYTEST)

test-slow: .venv/test  ## the slow tests
	$(PYTEST) -m "slow and not gpu"

test-gpu:  ## the tests that need a CUDA GPU, skipped without one; installs nothing: .venv, else PYTHON, runs them
	$(GPU_PYTHON) -m pytest -m gpu -rs tests/gpu tests/retrieval

test-versions:  ## test what depends on other libraries on their oldest and newest releases; QUICK=1: a part
	$(PYTHON) tests/run_versions.py $(if $(QUICK),--quick)

lint: .venv/test  ## check format, lint and types
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy

bench: .venv/bench  ## measure speed and memory, compared with the alternatives; QUICK=1: about five minutes
	.venv/bin/python benchmarks/run.py $(if $(QUICK),--quick) $(BENCH)

bench-gpu:  ## measure training steps on a GPU, compared with the alternatives; installs nothing
	PYTHONPATH=.:$$PYTHONPATH $(GPU_PYTHON) benchmarks/gpu.py $(BENCH)

completions: .venv/test  ## write the shell completion scripts, after arguments have changed
	.venv/bin/python -c "from hictl_hf.cli.completion import write_scripts; write_scripts()"

docs: .venv/test  ## build the documentation site: site/index.html
	.venv/bin/mkdocs build --strict

clean:  ## remove the environments and the demo runs
	rm -rf .venv .venv-versions site runs/demo runs/demo-lm-only
