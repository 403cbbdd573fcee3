# shellcheck shell=bash
# What the batch scripts have in common, sourced from the project's folder: $PYTHON.
if [[ -z ${PYTHON:-} ]]; then
    PYTHON=python3
    [[ ! -x .venv/bin/python ]] || PYTHON=.venv/bin/python
fi
