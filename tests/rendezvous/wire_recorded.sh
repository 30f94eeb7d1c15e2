#!/bin/sh
# wire_recorded.sh REPLAY - play the recorded conversations, which lie beside the sources
# (or below $DDPRUN_SHARED); says so and exits with 77 where they do not
root=$(cd "$(dirname "$0")/../.." && pwd)
exec "$1" "${DDPRUN_SHARED:-$root/../shared}/fixtures/tcpstore"
