"""The parts of a weekly summary. They are stored, so a field never changes its meaning."""

from dataclasses import dataclass
from enum import StrEnum


class Opens(StrEnum):
    """The page that a line leads to."""

    TENANT = "tenant"
    BREAKER = "breaker"
    TIER = "tier"
    DEPENDENCY = "dependency"
    ALERTS = "alerts"


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
