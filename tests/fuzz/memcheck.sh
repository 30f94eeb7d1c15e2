#!/bin/sh
# memcheck.sh BUILD CORPUS NAME... - valgrind's memcheck on each decoder's inputs. It also sees what
# libraries (jansson, zlib, libevent) do with memory, which the sanitizers do not.
set -eu
build=$1 corpus=$2
shift 2
command -v valgrind >/dev/null || { echo "skipped: no valgrind; needs package valgrind"; exit 77; }
for name; do
    valgrind -q --error-exitcode=1 "$build/fuzz_${name}_plain" -a "$corpus/$name" -n 0
done
