#!/bin/sh
# Installs Debian packages without a question and without noise; the log is shown when it fails.
# usage: tools/apt_install.sh PACKAGE...
set -eu
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
echo "Installing $* ..."
# No installed package is removed. The lists of a fresh image are empty or old: they are fetched only when
# the first attempt fails.
apt-get install -y --no-remove --no-install-recommends "$@" >"$log" 2>&1 \
    || { apt-get update >>"$log" 2>&1 && apt-get install -y --no-remove --no-install-recommends "$@" >>"$log" 2>&1; } \
    || { cat "$log" >&2; exit 1; }
