"""``make release``: the files of the checked out commit, in ``dist/``.

Only what is committed is built. The files are made anew each time.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from tools.release.build import build_twice, git, sha256
from tools.release.sources import ROOT

DIST = ROOT / "dist"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    commit = git("rev-parse", "HEAD")
    if git("status", "--porcelain"):
        say("There are changes that are not committed. They are not in the release.")
    with tempfile.TemporaryDirectory(prefix="fuseboard-release-") as made:
        folder = Path(made)
        # The user of the embedded Postgres must reach what is installed here.
        folder.chmod(0o755)
        say(f"Building commit {commit[:12]} twice")
        built = build_twice(commit, folder)
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        for path in built:
            shutil.copy(path, DIST)
    files = sorted(DIST.iterdir())
    (DIST / "SHA256SUMS").write_text("".join(f"{sha256(path)}  {path.name}\n" for path in files))
    for path in files:
        say(f"  {sha256(path)[:16]}  {path.stat().st_size:>9} bytes  {path.name}")
    say("Both builds have these hashes. All of it is in dist/.")


if __name__ == "__main__":
    main()
