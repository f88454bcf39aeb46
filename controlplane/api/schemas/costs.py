"""The documents of the ledger of models."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Annotated

from ninja import Schema
from pydantic import Field

from controlplane.api.schemas import FromObject
from controlplane.api.schemas.edits_in import ReasonIn
from controlplane.ledger.reading import Costs, Line, Summary, Sums, Wanted
from fuseboard.contract.budgets import MAX_BUDGET


@dataclass(frozen=True, kw_only=True)
class CostsFound:
    wanted: Wanted
    costs: Costs
    summary: Summary


class SumsOut(Schema):
    calls: int
    #: Tokens of the input: neither read from the vendor's cache nor written to it, read, and written.
    fresh: int
    cached: int
    written: int
    output: int
    #: By the prices at the time of each call.
    micro_usd: int
    #: Calls whose answer was cut or left before its end, and what they cost.
    wasted: int
    wasted_micro_usd: int
    #: Calls whose usage the vendor did not report, and what they cost.
    estimated: int
    estimated_micro_usd: int
    #: Calls without a price, which are not in micro_usd.
    unpriced: int
    #: The part of the cost that the vendor's cache saved.
    saved_micro_usd: int


class CostLineOut(SumsOut):
    #: The model, tenant or service, empty for those without a name; or the day.
    name: str
    #: The dependency that the calls of a model belong to; empty for other lines.
    dependency: str


class CostsOut(FromObject):
    by: str
    since: date
    until: date
    total: SumsOut
    lines: list[CostLineOut]
    #: There are more lines, which are in the total.
    cut: bool
    #: The present month and day, whatever was asked for.
    month: SumsOut
    today: SumsOut
    #: At the end of the month, if each day costs what the last 7 did. Null if no whole day is known.
    projected_micro_usd: int | None

    @staticmethod
    def resolve_by(found: CostsFound) -> str:
        return found.wanted.by

    @staticmethod
    def resolve_since(found: CostsFound) -> date:
        return found.wanted.since

    @staticmethod
    def resolve_until(found: CostsFound) -> date:
        return found.wanted.until

    @staticmethod
    def resolve_total(found: CostsFound) -> Sums:
        return found.costs.total

    @staticmethod
    def resolve_lines(found: CostsFound) -> Sequence[Line]:
        return found.costs.lines

    @staticmethod
    def resolve_cut(found: CostsFound) -> bool:
        return found.costs.cut

    @staticmethod
    def resolve_month(found: CostsFound) -> Sums:
        return found.summary.month

    @staticmethod
    def resolve_today(found: CostsFound) -> Sums:
        return found.summary.today

    @staticmethod
    def resolve_projected_micro_usd(found: CostsFound) -> int | None:
        return found.summary.projected


class InvoiceIn(ReasonIn):
    micro_usd: Annotated[
        int, Field(ge=0, le=MAX_BUDGET, description="The total, in millionths of a US dollar.")
    ]


class InvoiceOut(FromObject):
    account: str
    #: The first day of the month.
    month: date
    #: Micro-USD on the invoice, and in the ledger of the account.
    invoiced: int
    ledger: int
    #: The part of the invoice by which the ledger is above it, or below it if negative: 0.01 is 1 %.
    share: float
    #: The first day of the ledger. If it is later than the first of the month, the share says nothing.
    counted_from: date | None


class InvoicesOut(Schema):
    invoices: list[InvoiceOut]
