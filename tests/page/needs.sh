#!/bin/sh
# What the test of the page needs beside Python: Chromium, which is installed if that is possible.
set -eu
command -v chromium >/dev/null 2>&1 && exit 0
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing chromium"
    { apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -qy install --no-install-recommends chromium; } >/dev/null ||
        { echo "apt-get could not install chromium" >&2; exit 2; }
    exit 0
fi
echo "make test-page needs the program chromium; on Debian, root installs it by: apt-get install chromium" >&2
exit 2
