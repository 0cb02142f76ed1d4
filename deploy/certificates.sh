#!/bin/sh
# Makes a certificate authority and the server's certificate.
#
#   deploy/certificates.sh DIR NAME-OR-ADDRESS...
#
# NAME-OR-ADDRESS: by which clients reach the server (server.example, 192.0.2.7). Loopback is always included: Flower's own
# processes use it. Run again to renew the server's certificate; the CA in DIR is kept, so clients need nothing new.
# DIR/ca.key signs certificates: keep it off the server. Clients need DIR/ca.crt, the server DIR/server.crt and DIR/server.key.
set -eu

[ $# -ge 2 ] || { echo "usage: $0 DIR NAME-OR-ADDRESS..." >&2; exit 2; }
dir=$1
shift
umask 077
mkdir -p "$dir"

names="DNS:localhost,IP:127.0.0.1,IP:::1"
for name in "$@"; do
    case $name in
        *:* | *[0-9].[0-9]*.[0-9]*.[0-9]*) names="$names,IP:$name" ;;
        *) names="$names,DNS:$name" ;;
    esac
done

if [ -f "$dir/ca.crt" ] && [ ! -f "$dir/ca.key" ]; then
    echo "$0: $dir/ca.crt is there, but not $dir/ca.key, which signs: put it back to renew the server's certificate" >&2
    exit 2
fi
# openssl tells its progress on standard error; what it says counts only where it fails.
log=$(mktemp)
extensions=$(mktemp)
request=$(mktemp)
trap 'rm -f "$log" "$extensions" "$request"' EXIT
quietly() { "$@" 2> "$log" || { cat "$log" >&2; exit 1; }; }

if [ ! -f "$dir/ca.key" ]; then
    quietly openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -days 3650 -subj "/CN=Perennial CA" \
        -addext "basicConstraints=critical,CA:TRUE,pathlen:0" -addext "keyUsage=critical,keyCertSign,cRLSign" \
        -keyout "$dir/ca.key" -out "$dir/ca.crt"
fi

cat > "$extensions" <<EXTENSIONS
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
authorityKeyIdentifier = keyid
subjectAltName = $names
EXTENSIONS
quietly openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" \
    -keyout "$dir/server.key" -out "$request"
quietly openssl x509 -req -in "$request" -CA "$dir/ca.crt" -CAkey "$dir/ca.key" -days 397 -extfile "$extensions" \
    -set_serial "0x$(openssl rand -hex 16)" -out "$dir/server.crt"
chmod 644 "$dir/ca.crt" "$dir/server.crt"
echo "$dir: server.crt for $names, until $(openssl x509 -in "$dir/server.crt" -noout -enddate | cut -d= -f2)"
