#!/usr/bin/env bash
# check.sh - install, build and pass every test; the exit code says whether all did
#
# Arguments go to `meson test`: ./check.sh --suite unit
set -euo pipefail
cd "$(dirname "$0")"
. tools/need.sh

need "${build_packages[@]}" "${test_packages[@]}"
echo "building into build/"
build build
if [ $# -gt 0 ]; then
    exec meson test -C build --print-errorlogs "$@"
fi

# the same sources with the sanitizers in; only the quick suites, which touch every parser
# and the memory that ranks share
echo "building into build-asan/"
build build-asan -Db_sanitize=address,undefined -Db_lundef=false -Dcuda=disabled
status=0
meson test -C build-asan --print-errorlogs --suite unit --suite wire --suite quick || status=1
meson test -C build --print-errorlogs || status=1
exit $status
