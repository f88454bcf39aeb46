"""Run luacheck over every Redis script as Redis sees it: with its ``-- insert NAME`` lines filled in.

A finding inside an inserted part is reported once, under the part's name and line. A function of a
part that one script leaves unused is reported only if every script leaves it unused.
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_INSERT = re.compile(r" *-- insert (\w+)\n")
_FINDING = re.compile(r"^[^:]*:(\d+):\d+: \((\w\d+)\) (.*)$")
_UNUSED = "W211"
#: A part cannot know the names of the scripts around it.
_SHADOWING = "W431"

#: Where a line came from: file and line number.
Origin = tuple[str, int]


def assemble(script: Path) -> tuple[str, list[Origin], set[str]]:
    """The text with its parts and theirs, where each line is from, and the parts."""
    text, origins, parts = "", [], set()
    for number, line in enumerate(script.read_text().splitlines(keepends=True), start=1):
        if insert := _INSERT.fullmatch(line):
            source = _parts_beside(script) / f"{insert.group(1)}.lua"
            inner, theirs, more = assemble(source)
            text, origins = text + inner, origins + theirs
            parts |= more | {str(source.relative_to(ROOT))}
        else:
            text += line
            origins.append((str(script.relative_to(ROOT)), number))
    return text, origins, parts


def _parts_beside(script: Path) -> Path:
    """Parts may have parts: all are in one folder."""
    return script.parent if script.parent.name == "parts" else script.parent / "parts"


def findings(script: Path) -> tuple[set[tuple[Origin, str, str]], set[str]]:
    """Everything luacheck reports about one script, and the parts it is made of."""
    text, origins, parts = assemble(script)
    command = ["luacheck", "-", "--no-color", "--codes", "--formatter", "plain"]
    done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, check=False)  # noqa: S603
    matches = [match for match in map(_FINDING.match, done.stdout.splitlines()) if match]
    if done.returncode > 2 or (done.returncode and not matches):
        raise SystemExit(f"luacheck failed on {script}: {done.stdout}{done.stderr}")
    # An error at the end of the text is on the line after the last.
    last = len(origins) - 1
    found = (match.groups() for match in matches)
    return {(origins[min(int(line) - 1, last)], code, message) for line, code, message in found}, parts


def main(files: list[str]) -> int:
    scripts = [path for file in files if (path := (ROOT / file)).read_text().startswith("#!lua")]
    said: dict[tuple[Origin, str, str], int] = defaultdict(int)
    users: dict[str, int] = defaultdict(int)
    for script in scripts:
        found, parts = findings(script)
        for part in parts:
            users[part] += 1
        for finding in found:
            said[finding] += 1
    count = 0
    for ((file, line), code, message), times in sorted(said.items()):
        if code == _UNUSED and times < users.get(file, 1):
            continue
        if code == _SHADOWING and file in users:
            continue
        count += 1
        sys.stderr.write(f"{file}:{line}: ({code}) {message}\n")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
