#!/bin/sh
# test_exports.sh LIBRARY HEADER - the shared library exports what the header promises,
# nothing less and nothing more
set -eu
command -v nm >/dev/null || { echo "skipped: no nm; needs package binutils"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
nm -D --defined-only "$1" | awk '{ print $3 }' | sort >"$dir/exported"
grep -A2 '^DDP_API' "$2" | grep -oE 'ddp_[a-z_]+\(' | tr -d '(' | sort -u >"$dir/promised"
[ -s "$dir/promised" ] || { echo "no DDP_API in $2"; exit 1; }
diff "$dir/promised" "$dir/exported" || { echo "left: $2, right: $1"; exit 1; }
