#!/bin/sh
# Builds the agent's wheel with one Python and installs it with another, where Django must be absent.
# usage: tools/install_wheel.sh BUILDER TARGET
set -eu
builder=$1
target=$2

if "$target" -c 'import django' 2>/dev/null; then
    echo "$target has Django: the agent's tests are meant to run without it" >&2
    exit 1
fi
wheels=$(dirname "$target")/../wheels
rm -rf "$wheels"
"$builder" -m pip --disable-pip-version-check --quiet wheel --no-deps --no-build-isolation --wheel-dir "$wheels" .
"$target" -m pip --disable-pip-version-check --quiet install --no-deps --no-index --force-reinstall "$wheels"/*.whl
