# shellcheck shell=bash
# Shared by the batch scripts, sourced in the project's folder: sets $PYTHON.
if [[ -z ${PYTHON:-} ]]; then
    PYTHON=python3
    [[ ! -x .venv/bin/python ]] || PYTHON=.venv/bin/python
fi
if ! "$PYTHON" -c 'import importlib.util as u; raise SystemExit(not u.find_spec("pydantic"))' 2>/dev/null; then
    echo "scaleprof: error: $PYTHON lacks what scaleprof needs: activate its environment, or set PYTHON" >&2
    exit 2
fi
