#!/bin/sh
# Installs Debian packages for what is missing: install.sh "MISSING..." NAME:PACKAGE...
# Only the packages of missing names are installed, with sudo when not root, and it says what it does.
set -eu
missing=$1
shift
packages=
for pair in "$@"; do
    for name in $missing; do
        [ "${pair%%:*}" = "$name" ] && packages="$packages ${pair#*:}"
    done
done
root=
[ "$(id -u)" = 0 ] || root=sudo
if ! command -v apt-get >/dev/null; then
    echo "missing:$missing. This machine has no apt-get; install the equivalents of:$packages" >&2
    exit 1
fi
echo "missing:$missing; installing with ${root:+$root }apt-get:$packages"
export DEBIAN_FRONTEND=noninteractive
$root apt-get update -qq
# shellcheck disable=SC2086
$root apt-get install -y -qq --no-install-recommends $packages >/dev/null
