#!/bin/sh
# private_tmp.sh SOURCE COMMAND... - run COMMAND with a /tmp of its own
#
# The soak looks for files that a job has left in /tmp, where tests beside it leave theirs while they
# run. SOURCE, the project, stays where it is if it lies in /tmp. Without root: COMMAND as it is.
set -eu
source=$1
shift
[ "$(id -u)" = 0 ] || exec "$@"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
chmod 1777 "$tmp"
# shellcheck disable=SC2016 # expanded by the inner shell
unshare -m --propagation private sh -c '
    tmp=$1 source=$2
    shift 2
    case $source in
    /tmp/*)
        mkdir -p "$tmp${source#/tmp}"
        mount --bind "$source" "$tmp${source#/tmp}"
        ;;
    esac
    mount --rbind "$tmp" /tmp
    exec "$@"' sh "$tmp" "$source" "$@"
