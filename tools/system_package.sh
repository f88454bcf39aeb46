#!/bin/sh
# Sees to it that COMMAND exists: installs Debian's PACKAGES when that is possible, else says what is missing.
# With CI set a missing command is an error: nothing may be skipped there.
# usage: tools/system_package.sh COMMAND "PACKAGE ..." CONSEQUENCE
set -eu
command=$1
packages=$2
consequence=$3

if command -v "$command" >/dev/null; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && [ -e /etc/debian_version ] && sh "$(dirname "$0")/apt_install.sh" $packages; then
    exit 0
fi
echo "$command is not installed, $consequence. On Debian: apt-get install $packages" >&2
[ -z "${CI:-}" ]
