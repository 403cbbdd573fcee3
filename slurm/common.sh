# shellcheck shell=bash
# Shared by the batch scripts, sourced in the project's folder: sets $PYTHON.
if [[ -z ${PYTHON:-} ]]; then
    PYTHON=python3
    [[ ! -x .venv/bin/python ]] || PYTHON=.venv/bin/python
fi
if ! command -v "$PYTHON" >/dev/null; then
    echo "scaleprof: error: there is no $PYTHON here: activate scaleprof's environment, or set PYTHON" >&2
    exit 2
fi
"$PYTHON" -c 'import jobs' || exit 2 # which says what it lacks
