#!/bin/sh
# Makes the virtual environment VENV from the hashed requirements FILE, unless it is up to date.
# usage: tools/environment.sh VENV FILE        PYTHON=python3.12 chooses the interpreter
set -eu
venv=$1
requirements=$2

# A moved checkout has stale paths inside its environment, hence the folder in the stamp.
stamp="$(cksum <"$requirements") $(pwd)"
if [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.stamp" 2>/dev/null || true)" = "$stamp" ]; then
    exit 0
fi

python=$(sh "$(dirname "$0")/find_python.sh")
echo "Installing $requirements into $venv with $("$python" --version) ..."
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

pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet --no-input "$@"; }
pip install --require-hashes --requirement "$requirements"
if [ "$requirements" = requirements/dev.txt ]; then
    # What an editable install needs to build is among the requirements: nothing is fetched unpinned.
    pip install --no-deps --no-build-isolation --editable .
fi
echo "$stamp" >"$venv/.stamp"
