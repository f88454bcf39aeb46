"""Releases from the history: a tag may not travel with a clone, a commit does."""

import atexit
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest


class Release(NamedTuple):
    version: str
    commit: str

    def __str__(self) -> str:
        return self.version


FIRST = Release("0.1.0", "19feaf97d502d9668903adaab162c7a97a4900a7")
#: Its processes run beside those of this tree, and use the database of this tree.
LAST = Release("0.2.0", "9bbaabd859fcc06e505f022d9a6373fd2908d49d")
#: Agents of these releases work with this control plane: the last two minor ones.
SUPPORTED = (LAST, FIRST)
ROOT = Path(__file__).resolve().parents[3]


def need_history(commit: str) -> None:
    """Skip where the clone does not reach back that far; in continuous integration, fail."""
    if shutil.which("git"):
        look = ["git", "cat-file", "-e", f"{commit}^{{commit}}"]
        if subprocess.run(look, cwd=ROOT, capture_output=True).returncode == 0:
            return
    reason = (
        f"an earlier version is commit {commit[:7]}, which this clone does not have: "
        "fetch the whole history (git fetch --unshallow)"
    )
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@cache
def source(commit: str) -> Path:
    """The files of a commit, unpacked once in this process: only read them."""
    need_history(commit)
    return unpack(_kept_folder(commit) / "source", commit)


@cache
def installed(commit: str) -> Path:
    """What the wheel of a commit's agent installs, built once in this process, for PYTHONPATH."""
    return install_wheel(source(commit), _kept_folder(commit))


def _kept_folder(commit: str) -> Path:
    folder = tempfile.mkdtemp(prefix=f"fuseboard-{commit[:7]}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def unpack(folder: Path, commit: str) -> Path:
    """The files of a commit, in ``folder``."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


def install_wheel(source: Path, folder: Path) -> Path:
    """Build the wheel of these files and put what is in it into ``folder``, for PYTHONPATH."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "wheels")]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    (wheel,) = (folder / "wheels").glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(folder / "site")  # noqa: S202 - built above
    return folder / "site"


def python_path(*folders: Path) -> str:
    """What makes a process use these folders, before what is installed."""
    return os.pathsep.join(map(str, folders))
