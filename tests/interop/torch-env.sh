#!/bin/sh
# tests/interop/torch-env.sh - print the path of a Python that can import PyTorch
#
#   torch-env.sh         print its path if it is there already
#   torch-env.sh --make  make it if needed (one to five minutes, up to 2.2 GB to fetch)
#
# $DDPRUN_TORCH names a Python to be used instead. The environment lives in the user's
# cache and is shared by all checkouts. Packages come from wherever pip is set up to get
# them. PyTorch's wheel for Linux is linked with CUDA: where the CUDA libraries are on the
# machine they are used, and only what is missing is installed.
#
# Exit: 0 with the path on stdout; 77 with "skipped: WHY" on stderr when there is none.
set -u

version=2.15.0
dir=${XDG_CACHE_HOME:-$HOME/.cache}/ddprun/torch-$version
py=$dir/bin/python

say() { printf 'torch-env: %s\n' "$*" >&2; }
none() {
    echo "skipped: $*; needs torch" >&2
    exit 77
}
fail() { # making it was tried: the next tests of this hour shall not wait for it again
    : >"$dir/failed"
    none "$*"
}

# ready PYTHON: it imports torch, and torch has gloo
ready() {
    "$1" -c 'import torch.distributed as d; assert d.is_gloo_available()' 2>/dev/null
}

if [ -n "${DDPRUN_TORCH:-}" ]; then
    ready "$DDPRUN_TORCH" || none "DDPRUN_TORCH='$DDPRUN_TORCH' cannot import torch"
    printf '%s\n' "$DDPRUN_TORCH"
    exit 0
fi

finish() {
    printf '%s\n' "$py"
    exit 0
}

[ -e "$dir/complete" ] && [ -x "$py" ] && finish
[ "${1:-}" = --make ] || none "no PyTorch $version in '$dir'"
command -v python3 >/dev/null || none "no python3 on this machine"

# one at a time; the others wait for the first and use what it made
mkdir -p "$dir" || none "cannot make '$dir'"
exec 9>"$dir/.lock"
flock -w 900 9 || none "another torch-env has been busy in '$dir' for 15 minutes"
[ -e "$dir/complete" ] && finish
[ -z "$(find "$dir/failed" -mmin -60 2>/dev/null)" ] ||
    none "making it has failed within the last hour; to try again: rm '$dir/failed'"

free_mb=$(df -Pm "$dir" | awk 'NR == 2 { print $4 }')
has_cuda() { # every one of these, in the version that the wheel was linked with
    for lib in libcublasLt.so.13 libcudnn.so.9 libcupti.so.13; do
        ldconfig -p 2>/dev/null | grep -q "$lib" || return 1
    done
}
install() { # pip's complaints are shown only when it has failed
    timeout 300 "$py" -m pip --disable-pip-version-check install --quiet "$@" \
        >"$dir/pip.log" 2>&1 && return
    tail -n 20 "$dir/pip.log" >&2
    return 1
}

# the requirements that torch itself states, without those in $1 (a Python regex)
needs() {
    "$py" - "$1" <<'PY'
import importlib.metadata, re, sys
for need in importlib.metadata.requires("torch") or []:
    spec, _, marker = need.partition(";")
    if "extra" not in marker and not re.match(sys.argv[1], spec):
        print(spec.replace(" ", ""))
PY
}

python3 -m venv "$dir" >&2 || fail "python3 cannot make a venv (Debian: python3-venv)"
if has_cuda; then
    [ "$free_mb" -gt 3000 ] || none "only $free_mb MB free for '$dir', 3000 needed"
    say "installing PyTorch $version in '$dir', with the machine's CUDA libraries"
    install --no-deps "torch==$version" nvidia-cufile || fail "pip cannot get torch $version"
    # shellcheck disable=SC2046  # one word each
    install numpy $(needs 'cuda-toolkit|cuda-bindings|nvidia-cudnn|triton') ||
        fail "pip cannot get what torch $version needs"
elif install "torch==$version+cpu" numpy 2>/dev/null; then
    say "installed the CPU build of PyTorch $version in '$dir'"
else # the configured index has no CPU build
    [ "$free_mb" -gt 9000 ] || none "only $free_mb MB free for '$dir', 9000 needed"
    say "installing PyTorch $version and its CUDA libraries in '$dir': 2.2 GB to fetch"
    install "torch==$version" numpy || fail "pip cannot get torch $version"
fi
ready "$py" || fail "PyTorch $version was installed in '$dir' but cannot be imported"
# beside it, for programs that use both; nothing else needs it
install mpi4py 2>/dev/null || say "no mpi4py to be had: what needs it will be skipped"
: >"$dir/complete"
finish
