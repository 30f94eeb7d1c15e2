#!/bin/sh
# least.sh BUILD - built from source with all that can be left out, as distributions optimize it; installed and run
set -eu
cd "$(dirname "$0")/../.."
rm -rf "$1"
{
    meson setup "$1" --auto-features=disabled -Dtests=false -Db_lto=true -Doptimization=0 -Ddebug=false -Dwerror=true --prefix="$1/to"
    ninja -C "$1"
    meson install -C "$1"
} >"$1.log" 2>&1 || {
    tail -30 "$1.log"
    exit 1
}
"$1/to/bin/ddprun" -np 2 "$1/to/bin/ddp-train" --epochs 2 --plot none --progress none | grep accuracy
