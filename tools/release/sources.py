"""The sources of each distribution, with its ``pyproject.toml`` at the top.

``python -m tools.release.sources controlplane FOLDER`` copies those of one, so that any tool can build it.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
#: The name is that of fuseboard.contract.build, which a builder need not have installed.
COMMIT_FILE = "commit"
#: Where uv finds packages of a checkout, and of no other place.
_PLACES_OF_UV = re.compile(r"\n*^\[tool\.uv\.sources\]\n(?:[^\[\n].*\n|\n)*", re.MULTILINE)


class Sources(NamedTuple):
    #: In the checkout.
    pyproject: str
    folders: tuple[str, ...]
    #: The package that knows its commit.
    package: str


DISTRIBUTIONS = {
    "fuseboard": Sources("pyproject.toml", ("agents/fuseboard",), "agents/fuseboard"),
    "fuseboard-controlplane": Sources(
        "controlplane/pyproject.toml", ("controlplane", "dashboard", "docs/runbooks"), "controlplane"
    ),
}


def copy_sources(distribution: str, folder: Path, *, tree: Path = ROOT, commit: str = "") -> None:
    """Copy what a distribution is built from into a new folder. The package gets the commit, if known."""
    sources = DISTRIBUTIONS[distribution]
    folder.mkdir(parents=True)
    for name in sources.folders:
        shutil.copytree(tree / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    for name in ("README.md", "LICENSE"):
        shutil.copy(tree / name, folder / name)
    project = (tree / sources.pyproject).read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text(_PLACES_OF_UV.sub("\n", project), encoding="utf-8")
    if commit:
        (folder / sources.package / COMMIT_FILE).write_text(f"{commit}\n", encoding="ascii")


def commit_of_checkout(tree: Path = ROOT) -> str:
    """The whole commit of a checkout; empty where git does not know it."""
    git = shutil.which("git")
    if git is None or not (tree / ".git").exists():
        return ""
    found = subprocess.run(  # noqa: S603 - no argument is anybody's input
        [git, "-C", str(tree), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


if __name__ == "__main__":
    copy_sources(sys.argv[1], Path(sys.argv[2]), commit=commit_of_checkout())
