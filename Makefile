# Two commands set everything up: `make demo` and `make test`.
# PYTHON=python3.12       which Python to use (3.11 or newer)
# TORCH_INDEX=URL         a further package index, e.g. PyTorch's own of CPU builds (0.2 GB, not 3)
# PYTEST_ARGS="-k name"   what else pytest is told

PYTHON ?=
TORCH_INDEX ?=
PYTEST_ARGS ?=
export PYTHON TORCH_INDEX

.DEFAULT_GOAL := help
.PHONY: help demo test soak lint format lock clean

help:
	@echo "make demo    set up, and grade a sample submission on an emulated cluster"
	@echo "make test    set up, and run all tests"
	@echo "make soak    run the tests that take minutes each"
	@echo "make lint    check style and types"
	@echo "make format  mend style"
	@echo "make lock    renew requirements.lock from pyproject.toml"
	@echo "make clean   remove everything that the others made, except runs/"

demo:
	@sh bootstrap/setup.sh demo
	@.venv/bin/python bootstrap/demo.py

test:
	@sh bootstrap/setup.sh test
	@.venv/bin/python -m pytest $(PYTEST_ARGS)

soak:
	@sh bootstrap/setup.sh test
	@.venv/bin/python -m pytest -m soak --reruns 0 $(PYTEST_ARGS)

lint:
	@sh bootstrap/setup.sh packages
	@.venv/bin/ruff check
	@.venv/bin/ruff format --check
	@.venv/bin/mypy
	@.venv/bin/mypy --explicit-package-bases bootstrap/*.py

format:
	@sh bootstrap/setup.sh packages
	@.venv/bin/ruff check --fix --quiet || true
	@.venv/bin/ruff format

lock:
	@sh bootstrap/setup.sh packages
	@sh bootstrap/lock.sh

clean:
	@rm -rf .venv .venv-classic .mypy_cache .ruff_cache .pytest_cache *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
