#!/bin/sh
# torch_logits.sh SOURCE_ROOT PROGRAM - torch_logits.py with a Python that has torch; else 77
py=$("$1/tests/interop/torch-env.sh" --no-make) || exit $?
exec "$py" "$1/tests/worker/train/torch_logits.py" "$2" "$1"
