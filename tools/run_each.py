"""Run every script of a folder, one after the other; fail when one fails, or when there is none.

A script is a file that does something when run as ``__main__``; tests and shared modules are skipped.
"""

import os
import subprocess
import sys
from pathlib import Path


def main(folder: str) -> int:
    files = sorted(Path(folder).glob("*.py"))
    scripts = [str(file) for file in files if '__name__ == "__main__"' in file.read_text()]
    if not scripts:
        sys.stderr.write(f"Nothing to run: there is no script in {folder} yet.\n")
        return 1
    # Their folder comes first in the search path; imports of tests are found from the root.
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    failed = []
    for script in scripts:
        sys.stdout.write(f"== {script}\n")
        sys.stdout.flush()
        command = [sys.executable, script]
        if subprocess.run(command, env=environment, check=False).returncode:  # noqa: S603 - files of this tree
            failed.append(script)
    if failed:
        sys.stderr.write(f"Failed: {', '.join(failed)}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
