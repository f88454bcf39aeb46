"""Run the given scripts one after the other; fail when one fails, or when there is none."""

import subprocess
import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    scripts = [script for script in arguments if Path(script).is_file()]
    if not scripts:
        sys.stderr.write(f"nothing to run: no file matches {' '.join(arguments)}\n")
        return 1
    failed = []
    for script in scripts:
        sys.stdout.write(f"== {script}\n")
        sys.stdout.flush()
        if subprocess.run([sys.executable, script], check=False).returncode:  # noqa: S603 - named in the Makefile
            failed.append(script)
    if failed:
        sys.stderr.write(f"failed: {' '.join(failed)}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
