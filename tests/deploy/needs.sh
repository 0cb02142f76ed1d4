#!/bin/sh
# What the tests of make test-deploy need beside Python: root, and some programs, which are installed if that is possible.
set -eu
if [ "$(id -u)" -ne 0 ]; then
    echo "make test-deploy makes network namespaces, for which it must be root; try: sudo make test-deploy" >&2
    exit 2
fi
missing=""
for pair in ip:iproute2 nginx:nginx openssl:openssl systemd-analyze:systemd ssh-keygen:openssh-client; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair#*:}"
done
[ -z "$missing" ] && exit 0
if command -v apt-get >/dev/null 2>&1; then
    echo "installing$missing"
    { apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -qy install --no-install-recommends $missing; } >/dev/null ||
        { echo "apt-get could not install$missing" >&2; exit 2; }
    exit 0
fi
echo "make test-deploy needs these packages (by their names in Debian):$missing" >&2
exit 2
