#!/bin/sh
# run.sh SOURCE BUILD SECONDS TARGET... - build the libFuzzer targets with clang in
# BUILD/fuzz (address and undefined-behaviour sanitizers on), and share SECONDS of CPU time
# among them, one target on each CPU at a time. BUILD is tests/fuzz of another build, whose plain
# drivers write the corpus.
#
# A finding is left in BUILD/fuzz/crash-*; "fuzz_NAME_plain FILE" of any build repeats it.
# Without clang or its libFuzzer: says so, exit code 77.
set -eu
source=$1 build=$2/fuzz log=$2/fuzz.log seconds=$3 plain=$2
shift 3

skip() {
    echo "skipped: $1"
    exit 77
}
command -v clang >/dev/null || skip "no clang; needs package clang"
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return !d && n; }' \
    >"$probe/probe.c"
clang -fsanitize=fuzzer "$probe/probe.c" -o "$probe/probe" 2>/dev/null ||
    skip "clang has no libFuzzer; needs package libclang-rt-dev"

# from scratch when the project's own options have changed
[ -d "$build" ] && meson setup --reconfigure "$build" >/dev/null 2>&1 || rm -rf "$build"
cc=clang
! command -v ccache >/dev/null || cc='ccache clang' # meson finds it only where CC is not set
[ -d "$build" ] || CC=$cc meson setup "$build" "$source" -Dfuzz=true -Doptimization=1 \
    -Dcuda=disabled -Dmpi=disabled -Dpmix=disabled -Dspank=disabled \
    -Db_sanitize=address,undefined -Db_lundef=false \
    -Dc_args='-fsanitize=fuzzer-no-link -fno-sanitize-recover=all' >"$log" 2>&1 ||
    { cat "$log"; exit 1; }

targets=
for name; do
    targets="$targets tests/fuzz/fuzz_$name"
done
# shellcheck disable=SC2086 # a list of words
ninja -C "$build" $targets >"$log" 2>&1 || { tail -40 "$log"; exit 1; }

# the same inputs in the same order each time, so that a finding belongs to a change;
# FUZZ_SEED=0 draws others
seed=${FUZZ_SEED:-1}
each=$((seconds / $#))
cd "$build"

fuzz() { # NAME
    "$plain/fuzz_${1}_plain" -a "$source/tests/fuzz/corpus/$1" -c "corpus-$1"
    "tests/fuzz/fuzz_$1" -seed="$seed" -max_total_time="$each" -max_len=4096 -timeout=10 \
        -rss_limit_mb=1024 -print_final_stats=1 "corpus-$1" >"$1.log" 2>&1
}

cpus=$(nproc) status=0
while [ $# -gt 0 ]; do
    running=
    while [ $# -gt 0 ] && [ "$(echo "$running" | wc -w)" -lt "$cpus" ]; do
        fuzz "$1" &
        running="$running $1:$!"
        shift
    done
    for one in $running; do
        name=${one%:*}
        if wait "${one#*:}"; then
            echo "$name: $each s"
            grep -E '^stat::number_of_executed_units|cov: ' "$name.log" | tail -2
        else
            tail -60 "$name.log"
            status=1
        fi
    done
done
exit $status
