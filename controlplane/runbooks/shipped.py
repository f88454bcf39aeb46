"""The runbooks of this release, which also open while Postgres is down."""

import re
from dataclasses import dataclass
from functools import cache, lru_cache

from controlplane.installation import RUNBOOKS

_TITLE = re.compile(r"\A\s*#\s+(.+)\n+")
#: The runbook of a dependency that names none.
FOR_DEPENDENCIES = "breaker-open"


@dataclass(frozen=True)
class Text:
    """A runbook without its name: its title, and its body in Markdown."""

    title: str
    body: str


@cache
def shipped() -> dict[str, Text]:
    """Name -> text. Read once: the files of a release do not change while it runs."""
    return {
        file.stem: split_title(file.read_text(encoding="utf-8")) for file in sorted(RUNBOOKS.glob("*.md"))
    }


@lru_cache(maxsize=512)
def split_title(text: str) -> Text:
    found = _TITLE.match(text)
    return Text(found[1].strip() if found else "", _TITLE.sub("", text, count=1).strip() + "\n")
