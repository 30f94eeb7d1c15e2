#!/bin/sh
# tests/interop/horovod-env.sh - print the path of a Python that can import horovod.torch
#
#   horovod-env.sh         print its path if it is there already
#   horovod-env.sh --make  build it if needed: two to four minutes on two cores
#
# Horovod 0.28.1 with Gloo, without MPI and CUDA, for Debian's PyTorch 1.13 (newer ones need
# C++17, which this release does not set). The environment lives in the user's cache.
#
# Exit: 0 with the path on stdout; 77 with "skipped: WHY" on stderr when there is none.
set -u

version=0.28.1
dir=${XDG_CACHE_HOME:-$HOME/.cache}/ddprun/horovod-$version
py=$dir/bin/python

none() {
    echo "skipped: $*; needs package python3-torch libtorch-dev pybind11-dev cmake" >&2
    exit 77
}
ready() {
    "$py" -c 'import horovod.torch as h; assert h.gloo_built()' 2>/dev/null
}

if [ -e "$dir/complete" ] && ready; then
    printf '%s\n' "$py"
    exit 0
fi
[ "${1:-}" = --make ] || none "no Horovod in '$dir'"
/usr/bin/python3 -c 'import torch, cffi, psutil, yaml, cloudpickle, packaging' 2>/dev/null ||
    none "Debian's python3 has no torch, or lacks cffi, psutil, yaml, cloudpickle, packaging"

mkdir -p "$dir" || none "cannot make '$dir'"
exec 9>"$dir.lock"
flock -w 900 9 || none "another horovod-env has been busy in '$dir' for 15 minutes"
if [ ! -e "$dir/complete" ]; then
    /usr/bin/python3 -m venv --clear --system-site-packages "$dir" >&2 ||
        none "python3 cannot make a venv"
    # debug information and -O3 would take most of the time
    cat >"$dir/cmake" <<'CMAKE'
#!/bin/sh
case $1 in --build) exec cmake "$@" ;; esac
exec cmake "$@" -DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1
CMAKE
    chmod +x "$dir/cmake"
    HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_CPU_OPERATIONS=GLOO \
        HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
        HOROVOD_CMAKE=$dir/cmake MAKEFLAGS=-j$(nproc) timeout 900 "$py" -m pip -q \
        --disable-pip-version-check install --no-deps --no-build-isolation --no-binary horovod \
        "horovod==$version" >"$dir/pip.log" 2>&1 || none "Horovod was not built: '$dir/pip.log'"
    ready || none "Horovod in '$dir' cannot be imported"
    : >"$dir/complete"
fi
printf '%s\n' "$py"
