#!/bin/sh
# parity.sh SOURCE_ROOT PROGRAM - run parity.py with a Python that has torch; 77 without
py=$("$1/tests/interop/torch-env.sh") || exit $?
exec "$py" "$1/tests/worker/nn/parity.py" "$2"
