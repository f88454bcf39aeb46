"""Suggestions on the English of documents and pages: Google's style guide, and words we replace.

Run by ``make lint``. It always succeeds, because a person has to judge suggestions. Only the standard
library; textlint and its rules come from ``tools/prose/package-lock.json`` where Node.js is installed.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

ROOT = Path(__file__).resolve().parent.parent
PROSE = ROOT / "tools" / "prose"
STAMP = PROSE / "node_modules" / ".stamp"
MIN_NODE = 20
INSTALL_S = 180
LINT_S = 300
#: Lines of output, unless ``--all`` asks for every one.
MAX_LINES = 40

DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/*.md",
    "docs/runbooks/*.md",
    "docs/adr/*.md",
)
PAGES = ("dashboard/templates/**/*.html", "controlplane/templates/**/*.html")
_TAG = re.compile(r"\{%.*?%\}|\{#.*?#\}|\{% comment %\}.*?\{% endcomment %\}", re.DOTALL)
_VALUE = re.compile(r"\{\{.*?\}\}", re.DOTALL)


class CannotRun(Exception):
    """There are no suggestions; the message says what to do."""


def main(arguments: list[str]) -> int:
    try:
        install()
        found = list(suggestions())
    except CannotRun as why:
        sys.stdout.write(f"No suggestions on the English: {why}\n")
        return 0
    shown = found if "--all" in arguments else found[:MAX_LINES]
    for place, rule, message in shown:
        sys.stdout.write(f"{place}: {message} [{rule}]\n")
    rules = ", ".join(
        f"{count} {rule}" for rule, count in Counter(rule for _, rule, _ in found).most_common()
    )
    more = (
        "" if len(shown) == len(found) else f"; the first {MAX_LINES}: make lint-prose ALL=1 prints them all"
    )
    sys.stdout.write(
        f"{len(found)} suggestions on the English ({rules or 'none'}); none fails make lint{more}\n"
    )
    return 0


def install() -> None:
    """Bring ``tools/prose/node_modules`` to what the lock file says. Raises ``CannotRun``."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise CannotRun(
            f"install Node.js {MIN_NODE} or newer with npm (on Debian: apt-get install nodejs npm)"
        )
    version = _run([node, "--version"], 10).strip()
    if int(version.lstrip("v").partition(".")[0]) < MIN_NODE:
        raise CannotRun(f"it needs Node.js {MIN_NODE} or newer, and {node} is {version}")
    wanted = str(crc32((PROSE / "package-lock.json").read_bytes()))
    if STAMP.is_file() and STAMP.read_text() == wanted:
        return
    _run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], INSTALL_S)
    STAMP.write_text(wanted)


def suggestions() -> Iterator[tuple[str, str, str]]:
    """Place, rule and first line of each finding, in the order of the files."""
    with tempfile.TemporaryDirectory(prefix="fuseboard-prose-") as folder:
        pages = dict(_copy_pages(Path(folder)))
        documents = [str(path) for pattern in DOCUMENTS for path in sorted(ROOT.glob(pattern))]
        textlint = [shutil.which("node") or "node", "node_modules/textlint/bin/textlint.js"]
        options = ["--config", "textlintrc.json", "--format", "json"]
        reports = json.loads(_run([*textlint, *options, *documents, *pages], LINT_S, findings=True))
    for report in reports:
        path = os.path.relpath(pages.get(report["filePath"], report["filePath"]), ROOT)
        for message in report["messages"]:
            rule = message["ruleId"].rpartition("/")[2]
            yield f"{path}:{message['line']}", rule, message["message"].strip().partition("\n")[0]


def _copy_pages(folder: Path) -> Iterator[tuple[str, Path]]:
    """Templates as HTML, line by line: tags are blank, and a value is a word."""
    for pattern in PAGES:
        for page in sorted(ROOT.glob(pattern)):
            text = _TAG.sub(lambda found: "\n" * found[0].count("\n"), page.read_text())
            text = _VALUE.sub(lambda found: "X" + "\n" * found[0].count("\n"), text)
            copy = folder / str(page.relative_to(ROOT)).replace(os.sep, "-")
            copy.write_text(text)
            yield str(copy), page


def _run(command: list[str], timeout_s: float, *, findings: bool = False) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - commands of this file
            command, cwd=PROSE, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise CannotRun(f"{Path(command[0]).name} took longer than {timeout_s:.0f} s") from None
    # textlint ends with 1 when it has found something.
    if done.returncode != 0 and not (findings and done.returncode == 1 and done.stdout):
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise CannotRun(f"{Path(command[0]).name} failed: {lines[-1] if lines else 'without a message'}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
