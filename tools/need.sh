# tools/need.sh - sourced by try.sh and check.sh: Debian packages, and what to do without
#
# need PACKAGE...: installs those that are missing, and says which. An ordinary user without
# sudo is told the one command that somebody has to run.

missing() {
    local p
    for p in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$p" 2>/dev/null)" = "ii " ] || echo "$p"
    done
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

need() {
    local list
    mapfile -t list < <(missing "$@")
    [ ${#list[@]} -gt 0 ] || return 0
    echo "installing: ${list[*]}"
    if [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; then
        echo "this needs root; please have somebody run: apt-get install ${list[*]}" >&2
        return 1
    fi
    # an apt that another program holds is waited for; old package lists are renewed once
    local get=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -qq)
    local log
    log=$(mktemp)
    if ! as_root "${get[@]}" install -y --no-install-recommends "${list[@]}" >"$log" 2>&1; then
        if ! { as_root "${get[@]}" update && as_root "${get[@]}" install -y --no-install-recommends "${list[@]}"; } >"$log" 2>&1; then
            tail -5 "$log" >&2
            echo "could not install: ${list[*]}" >&2
            rm -f "$log"
            return 1
        fi
    fi
    rm -f "$log"
}

# what the programs are built from, and ssh, which they start
build_packages=(gcc libc6-dev meson ninja-build pkg-config libevent-dev libhwloc-dev
    libsodium-dev libjansson-dev uthash-dev zlib1g-dev libinih-dev libpmix-dev
    check openssh-client python3)

# what only the tests use: peers to talk to, a second compiler, hosts to log in to
test_packages=(clang libclang-rt-14-dev openssh-server iproute2 util-linux python3-venv
    python3-torch curl procps binutils slurm-client slurm-wlm munge gridengine-master gridengine-exec
    gridengine-client shellcheck openmpi-bin libopenmpi-dev mpich libmpich-dev
    python3-mpi4py)

# build DIR [meson option...]: configure if need be, compile quietly, show errors only
build() {
    local dir=$1 log
    shift
    log=$(mktemp)
    if ! { { [ -f "$dir/build.ninja" ] || meson setup "$dir" "$@"; } && ninja -C "$dir"; } >"$log" 2>&1; then
        grep -E 'FAILED|error|ERROR' "$log" | head -20 >&2 || true
        tail -15 "$log" >&2
        rm -f "$log"
        echo "the build failed: $dir" >&2
        return 1
    fi
    rm -f "$log"
}
