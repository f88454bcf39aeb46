"""``make release``: the files of the checked out commit, in ``dist/``, and what a stranger does with them.

Only what is committed is built. The page that the stranger follows, NOTICE, and what the bills of materials
need are read from this tree, so it must have no changes. ``dist/`` is replaced when everything has passed.
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path

from tools.release.build import NotReproducible, build_twice, git, sha256
from tools.release.licences import installed_in, problems
from tools.release.pythons import find_pythons
from tools.release.sbom import write_sbom
from tools.release.sources import DISTRIBUTIONS, ROOT
from tools.release.walk import Lost, Stranger, walk

DIST = ROOT / "dist"
NOTICE = ROOT / "controlplane/NOTICE"
#: The machine of the walk on which a distribution is installed.
MACHINES = {"fuseboard": "pod", "fuseboard-controlplane": "server"}


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    commit = git("rev-parse", "HEAD")
    if changes := git("status", "--porcelain"):
        sys.exit(f"These files are not as the commit has them. Commit them, or run git stash -u:\n{changes}")
    with tempfile.TemporaryDirectory(prefix="fuseboard-release-") as made:
        folder = Path(made)
        # The user of the embedded Postgres must reach what is installed here.
        folder.chmod(0o755)
        try:
            dist = _make(commit, folder)
        except (Lost, NotReproducible) as problem:
            sys.exit(str(problem))
        shutil.rmtree(DIST, ignore_errors=True)
        shutil.copytree(dist, DIST)
    say(f"The release of commit {commit[:12]} is in dist/")


def _make(commit: str, folder: Path) -> Path:
    """A folder with the files of the release."""
    dist = folder / "dist"
    dist.mkdir()
    say(f"Building commit {commit[:12]} twice")
    for path in build_twice(commit, folder / "builds"):
        shutil.copy(path, dist)
    say("  both builds have the same hashes")
    strangers = _walks(folder, dist)
    epoch = git("show", "--no-patch", "--format=%ct", commit)
    for version, stranger in strangers.items():
        for name in DISTRIBUTIONS:
            _describe(name, version, stranger, dist, epoch=epoch)
    files = sorted(dist.iterdir())
    (dist / "SHA256SUMS").write_text("".join(f"{sha256(path)}  {path.name}\n" for path in files))
    for path in files:
        say(f"  {sha256(path)[:16]}  {path.stat().st_size:>9,} bytes  {path.name}")
    return dist


def _walks(folder: Path, dist: Path) -> dict[str, Stranger]:
    """Version of Python -> the stranger who has it, for each of this machine."""
    strangers = {}
    pythons = find_pythons()
    for version, python in pythons.items():
        if python is None:
            continue
        say(f"A stranger with Python {version} follows docs/deployment.md")
        began = time.monotonic()
        strangers[version] = walk(folder / f"python{version}", python, dist, lambda text: say(f"  {text}"))
        say(f"  {time.monotonic() - began:.0f} s")
    for version, python in pythons.items():
        if python is None:
            say(f"Not tried: Python {version}, which this machine does not have")
    if not strangers:
        raise Lost("this machine has no Python from 3.11 to 3.14")
    return strangers


def _describe(name: str, version: str, stranger: Stranger, dist: Path, *, epoch: str) -> None:
    """The bill of materials and the licences of what was installed: another Python needs other packages."""
    environment = stranger.folder / MACHINES[name] / "venv"
    found = list(problems(installed_in(environment), NOTICE.read_text()))
    if found:
        raise Lost("\n".join(found))
    (wheel,) = dist.glob(f"{name.replace('-', '_')}-*.whl")
    file = dist / f"{'-'.join(wheel.name.split('-')[:2])}-python{version}.cdx.json"
    parts = write_sbom(name, environment / "bin/python", file, epoch=epoch)
    say(
        f"  {name} with Python {version}: {parts} parts in its bill of materials,"
        " each licence allowed or named in NOTICE"
    )


if __name__ == "__main__":
    main()
