# tools/need.sh - sourced by try.sh and check.sh: Debian packages, and building
#
# need PACKAGE...: installs those that are missing; says how much that is before it does. No
# service that comes with them is started or stays enabled. An ordinary user without sudo
# gets the command that somebody with root has to run.

# what the programs are built from, and ssh, which they start
build_packages=(gcc libc6-dev meson ninja-build pkg-config libevent-dev libhwloc-dev
    libsodium-dev libjansson-dev uthash-dev zlib1g-dev libpng-dev libjpeg-dev libinih-dev check openssh-client python3)
# the groups that tests name as their suites (tests/run.py)
ssh_packages=(openssh-server iproute2 procps)
net_packages=(iproute2 curl)
mpi_packages=(libpmix-dev openmpi-bin libopenmpi-dev mpich libmpich-dev python3-mpi4py)
slurm_packages=(slurm-client slurm-wlm munge libslurm-dev "${ssh_packages[@]}")
sge_packages=(gridengine-master gridengine-exec gridengine-client "${ssh_packages[@]}")
numpy_packages=(python3-numpy)
torch_packages=(python3-torch python3-numpy python3-venv ca-certificates)
horovod_packages=("${torch_packages[@]}" libtorch-dev pybind11-dev python3-dev cmake
    python3-setuptools python3-wheel python3-psutil python3-yaml python3-cloudpickle
    python3-packaging python3-cffi)
container_packages=(podman crun runc busybox-static)
clang_packages=(clang libclang-rt-dev)
shellcheck_packages=(shellcheck)
valgrind_packages=(valgrind)
chromium_packages=(chromium)
# for tools/release and its test
release_packages=(autoconf automake libtool flex perl make patch dpkg-dev binutils python3-venv ca-certificates
    mmdebstrap util-linux "${ssh_packages[@]}")
# for tests on an emulated machine (tests/aarch64)
aarch64_packages=(gcc-aarch64-linux-gnu qemu-system-arm cpio)
# what single tests and optional parts use
other_packages=(g++ groff-base zsh binutils tcsh python3-tqdm elfutils)

missing() {
    local p
    for p in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$p" 2>/dev/null)" = "ii " ] || echo "$p"
    done
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

# waits while another program holds apt's lock
apt_get() {
    as_root env LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 \
        --no-install-recommends "$@"
}

# While packages are unpacked, nothing may start a service; a rule of the machine's own stays.
forbid_services() {
    [ ! -e /usr/sbin/policy-rc.d ] || return 0
    forbidden=1
    trap allow_services EXIT
    printf '#!/bin/sh\nexit 101\n' | as_root tee /usr/sbin/policy-rc.d >/dev/null
    as_root chmod 755 /usr/sbin/policy-rc.d
}

allow_services() {
    [ -z "${forbidden:-}" ] || as_root rm -f /usr/sbin/policy-rc.d
    forbidden=
}

# disable_services PACKAGE...: those that these have just brought do not start at boot either
disable_services() {
    local file
    dpkg -L "$@" | grep -E '^(/usr)?/lib/systemd/system/[^/]+\.(service|socket|timer|path)$|^/etc/init\.d/[^/]+$' |
        while read -r file; do
            case $file in
            /etc/init.d/*) as_root update-rc.d "${file##*/}" disable ;;
            *) as_root deb-systemd-helper disable "${file##*/}" ;;
            esac
        done >/dev/null 2>&1 || true
}

need() {
    local list log plan fresh absent
    mapfile -t list < <(missing "$@" | sort -u)
    [ ${#list[@]} -gt 0 ] || return 0
    if [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; then
        echo "error: missing packages; please have somebody with root run: apt-get install ${list[*]}" >&2
        return 1
    fi
    log=$(mktemp)
    # a fresh image has no package lists, and old ones name files that are gone
    if ! plan=$(apt_get -s install "${list[@]}" 2>"$log") &&
        ! { apt_get -qq update && plan=$(apt_get -s install "${list[@]}"); } >"$log" 2>&1; then
        # what this release of Debian does not have is left out: tests that need it are skipped
        absent=$(sed -nE "s/^E: (Package '|Unable to locate package )([^ ']+).*/\2/p" "$log" |
            grep -xF "$(printf '%s\n' "${list[@]}")") && {
            echo "note: this release has no package" $absent
            rm -f "$log"
            mapfile -t list < <(printf '%s\n' "${list[@]}" | grep -vxF "$absent")
            need "${list[@]}"
            return
        }
        tail -5 "$log" >&2
        echo "error: apt-get cannot install ${list[*]}" >&2
        return 1
    fi
    mapfile -t fresh < <(sed -n 's/^Conf \([^ ]*\) (.*/\1/p' <<<"$plan")
    echo "installing ${#fresh[@]} Debian packages for ${list[*]}"
    apt_get --assume-no install "${list[@]}" 2>/dev/null | grep -E '^(Need to get|After this)' || true
    forbid_services
    if ! apt_get -qq -y install "${list[@]}" >"$log" 2>&1 &&
        ! { apt_get -qq update && apt_get -qq -y install "${list[@]}"; } >"$log" 2>&1; then
        tail -5 "$log" >&2
        echo "error: apt-get could not install ${list[*]}" >&2
        return 1
    fi
    disable_services "${fresh[@]}"
    allow_services
    rm -f "$log"
    installed=1
}

# configure DIR [meson option...]; anew where packages were installed since. Warnings are errors, but not
# those that a compiler after this one may have
configure() {
    local dir=$1 log newest_gcc=16
    shift
    [ ! -f "$dir/build.ninja" ] || [ $# -gt 0 ] || [ -n "${installed:-}" ] || return 0
    log=$(mktemp)
    if [ -f "$dir/build.ninja" ] && [ -z "${installed:-}" ]; then
        set -- meson setup --reconfigure "$dir" "$@"
    elif [ -f "$dir/build.ninja" ]; then
        set -- sh -c 'meson configure --clearcache "$0" && exec meson setup --reconfigure "$0" "$@"' "$dir" "$@"
    else
        [ "$(gcc -dumpversion | cut -d. -f1)" -gt $newest_gcc ] || set -- -Dwerror=true "$@"
        set -- meson setup "$dir" "$@"
    fi
    if ! "$@" >"$log" 2>&1; then
        grep -E 'ERROR' "$log" >&2 || tail -15 "$log" >&2
        echo "error: meson cannot configure $dir" >&2
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
}

# compile DIR TARGET...: quietly; the errors where there are any
compile() {
    local dir=$1 log
    shift
    log=$(mktemp)
    if ! ninja -C "$dir" "$@" >"$log" 2>&1; then
        grep -A20 FAILED "$log" | head -60 >&2
        echo "error: the build failed: $dir" >&2
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
}
