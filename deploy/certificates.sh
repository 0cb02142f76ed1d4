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

if [ ! -f "$dir/ca.key" ]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -days 3650 -subj "/CN=Perennial CA" \
        -addext "basicConstraints=critical,CA:TRUE,pathlen:0" -addext "keyUsage=critical,keyCertSign,cRLSign" \
        -keyout "$dir/ca.key" -out "$dir/ca.crt" 2>/dev/null
fi

extensions=$(mktemp)
request=$(mktemp)
trap 'rm -f "$extensions" "$request"' EXIT
cat > "$extensions" <<EXTENSIONS
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
authorityKeyIdentifier = keyid
subjectAltName = $names
EXTENSIONS
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" \
    -keyout "$dir/server.key" -out "$request" 2>/dev/null
openssl x509 -req -in "$request" -CA "$dir/ca.crt" -CAkey "$dir/ca.key" -days 397 -extfile "$extensions" \
    -set_serial "0x$(openssl rand -hex 16)" -out "$dir/server.crt" 2>/dev/null
chmod 644 "$dir/ca.crt" "$dir/server.crt"
echo "$dir: server.crt for $names, until $(openssl x509 -in "$dir/server.crt" -noout -enddate | cut -d= -f2)"
