# shellcheck shell=bash
# Shared by the batch scripts, sourced in the project's folder: sets $PYTHON.
if [[ -z ${PYTHON:-} ]]; then
    PYTHON=python3
    [[ ! -x .venv/bin/python ]] || PYTHON=.venv/bin/python
fi
