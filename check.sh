#!/usr/bin/env bash
# check.sh - install what the tests need, build, run them, and print a table of the results
set -euo pipefail
cd "$(dirname "$0")"
. tools/need.sh

usage() {
    cat <<'END'
usage: ./check.sh              the tests that take five minutes on two cores
       ./check.sh NAME...      only these suites or tests: unit, lab, launcher/link, 'system/*'
       ./check.sh --all        every test; installs what that takes (2 GB, and PyTorch). A test
                              that fails is run once more, alone, and both results are told
       ./check.sh --coverage   the share of lines that the tests run
       ./check.sh --aarch64 [NAME...]   on an emulated AArch64 machine; half an hour

Missing Debian packages are installed; no service of theirs is started or enabled. Suites: unit,
wire, system, lab, soak, interop, fuzz, lint, gpu, large; tests/README.md describes them. The exit
status is 0 if no test failed.
END
}

all= once=
case ${1:-} in
-h | --help) usage; exit 0 ;;
--aarch64) all=$1; shift ;;
--all | --coverage)
    all=$1
    shift
    [ $# = 0 ] || { echo "error: $all takes no further arguments; see ./check.sh --help" >&2; exit 2; }
    ;;
-*) echo "error: unknown option '$1'; see ./check.sh --help" >&2; exit 2 ;;
esac
case $PWD in
*[[:space:]:]*) echo "error: the tests need a path without blanks and ':', which separate names in LD_PRELOAD: clone" \
    "ddprun into another directory (ddprun itself runs in this one)" >&2; exit 2 ;;
esac
# a name that no meson.build has is refused before anything is installed
for name; do
    last=${name##*/}
    grep -rqE --include=meson.build "['/]${last%%[ *]*}" tests examples meson.build && [ -n "$last" ] ||
        { echo "error: no test or suite is called '$name'; see ./check.sh --help" >&2; exit 2; }
done

list() { local IFS=,; echo "$*"; }
# groups BUILD=PATTERN,...: install what these tests need, by the groups that are their suites
groups() {
    local group
    for group in $(python3 tests/run.py needs "$@"); do
        group="${group}_packages[@]"
        packages+=("${!group}")
    done
    need "${packages[@]}"
}

packages=("${build_packages[@]}")
[ "$all" != --aarch64 ] || packages+=("${aarch64_packages[@]}")
need "${packages[@]}"
case $all in
--aarch64) exec python3 tests/aarch64/aarch64.py "$@" ;;
--all)
    jobs=('build=*' 'build-asan=unit,wire,asan' 'build-tsan=tsan')
    configure build
    packages+=("${other_packages[@]}")
    groups "${jobs[0]}"
    configure build
    tests/interop/torch-env.sh --make >/dev/null || true # its tests say what is missing
    tests/interop/horovod-env.sh --make >/dev/null || true
    export DDP_TEST_LARGE=1
    ;;
--coverage)
    configure build-coverage -Db_coverage=true -Dcuda=disabled
    packages+=(gcovr)
    # gcov's own symbols are exported, and all tests write its files: no test of exports, nor of time
    job='build-coverage=unit,wire,system,quick,!rendezvous/exports,!worker/learning,!worker/mnist'
    groups "$job"
    status=0
    python3 tests/run.py run "$job" || status=$?
    gcovr --root . --object-directory build-coverage --exclude 'tests/.*' --exclude 'bench/.*' \
        --exclude 'examples/.*' --print-summary -o build-coverage/coverage.txt
    echo "each file: build-coverage/coverage.txt"
    exit $status
    ;;
*)
    configure build
    if [ $# -gt 0 ]; then
        jobs=("build=$(list "$@")")
    else # the sanitizers see every parser and what the launcher does, not the worker's kernels; five minutes have
        # no time for both builds
        once=1
        jobs=('build=unit,wire,lint,quick' 'build-asan=unit,wire,fuzz,asan,!worker/*,!fuzz/libfuzzer,!fuzz/memcheck')
    fi
    groups "${jobs[0]}"
    [ -z "${installed:-}" ] || configure build
    ;;
esac
# with -O1 the sanitizers cost the compiler twice as much, with -O2 and all that a debugger knows four times
sanitized=(-Db_lundef=false -Dcuda=disabled -Doptimization=0 -Dc_args=-g1)
[ ${#jobs[@]} = 1 ] || configure build-asan -Db_sanitize=address,undefined "${sanitized[@]}"
[ ${#jobs[@]} -lt 3 ] || configure build-tsan -Db_sanitize=thread "${sanitized[@]}"
exec python3 tests/run.py run ${all:+--strict --twice} ${once:+--once} "${jobs[@]}"
