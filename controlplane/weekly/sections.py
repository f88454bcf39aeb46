"""The parts of a weekly summary. They are stored, so a field never changes its meaning."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Opens(StrEnum):
    """The page that a line leads to."""

    TENANT = "tenant"
    BREAKER = "breaker"
    TIER = "tier"
    DEPENDENCY = "dependency"
    ALERTS = "alerts"
    COSTS = "costs"


@dataclass(frozen=True, kw_only=True)
class Line:
    name: str
    #: The evidence: figures, and of which time.
    found: str
    #: The suggested change; empty for a line that only informs.
    suggestion: str = ""
    opens: Opens
    #: The thing that it leads to: a tenant, a dependency, a tier. Empty for a caller without a name.
    key: str = ""
    #: The limit of a tier whose size is suggested.
    limit: str = ""
    #: The size that is filled in; ``None`` for none.
    size: int | None = None


@dataclass(frozen=True, kw_only=True)
class Section:
    title: str
    lines: tuple[Line, ...]
    #: The part of the week that is known, or why none is.
    known: str
    #: The text without a line: nothing was found, or nothing is known.
    nothing: str
    #: Lines that are not listed.
    more: int = 0


#: A section as it is stored.
Stored = dict[str, Any]


def listed(section: Stored, *, text: Callable[[str], str] = str, bold: str = "") -> str:
    """The lines of a section as a list, for a message or Markdown; or what it says without a line."""
    found = [
        f"- {bold}{text(line['name'])}{bold}: {text(line['found'])}."
        + (f" {text(line['suggestion'])}" if line["suggestion"] else "")
        for line in section["lines"]
    ]
    if section["more"]:
        found.append(f"- and {section['more']:,} more")
    return "\n".join(found or [section["nothing"]])


def without_tenant(sections: list[Stored], tenant: str) -> list[Stored]:
    """The sections without the lines about a tenant, and about alerts of it."""
    return [
        {**section, "lines": [line for line in section["lines"] if not _is_about(line, tenant)]}
        for section in sections
    ]


def _is_about(line: dict[str, Any], tenant: str) -> bool:
    if line["opens"] == Opens.ALERTS:
        # ``runaway-tenant:acme``, ``hot-key:acme/requests``
        subject = line["key"].partition(":")[2]
        return bool(subject == tenant or subject.startswith(f"{tenant}/"))
    return bool(line["opens"] == Opens.TENANT and line["key"] == tenant)
