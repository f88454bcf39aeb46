"""The wheels of both distributions, built once for all files of tests that want them."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.release.sources import DISTRIBUTIONS, copy_sources

#: The commit that the wheels say they are built from.
COMMIT = "0123456789abcdef" * 2


def built_wheels(folders: pytest.TempPathFactory) -> dict[str, Path]:
    """Name of a distribution -> its wheel, built from its sources as ``make release`` does."""
    folder = folders.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        # This run's folder of all workers. Without workers, the folder above is that of earlier runs too.
        folder = folder.parent
    with (folder / "wheels.lock").open("w") as lock:
        # The worker that comes second waits, and finds them.
        fcntl.flock(lock, fcntl.LOCK_EX)
        return {name: _built(name, folder / "wheels" / name) for name in DISTRIBUTIONS}


def _built(name: str, folder: Path) -> Path:
    if not list((folder / "dist").glob("*.whl")):
        sources = folder / "sources"
        if not sources.exists():
            copy_sources(name, sources, commit=COMMIT)
        build_wheel(sources, folder / "dist")
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def build_wheel(source: Path, to: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(to)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)


def sources_of(wheel: Path) -> Path:
    """The folder that it was built from."""
    return wheel.parent.parent / "sources"
