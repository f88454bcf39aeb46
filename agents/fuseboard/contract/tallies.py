"""Counts of a pod by tenant, in parts that follow each other: for figures of each hour.

Totals since the start of the process would have to repeat every tenant, or a gateway would have to
remember every tenant of every pod. So these are differences. A part has a number: a pod repeats it until it
has an answer, and a gateway counts it once.
"""

from typing import Annotated

from msgspec import Meta, Struct

from fuseboard.contract.words import Subject

#: Tenants in one tally. Pods send fewer.
MAX_TALLIED = 500

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class TenantTally(Struct, frozen=True, array_like=True, gc=False):
    """Requests of one tenant since the last tally that lists it."""

    tenant: Subject
    asked: Count
    refused: Count = 0


class Tally(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    #: Rises by one with each tally of this process.
    number: Annotated[int, Meta(ge=1, le=2**53)]
    tenants: Annotated[tuple[TenantTally, ...], Meta(max_length=MAX_TALLIED)] = ()
    #: The pod has more tenants than it can count separately: some are in no tally.
    partial: bool = False
