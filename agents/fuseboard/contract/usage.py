"""The usage of language models, in numbered parts, as in ``tallies``: for the ledger.

A tally may lose what a gateway had in memory. The ledger may not: a pod repeats a part until a gateway
answers that Postgres has it, and Postgres counts each number of a process once.
"""

from typing import Annotated

from msgspec import Meta, Struct

#: Rows of one part, and parts of one heartbeat. Pods send fewer bytes than these would have.
MAX_ROWS, MAX_PARTS = 300, 8
#: A longer name of a model is cut.
MAX_MODEL = 200

#: Sums of many rows fit into a column of Postgres: pods are not trusted.
MAX_AMOUNT = 2**40
Amount = Annotated[int, Meta(ge=0, le=MAX_AMOUNT)]


class UsageRow(Struct, frozen=True, array_like=True, gc=False):
    """The calls of one tenant to one model. An empty name is all that a pod does not list."""

    model: Annotated[str, Meta(max_length=MAX_MODEL)]
    dependency: Annotated[str, Meta(max_length=64)]
    tenant: Annotated[str, Meta(max_length=200)]
    calls: Amount
    #: Tokens of the input: neither read from the vendor's cache nor written to it, read, and written.
    fresh: Amount = 0
    cached: Amount = 0
    written: Amount = 0
    output: Amount = 0
    #: By the prices that the pod had.
    micro_usd: Amount = 0
    #: Calls, and their part of ``micro_usd``, whose answer was cut or left before its end.
    wasted: Amount = 0
    wasted_micro_usd: Amount = 0
    #: Calls, and their part of ``micro_usd``, whose usage the vendor did not report: it is estimated.
    estimated: Amount = 0
    estimated_micro_usd: Amount = 0
    #: Calls without a price, which are not in ``micro_usd``.
    unpriced: Amount = 0
    #: The cost of the input without the vendor's cache, less its cost: negative if more was written to it
    #: than read.
    saved_micro_usd: Annotated[int, Meta(ge=-MAX_AMOUNT, le=MAX_AMOUNT)] = 0


class UsagePart(Struct, frozen=True, kw_only=True, gc=False):
    #: Rises by one with each part of this process.
    number: Annotated[int, Meta(ge=1, le=2**53)]
    #: How long ago the pod began to count these calls. It is another number when the part is repeated.
    ago_s: Annotated[int, Meta(ge=0, le=10**9)]
    rows: Annotated[tuple[UsageRow, ...], Meta(max_length=MAX_ROWS)]
