#!/bin/sh
# torch_runs.sh SOURCE_ROOT BUILD_ROOT - torch_runs.py with a Python that has torch; else 77
py=$("$1/tests/interop/torch-env.sh") || exit $?
PYTHONPATH="$1/tests/worker/nn" exec "$py" "$1/tests/worker/train/torch_runs.py" "$2" "$1"
