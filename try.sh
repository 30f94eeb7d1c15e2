#!/usr/bin/env bash
# try.sh - from a fresh Debian 12 to a model trained by two ranks: install, build, run
set -euo pipefail
cd "$(dirname "$0")"
. tools/need.sh

need "${build_packages[@]}"
echo "building into build/"
configure build
engine=
[ ! -d build/worker/cuda ] || engine=worker/cuda/ddp-engine-cuda.so
compile build launcher/ddprun{,-agent,-topo,-script,-scaling,-fetch,-view,-diagnose} \
    rendezvous/ddpstored worker/ddp-train $engine
echo "build/launcher/ddprun -np 2 build/worker/ddp-train --target-accuracy 97"
exec build/launcher/ddprun -np 2 build/worker/ddp-train --target-accuracy 97 "$@"
