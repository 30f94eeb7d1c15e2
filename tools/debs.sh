#!/usr/bin/env bash
# tools/debs.sh DIR - fetch the Debian packages of the libraries that the build needs into DIR
# . tools/debs.sh DIR ROOT - unpack them below ROOT, and let meson find them there
#
# Of Debian 12's, which run on what is as new or newer, Ubuntu 24.04 among it.
# For a machine without them and without root, or without network: fetch here, copy the folder,
# unpack there. About 4 MB. There they are needed as long as the build is used.

debs=(libevent-dev libevent-core-2.1-7 libhwloc-dev libhwloc15 libsodium-dev libsodium23
    libjansson-dev libjansson4 uthash-dev zlib1g-dev zlib1g libinih-dev libinih1 check libsubunit-dev libsubunit0
    pkgconf pkgconf-bin libpkgconf3)

debs_fetch() {
    local deb
    mkdir -p "$1" && cd "$1" && apt-get -qq download "${debs[@]}" || return
    for deb in *_*.deb; do # a version in a name may have a '%' in it
        mv "$deb" "${deb%%_*}.deb" || return
    done
}

debs_use() {
    local deb root lib
    mkdir -p "$2" && root=$(cd "$2" && pwd) || return
    lib=$root/usr/lib/x86_64-linux-gnu
    for deb in "$1"/*.deb; do
        dpkg -x "$deb" "$root" || return
    done
    # what they say of themselves is true where they are now
    sed -i "s|/usr|$root/usr|g" "$lib"/pkgconfig/*.pc || return
    export PKG_CONFIG="$root/usr/bin/pkgconf" PKG_CONFIG_PATH="$lib/pkgconfig"
    # pkgconf's own library, and headers that have no .pc file
    export LD_LIBRARY_PATH="$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    export CPATH="$root/usr/include:$root/usr/include/x86_64-linux-gnu${CPATH:+:$CPATH}"
    export LIBRARY_PATH="$lib${LIBRARY_PATH:+:$LIBRARY_PATH}"
}

if [ $# -gt 1 ]; then debs_use "$1" "$2"; else debs_fetch "${1:?a folder}"; fi
