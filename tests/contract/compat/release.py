"""Version 0.1.0 from the history: a tag may not travel with a clone, a commit does."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

VERSION = "0.1.0"
COMMIT = "19feaf97d502d9668903adaab162c7a97a4900a7"
ROOT = Path(__file__).resolve().parents[3]


def need_history(commit: str = COMMIT) -> None:
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


def unpack(folder: Path, commit: str = COMMIT) -> Path:
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
