#!/bin/sh
# Prints a Python that is new enough, or says on stderr, in one line, that there is none.
# usage: tools/find_python.sh        PYTHON=python3.12 chooses the interpreter
set -eu

# Interpreters are run, not only found: a version manager's shim may exist and still refuse.
for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3.14 python3 python}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        echo "$candidate"
        exit 0
    fi
done
found=none
for candidate in ${PYTHON:-python3 python}; do
    found=$("$candidate" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) && break
    found=none
done
echo "Fuseboard needs Python 3.11 or newer (found: $found). Install it, or name one: PYTHON=python3.12" >&2
exit 1
