"""Accounts at vendors, and budgets. Amounts of money are whole micro-USD: 1 USD is 1,000,000."""

from datetime import datetime
from typing import Annotated, Literal

from ninja import Schema
from pydantic import AfterValidator, Field

from controlplane.api.schemas.edits_in import NewOrVersion, ReasonIn, Slug, Subject, one_line
from fuseboard.contract.budgets import MAX_BUDGET, MAX_BUDGET_NAME, MAX_HOSTS, MAX_POOLS
from fuseboard.contract.words import SLUG_PATTERN

Host = Annotated[str, Field(min_length=1, max_length=253), AfterValidator(one_line)]
BudgetName = Annotated[str, Field(min_length=1, max_length=MAX_BUDGET_NAME, pattern=SLUG_PATTERN)]
Amount = Annotated[int, Field(ge=0, le=MAX_BUDGET, description="In the unit of the measure.")]


class AccountIn(ReasonIn):
    """A value that is left out stays as it is."""

    hosts: Annotated[list[Host] | None, Field(max_length=MAX_HOSTS, description="Hosts of the vendor.")] = (
        None
    )
    pools: Annotated[
        list[Slug] | None, Field(max_length=MAX_POOLS, description="Dependencies that are called with it.")
    ] = None
    expected_version: NewOrVersion = None


class AccountOut(Schema):
    name: str
    hosts: list[str]
    pools: list[str]
    version: int


class BudgetIn(ReasonIn):
    """A value that is left out stays as it is. A new budget needs one owner, ``amount`` and ``period``."""

    account: Annotated[Slug | Literal[""] | None, Field(description="The owner: all pools together.")] = None
    dependency: Annotated[Slug | Literal[""] | None, Field(description="The owner: calls to it.")] = None
    tier: Annotated[Slug | Literal[""] | None, Field(description="The owner: each of its tenants.")] = None
    tenant: Annotated[Subject | Literal[""] | None, Field(description="The owner: its calls.")] = None
    amount: Amount | None = None
    measure: Annotated[Slug | None, Field(description="The cost that is counted; not `calls`.")] = None
    period: Literal["hour", "day", "week", "month"] | None = None
    time_zone: Annotated[str | None, Field(max_length=64)] = None
    instead_of: Annotated[
        BudgetName | Literal[""] | None,
        Field(description="Of a tenant: the budget of its tier that it replaces; empty for none."),
    ] = None
    warn_percent: Annotated[int | None, Field(ge=0, le=100)] = None
    at_100: Annotated[
        Literal["stop", "warn", "degrade"] | None,
        Field(description="The fate of calls when it is spent."),
    ] = None
    expected_version: NewOrVersion = None


class RaiseIn(ReasonIn):
    amount: Amount
    minutes: Annotated[int, Field(ge=1, le=31 * 24 * 60)]
    expected_version: NewOrVersion = None


class BudgetOut(Schema):
    name: str
    account: str
    dependency: str
    tier: str
    tenant: str
    amount: int
    measure: str
    period: str
    time_zone: str
    instead_of: str
    warn_percent: int
    at_100: str
    #: The amount until ``raised_until``, if it is raised.
    raised_to: int | None
    raised_until: datetime | None
    version: int
