"""Checks over every file git knows that a reviewer would otherwise do by hand.

Run by ``make lint``; ``tests/repo`` shows each check a file that must fail. Only the standard library:
it must work on a machine that is only half set up.
"""

import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

MAX_PYTHON_LINES = 500
#: A test file is a list, and read as one.
MAX_TEST_LINES = 500
#: A line of a template is markup with tags in it; a line of our script or style is read as code.
MAX_TEMPLATE_COLUMNS = 160
MAX_STATIC_COLUMNS = 120
MAX_CHANGE_COLUMNS = 160
#: The parts of a release in the changelog, as [tool.towncrier] of pyproject.toml has them.
CHANGE_KINDS = ("before", "added", "changed", "deprecated", "removed", "fixed", "security")

# Character classes keep these patterns from matching this file.
_MACHINE_PATHS = re.compile(r"(?<![\w.~}-])/(?:hom[e]/\w|User[s]/\w|roo[t]/|wor[k]/|tm[p]/\w|mn[t]/\w)")
_REGISTRY_HOSTS = re.compile(
    r"(?:pyp[i]\.org|pythonhoste[d]\.org|registr[y]\.[a-z]+\.(?:com|org|io|net)|npmj[s]\.(?:org|com)|docke[r]\.io|ghc[r]\.io|qua[y]\.io"
    r"|unpk[g]\.com|jsdeliv[r]\.net|cdnj[s]\.|proxy\.golan[g]\.org|crate[s]\.io|(?:deb|security)\.debia[n]\.org)"
    r"|^--?(?:index-ur[l]|extra-index-ur[l]|find-link[s]|trusted-hos[t])",
    re.IGNORECASE,
)
_MARKDOWN_LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_HTML_LINK = re.compile(r"<(?:img|source|a)\b[^>]*?\s(?:src|srcset|href)=\"([^\"\s]+)\"")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def machine_paths(path: str, text: str) -> Iterator[str]:
    """Paths that exist on one machine only."""
    yield from _matching_lines(_MACHINE_PATHS, path, text, "absolute machine path")


def registry_hosts(path: str, text: str) -> Iterator[str]:
    """Download addresses of packages, which depend on the reader's machine."""
    yield from _matching_lines(_REGISTRY_HOSTS, path, text, "registry host")


def python_length(path: str, text: str) -> Iterator[str]:
    if path.endswith(".py") and "/migrations/" not in path:
        lines = text.count("\n")
        most = MAX_TEST_LINES if path.startswith("tests/") else MAX_PYTHON_LINES
        if lines > most:
            yield f"{path}: {lines} lines, more than {most}: split it by subject"


def line_width(path: str, text: str) -> Iterator[str]:
    """Templates, and scripts and styles that are not vendored."""
    most = _widest(path)
    for number, line in enumerate(text.splitlines(), start=1):
        if len(line) > most:
            yield f"{path}:{number}: {len(line)} characters, more than {most}: wrap it at a tag or a clause"


def _widest(path: str) -> float:
    if "/templates/" in path and path.endswith(".html"):
        return MAX_TEMPLATE_COLUMNS
    if path.startswith("dashboard/static/dashboard/") and path.endswith((".css", ".js")):
        return MAX_STATIC_COLUMNS
    return math.inf


def lua_header(path: str, text: str) -> Iterator[str]:
    """A script opens like a man page: the shebang, then a comment with KEYS, ARGV and Returns."""
    if not path.endswith(".lua"):
        return
    first, _, rest = text.partition("\n")
    if first.startswith("-- Inserted into "):
        return  # a part that several scripts share
    if not first.startswith("#!lua"):
        yield f"{path}:1: does not start with #!lua"
    header = "\n".join(_leading_comment(rest))
    for part in ("KEYS", "ARGV", "Returns"):
        if part not in header:
            yield f"{path}: its opening comment has no {part}"


def markdown_links(path: str, text: str) -> Iterator[str]:
    """Relative links must lead to a file; headings are not checked."""
    if not path.endswith(".md"):
        return
    prose = _CODE.sub("", text)
    is_change = path.startswith("tools/changes/") and not path.endswith("README.md")
    where = ROOT if is_change else (ROOT / path).parent  # an entry is read at the top level
    for target in [*_MARKDOWN_LINK.findall(prose), *_HTML_LINK.findall(prose)]:
        file = target.partition("#")[0]
        if not file or re.match(r"[a-z]+:", file) or file.startswith("/"):
            continue  # a heading of this page, another site, or a page of the running application
        if not where.joinpath(file).exists():
            yield f"{path}: link to {target}, which does not exist"


def change(path: str, text: str) -> Iterator[str]:
    """An entry of the next changelog, see tools/changes/README.md."""
    folder, _, name = path.rpartition("/")
    if folder != "tools/changes" or name == "README.md":
        return
    if not re.fullmatch(rf"[a-z0-9]+(?:-[a-z0-9]+)*\.(?:{'|'.join(CHANGE_KINDS)})\.md", name):
        yield f"{path}: is not named NAME.KIND.md, with a kind of {', '.join(CHANGE_KINDS)}"
    if not text.endswith(".\n"):
        yield f"{path}: does not end with a full stop and the end of a line"
    for number, line in enumerate(text.splitlines(), start=1):
        if re.match(r"#|[-*] |$", line):
            yield f"{path}:{number}: is a heading, a list or empty: write one paragraph"
        if len(line) > MAX_CHANGE_COLUMNS:
            yield f"{path}:{number}: {len(line)} characters, more than {MAX_CHANGE_COLUMNS}"


CHECKS: tuple[Callable[[str, str], Iterator[str]], ...] = (
    machine_paths,
    registry_hosts,
    python_length,
    line_width,
    lua_header,
    markdown_links,
    change,
)


def tracked_files() -> list[str]:
    """Committed and new files, without ignored ones; a file deleted but not yet committed is gone."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    return sorted({name for name in names.split("\0") if name and (ROOT / name).is_file()})


def findings(path: str, text: str) -> Iterator[str]:
    for check in CHECKS:
        yield from check(path, text)


def main() -> int:
    files = tracked_files()
    found = 0
    for path in files:
        try:
            text = (ROOT / path).read_text()
        except UnicodeDecodeError:
            continue  # a picture or a font
        for finding in findings(path, text):
            found += 1
            sys.stderr.write(finding + "\n")
    sys.stderr.write(f"{found} findings in {len(files)} files\n" if found else "")
    return 1 if found else 0


def _matching_lines(pattern: re.Pattern[str], path: str, text: str, what: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        match = pattern.search(line)
        if match:
            yield f"{path}:{number}: {what} {match.group()!r}"


def _leading_comment(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.strip() and not line.startswith("--"):
            return
        yield line


if __name__ == "__main__":
    sys.exit(main())
