"""How calls to a dependency failed, as a heartbeat reports it."""

import re
from typing import Annotated

from msgspec import Meta, Struct

from fuseboard.contract.words import Name, Outcome

Total = Annotated[int, Meta(ge=0, le=2**53)]

#: Dependencies of which a heartbeat reports failures; kinds of each; and its newest failed calls.
MAX_FAILED_DEPENDENCIES = 100
MAX_KINDS = 8
MAX_CALLS = 3
KIND_LETTERS = 48

#: Kinds without one of their own: reported by the application; too slow; and further ones.
UNKNOWN_KIND = "failure"
SLOW_KIND = "slow"
OTHER_KINDS = "other"

#: A vendor's code, ``HTTP 503``, or a class: one word or two.
_KIND = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*(?: [0-9]+)?")
_TRACE = re.compile(r"[0-9a-f]{32}")


class FailedCall(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    #: Counts the failed calls of this process to the dependency, from 1.
    number: Annotated[int, Meta(ge=1, le=2**53)]
    kind: Annotated[str, Meta(min_length=1, max_length=KIND_LETTERS)]
    outcome: Outcome = Outcome.FAILURE
    ago_ms: Annotated[int, Meta(ge=0, le=10**12)] = 0
    #: The trace of W3C Trace Context that the call belongs to; empty for none.
    trace: Annotated[str, Meta(max_length=32)] = ""


class DependencyFailures(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Failed and slow calls to one dependency."""

    dependency: Name
    #: Totals since the process started.
    kinds: Annotated[
        dict[Annotated[str, Meta(min_length=1, max_length=KIND_LETTERS)], Total],
        Meta(max_length=MAX_KINDS + 1),
    ] = {}
    #: The newest, the oldest first.
    last: Annotated[tuple[FailedCall, ...], Meta(max_length=MAX_CALLS)] = ()


def is_kind(text: str) -> bool:
    """Whether ``text`` can be a kind of failure: a word, not a message."""
    return len(text) <= KIND_LETTERS and _KIND.fullmatch(text) is not None


def is_trace(text: str) -> bool:
    return _TRACE.fullmatch(text) is not None
