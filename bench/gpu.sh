#!/usr/bin/env bash
# bench/gpu.sh [--debs DIR] [--report FILE] [option of gpu.py]... - all that a GPU is needed for
#
# From a clean checkout, the CUDA toolkit and a Python with torch, without a network: builds into
# build-gpu/ for the GPUs that are here, then `meson test --suite gpu` and gpu.py, all of it within
# 8 minutes, into one report; beside it, FILE with .log for .md, what compilers, tests and programs
# that failed have said.
# --debs: where tools/debs.sh has put the libraries that the build needs and this machine lacks.
# Exit: gpu.py's code, or 1 when a test failed, or it does not build.
set -u
cd "$(dirname "$0")/.." || exit
seconds=480 build=build-gpu report=gpu.md
while :; do
    case ${1-} in
    --debs)
        # shellcheck source=tools/debs.sh
        . tools/debs.sh "$2" "$build/.debs" || exit 1
        ;;
    --report) report=$2 ;;
    *) break ;;
    esac
    shift 2
done
command -v nvcc >/dev/null || PATH=$PATH:/usr/local/cuda/bin
# where pip has put meson and ninja
PATH=$PATH:$(python3 -c 'import sysconfig; print(sysconfig.get_path("scripts"))')

log=${report%.md}.log
say() { tee -a "$report"; }
: >"$report"
: >"$log"

# go on after a warning of an untested compiler, and build what can be built
SECONDS=0 failed=0
arch=all-major
nvidia-smi -L >/dev/null 2>&1 && arch=native
targets=(worker/ddp-train worker/cuda/ddp-engine-cuda.so rendezvous/ddpstored launcher/ddprun
    launcher/ddprun-agent bench/bench-gpu_bare tests/gpu/test_kernels_gpu)
if ! { [ -f $build/build.ninja ] || meson setup $build -Dcuda=enabled \
    -Dgpu_arch=$arch; } >>"$log" 2>&1 ||
    ! ninja -C $build -k 0 "${targets[@]}" >>"$log" 2>&1; then
    failed=1
    grep -E 'ERROR|FAILED|error' "$log" | head -20 | say
    tail -5 "$log"
    [ -f $build/worker/ddp-train ] && [ -f $build/worker/cuda/ddp-engine-cuda.so ] || exit 1
fi
echo "built in $SECONDS s" | say

# what hangs leaves half of the time to the rest
began=$SECONDS
meson test -C $build --no-rebuild --suite gpu -t 0.6 --print-errorlogs >$build.log 2>&1 || failed=1
cat $build.log $build/meson-logs/testlog.txt >>"$log"
{
    grep -E '^ *[0-9]+/[0-9]+ ' $build.log | sed 's/^/    /'
    grep -E '^(ok|FAILED) ' $build/meson-logs/testlog.txt | sed 's/^/    /'
    echo
} | say
[ $failed = 0 ] || tail -40 $build.log
echo "tests took $((SECONDS - began)) s" | say

python3 bench/gpu.py $build --append --report "$report" --keep "$log" \
    --budget $((seconds - SECONDS - 5)) "$@"
code=$?
echo "all of it took $SECONDS s, of $seconds" | say
[ $failed = 0 ] && exit $code
exit 1
