"""The Pythons that a release is tried with, as far as this machine has them."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

#: Minor versions of Python 3 that a release says it runs on, or may be tried with.
MINORS = (11, 12, 13, 14)


def find_pythons() -> dict[str, Path | None]:
    """``3.11`` -> its interpreter, or ``None`` where there is none."""
    return {f"3.{minor}": next(_candidates(minor), None) for minor in MINORS}


def _candidates(minor: int) -> Iterator[Path]:
    """On the path, of uv, and of pyenv. Each is run, because the shim of a version manager may refuse."""
    name = f"python3.{minor}"
    if found := shutil.which(name):
        yield from _of_version(Path(found), minor)
    if uv := shutil.which(os.environ.get("UV") or "uv"):
        asking = [uv, "python", "find", "--no-python-downloads", f"3.{minor}"]
        shown = subprocess.run(asking, capture_output=True, text=True, check=False)  # noqa: S603
        if shown.returncode == 0:
            yield from _of_version(Path(shown.stdout.strip()), minor)
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for path in sorted(root.glob(f"versions/3.{minor}.*/bin/{name}"), reverse=True):
        yield from _of_version(path, minor)


def _of_version(python: Path, minor: int) -> Iterator[Path]:
    """The interpreter itself: a shim runs another one in another folder."""
    asking = "import sys; print(sys.version_info.minor, sys._base_executable)"
    shown = subprocess.run(  # noqa: S603 - an interpreter of this machine
        [str(python), "-c", asking], capture_output=True, text=True, check=False
    )
    number, _, executable = shown.stdout.strip().partition(" ")
    if shown.returncode == 0 and number == str(minor):
        yield Path(executable)
