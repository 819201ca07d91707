#!/usr/bin/env bash
# Tries the oldest PySpark that pyproject.toml allows: the quick part of `make compat`, and all that depends on Spark's
# internals, in an environment of its own (.venv-oldest), which is otherwise that of requirements.lock.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly VENV=.venv-oldest PYSPARK="pyspark==4.2.*"
if [[ ! -f $VENV/.stamp ]]; then
    echo "oldest: installing $PYSPARK into $VENV (over 400 MB; a few minutes)" >&2
    .venv/bin/python -m venv --clear "$VENV"
    export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1
    awk '/^pyspark==/ {skip = 1; next} /^[^ ]/ {skip = 0} !skip' requirements.lock >"$VENV/requirements.txt"
    "$VENV/bin/python" -m pip install --quiet --no-input --no-deps --require-hashes -r "$VENV/requirements.txt"
    "$VENV/bin/python" -m pip install --quiet --no-input --no-deps --use-pep517 "$PYSPARK"
    "$VENV/bin/python" -m pip install --quiet --no-input --no-deps --no-build-isolation -e .
    touch "$VENV/.stamp"
fi
"$VENV/bin/python" -c 'import pyspark; print("PySpark", pyspark.__version__)'
exec "$VENV/bin/python" -m pytest tests/e2e/test_compat.py tests/e2e/in_one_session "$@"
