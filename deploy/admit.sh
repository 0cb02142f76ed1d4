#!/bin/sh
# Lets a node connect, from now on and after every restart of the server. A running server takes notice in seconds.
#
#   deploy/admit.sh [--clients 0-3,7] STATE-DIR FILE.pub...
#
# STATE-DIR: of `flower-server --state-dir`. The file's name is the node's name in the server's log.
# --clients: those that the key is for. Its node may claim no other one, and no node whose key has no list may claim these.
set -eu

clients=""
if [ "${1:-}" = --clients ]; then
    clients=${2:-}
    echo "$clients" | grep -Eqx '[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*' || { echo "write --clients as 0-3,7" >&2; exit 2; }
    shift 2
fi
[ $# -ge 2 ] || { echo "usage: $0 [--clients 0-3,7] STATE-DIR FILE.pub..." >&2; exit 2; }
nodes=$1/nodes
shift
# The server may run as somebody else: the folder and the keys, which are public, are for all to read.
(umask 022 && mkdir -p "$nodes")
for key in "$@"; do
    case $(head -c 20 "$key") in
        ecdsa-sha2-nistp*) ;;
        *) echo "$key is not a public ECDSA key in OpenSSH format; deploy/node-key.sh makes one" >&2; exit 2 ;;
    esac
    # Beside and renamed: the server must not read half a key.
    name=$(basename "$key" .pub)
    if [ -n "$clients" ]; then
        awk -v "list=clients=$clients" '{ print $1, $2, list }' "$key" >"$nodes/.new"
    else
        cp "$key" "$nodes/.new"
    fi
    chmod 644 "$nodes/.new" && mv "$nodes/.new" "$nodes/$name.pub"
    echo "admitted: $name"
done
