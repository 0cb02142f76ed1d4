#!/bin/sh
# Refuses a node from now on. A running server takes notice in seconds and hangs up on it.
#
#   deploy/revoke.sh STATE-DIR NAME...
#
# NAME: as in STATE-DIR/nodes/NAME.pub. The file moves to STATE-DIR/revoked/, for the record. A key that was revoked is not
# admitted again before the server restarts: give the device a new one.
set -eu

[ $# -ge 2 ] || { echo "usage: $0 STATE-DIR NAME..." >&2; exit 2; }
state=$1
shift
mkdir -p "$state/revoked"
for name in "$@"; do
    [ -f "$state/nodes/$name.pub" ] || { echo "no node $name in $state/nodes" >&2; exit 2; }
    mv "$state/nodes/$name.pub" "$state/revoked/$name.pub"
    echo "revoked: $name"
done
