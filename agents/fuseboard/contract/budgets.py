"""Accounts at vendors, and budgets: the cost that may be spent in a calendar period.

Agents before this module ignore both: they enforce no budget.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from fuseboard.contract.words import SLUG_PATTERN, Period, Slug

#: The largest whole number that Lua, JSON and Postgres all keep exactly: 9 billion USD in micro-USD.
MAX_BUDGET = 2**53 - 1

#: The longest name of a budget. In decisions and counters it has a prefix.
MAX_BUDGET_NAME = 40
BudgetName = Annotated[
    str, Meta(min_length=1, max_length=MAX_BUDGET_NAME, pattern=SLUG_PATTERN.replace("$", r"\Z"))
]

#: The measure of money: whole millionths of a US dollar.
MICRO_USD = "micro_usd"

MAX_BUDGETS = 20
MAX_HOSTS = 20
MAX_POOLS = 100


class AtSpent(StrEnum):
    """The fate of calls when a budget is spent."""

    #: They are refused until the period ends.
    STOP = "stop"
    #: They pass, and count.
    WARN = "warn"
    #: They pass, and their decisions are ``degraded``: the caller may choose something cheaper.
    DEGRADE = "degrade"


class Budget(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """At most ``amount`` of a cost per calendar ``period``."""

    name: BudgetName
    amount: Annotated[int, Meta(ge=0, le=MAX_BUDGET)]
    period: Period
    #: An IANA time zone, which decides when the period begins.
    time_zone: Annotated[str, Meta(max_length=64)] = "UTC"
    #: The cost that is counted. Not ``calls``: a limit counts these.
    measure: Slug = MICRO_USD
    #: Warn when this much of it is spent; 0 for never.
    warn_percent: Annotated[int, Meta(ge=0, le=100)] = 80
    #: A word of ``AtSpent``. A plain text, because an agent that does not know a word must not refuse the
    #: whole policy: it stops the calls.
    at_100: Annotated[str, Meta(max_length=32)] = AtSpent.STOP.value


Budgets = Annotated[tuple[Budget, ...], Meta(max_length=MAX_BUDGETS)]


class Account(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An account at a vendor: its key and its bill. Its pools are dependencies."""

    name: Slug
    hosts: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=253)], ...], Meta(max_length=MAX_HOSTS)
    ] = ()
    #: The dependencies that are called with this account. No other account has one of them.
    pools: Annotated[tuple[Slug, ...], Meta(max_length=MAX_POOLS)] = ()
    budgets: Budgets = ()
