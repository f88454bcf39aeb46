#!/bin/sh
# Makes the virtual environment VENV from the hashed requirements FILE, unless it is up to date: with uv
# where it is installed, otherwise with pip.
# usage: tools/environment.sh VENV FILE        PYTHON=python3.12 chooses the interpreter, UV= pip
set -eu
venv=$1
requirements=$2

# A moved checkout has stale paths inside its environment, hence the folder in the stamp.
stamp="$(cksum <"$requirements") $(pwd)"
if [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.stamp" 2>/dev/null || true)" = "$stamp" ]; then
    exit 0
fi

python=$(sh "$(dirname "$0")/find_python.sh")
uv=${UV-uv}
[ -n "$uv" ] && "$uv" --version >/dev/null 2>&1 || uv=
echo "Installing $requirements into $venv with $("$python" --version) and ${uv:-pip} ..."
if ! "$python" -m venv --clear "$venv" >/dev/null 2>&1; then
    # Debian keeps venv's pip in a package of its own.
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        sh "$(dirname "$0")/apt_install.sh" "$package"
    fi
    "$python" -m venv --clear "$venv" >/dev/null || {
        echo "$python cannot make virtual environments: install its venv module (on Debian: python3-venv)" >&2
        exit 1
    }
fi

# In the place of its shell in the background, so that Ctrl-C ends it.
pip() { exec "$venv/bin/python" -m pip --disable-pip-version-check --no-input install "$@"; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT
total=$(grep -c '^[a-z0-9].*==' "$requirements")
seconds=0

# pip finds every package before it installs the first. uv installs each at once.
found() {
    if [ -n "$uv" ]; then
        find "$venv"/lib/python*/site-packages -maxdepth 1 -name '*.dist-info' | wc -l
    else
        grep -c '^Collecting ' "$log" || true
    fi
}

# Runs a command, and prints every 5 s how far it is. Its output appears only if it fails.
watched() {
    "$@" >"$log" 2>&1 &
    job=$!
    # A shell starts a job in the background with Ctrl-C ignored.
    trap 'kill "$job" 2>/dev/null; exit 130' INT TERM
    while kill -0 "$job" 2>/dev/null; do
        sleep 1
        seconds=$((seconds + 1))
        [ $((seconds % 5)) != 0 ] || echo "  $seconds s: $(found) of $total packages"
    done
    trap - INT TERM
    wait "$job"
}

fail() {
    cat "$log" >&2
    exit 1
}

if [ -n "$uv" ] && watched "$uv" pip install --python "$venv/bin/python" --require-hashes --requirement "$requirements"; then
    :
else
    # uv does not read the configuration of pip, which may name another index.
    [ -z "$uv" ] || echo "  uv failed, so pip tries: $(tail -n 1 "$log")"
    uv=
    watched pip --require-hashes --requirement "$requirements" || fail
fi
if [ "$requirements" = requirements/dev.txt ]; then
    # What an editable install needs to build is among the requirements: nothing is fetched unpinned.
    watched pip --no-deps --no-build-isolation --editable . || fail
fi
echo "$stamp" >"$venv/.stamp"
echo "  installed after $seconds s"
