#!/bin/sh
# Makes a node's key pair, best on the device itself: the private half never leaves it.
#
#   deploy/node-key.sh FILE
#
# FILE is for `flower-client --key FILE`; FILE.pub goes to the server (deploy/admit.sh).
set -eu

[ $# -eq 1 ] || { echo "usage: $0 FILE" >&2; exit 2; }
[ ! -e "$1" ] || { echo "$1 is there already; a key is replaced by a new one under another name" >&2; exit 2; }
ssh-keygen -q -t ecdsa -b 384 -N "" -C "$(basename "$1")" -f "$1"
echo "$1 stays here, $1.pub goes to the server"
