# make demo   classify real files with the real ONNX model, then show what the compiler did
# make test   the test suite, on two processes
# make conformance   every case of the package onnx's own suite, at every optimisation level, and what is made of them
# make torch  the tests of the PyTorch door (installs torch and transformers; large)
# make bench  planish beside its peers: PyTorch, ONNX Runtime, OpenVINO, JAX (downloads them; large)
# make lint   ruff and mypy
#
# Each target makes the virtual environment it needs: .venv for demo, test, conformance and lint, .venv-torch for torch,
# .venv-bench for bench.
# Choose the interpreter with PYTHON=python3.12; pass options with ARGS="...".

PYTHON ?= python3
ARGS   ?=
PY      = .venv/bin/python
PIP     = -m pip install --quiet --disable-pip-version-check -c constraints/dev.txt
GROUND  = pyproject.toml constraints/dev.txt planish/__init__.py

# The tests start many processes: each would compile the sources anew where none may keep what it has compiled.
test conformance torch: export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test conformance torch bench lint clean
.DELETE_ON_ERROR:

demo: .venv/.demo
	@$(PY) examples/demo.py $(ARGS)

test: .venv/.dev
	@echo "planish: running the tests"
	@$(call tests,$(PY),)

conformance: .venv/.dev
	@echo "planish: running the ONNX conformance suite"
	@$(call tests,$(PY),-m slow tests/onnx/test_conformance.py tests/onnx/test_conformance_interpreted.py \
	    tests/onnx/test_older_opsets.py::test_older_opsets tests/onnx/test_fuzz.py tests/capture/onnx/test_exports.py)

torch: .venv-torch/.dev-torch
	@echo "planish: running the tests of the PyTorch door"
	@$(call tests,.venv-torch/bin/python,tests/capture/torch tests/torch)

bench: .venv-bench/.bench
	@.venv-bench/bin/python -m benchmarks $(ARGS)

lint: .venv/.dev
	@echo "planish: ruff"
	@$(PY) -m ruff check .
	@echo "planish: mypy"
	@$(PY) -m mypy planish

clean:
	rm -rf .venv .venv-torch .venv-bench .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Tests on two processes: with which Python, and which of them. To rewrite every assertion, for messages that show
# values, would take each process seconds; so only those that failed run again with it.
define tests
$(1) -m pytest -n 2 --dist worksteal -q --assert=plain $(2) $(ARGS) || { \
    test $$? -ne 1 || $(1) -m pytest -q --last-failed --last-failed-no-failures=none $(2) $(ARGS); false; }
endef

# The stamp .venv/.demo says "the extra `demo` is installed in .venv"; likewise the others.
define environment
$(1)/.%: $$(GROUND) | $(1)/bin/python
	@echo "planish: installing planish[$$*] into $(1)"
	@$(1)/bin/python $$(PIP) -e ".[$$*]"
	@touch $$@

$(1)/bin/python:
	@$$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "planish needs Python 3.10 or newer; choose one with: make PYTHON=python3.12" >&2; exit 1; }
	@echo "planish: making the virtual environment $(1)"
	@$$(PYTHON) -m venv $(1)
endef
$(foreach name,.venv .venv-torch .venv-bench,$(eval $(call environment,$(name))))
