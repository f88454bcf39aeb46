"""Both distributions of one commit, built twice where nothing but the commit is the same."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tools.release.sources import DISTRIBUTIONS, ROOT


class Place(NamedTuple):
    """What must not change the files: where they are built, when it is there, and who may read them."""

    folder: str
    umask: int
    timezone: str


PLACES = (Place("a", 0o022, "UTC"), Place("b/deeper and with spaces", 0o077, "Pacific/Kiritimati"))


class NotReproducible(Exception):
    """The same commit gave two different files."""


def build_twice(commit: str, folder: Path) -> list[Path]:
    """The files of a commit, which are the same in both places. Raises ``NotReproducible``."""
    first, second = (_build(commit, folder / place.folder, place) for place in PLACES)
    hashes = [{path.name: sha256(path) for path in built} for built in (first, second)]
    if hashes[0] != hashes[1]:
        raise NotReproducible(f"Two builds of {commit} differ: {hashes[0]} and {hashes[1]}.")
    return first


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(*command: str | Path, cwd: Path = ROOT, umask: int = -1, **variables: str) -> str:
    """What a command prints. If it fails, its errors are printed, and the release ends."""
    done = subprocess.run(  # noqa: S603 - our own commands
        [str(word) for word in command],
        cwd=cwd,
        env=os.environ | variables,
        umask=umask,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def git(*words: str, cwd: Path = ROOT) -> str:
    return run(shutil.which("git") or "git", *words, cwd=cwd).strip()


def _build(commit: str, folder: Path, place: Place) -> list[Path]:
    """Clone, copy the sources of each distribution, and build its sdist and its wheel."""
    clone, out = folder / "clone", folder / "dist"
    folder.mkdir(parents=True)
    git("clone", "--quiet", "--no-checkout", str(ROOT), str(clone))
    variables = {
        "TZ": place.timezone,
        # The files in the archives are as old as the commit.
        "SOURCE_DATE_EPOCH": git("show", "--no-patch", "--format=%ct", commit, cwd=clone),
    }
    run("git", "checkout", "--quiet", commit, cwd=clone, umask=place.umask, **variables)
    for name in DISTRIBUTIONS:
        sources = folder / name
        copying = (sys.executable, "-m", "tools.release.sources", name, sources)
        run(*copying, cwd=clone, umask=place.umask, **variables)
        building = (sys.executable, "-m", "hatchling", "build", "-d", out)
        run(*building, cwd=sources, umask=place.umask, **variables)
    return sorted(out.iterdir())
