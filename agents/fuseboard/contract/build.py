"""The commit that a distribution was built from."""

import shutil
import subprocess
from pathlib import Path

#: ``make release`` writes it into each package.
FILE = "commit"
#: Letters of a commit that are shown.
_SHOWN = 12


def commit_of(package: Path, *, checkout: Path) -> str:
    """The commit of an installed package, or that of the checkout; empty if neither is known.

    A checkout with changes that are not committed has a ``-dirty`` behind its commit.
    """
    try:
        return (package / FILE).read_text(encoding="ascii").strip()[:_SHOWN]
    except FileNotFoundError:
        pass
    git = shutil.which("git")
    if git is None or not (checkout / ".git").exists():
        return ""
    describe = ["describe", "--always", "--dirty", f"--abbrev={_SHOWN}", "--exclude=*"]
    found = subprocess.run(  # noqa: S603 - no argument is anybody's input
        [git, "-C", str(checkout), *describe], capture_output=True, text=True, check=False
    )
    return found.stdout.strip()
