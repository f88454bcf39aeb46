"""``account`` and ``budget``: accounts at vendors, and what may be spent in a calendar period."""

import argparse
from typing import Any

from msgspec import Struct

from fuseboard.cli.ctl.client import Client, part
from fuseboard.cli.ctl.counters import Cleared, say_cleared
from fuseboard.cli.ctl.documents import NewRevision
from fuseboard.cli.ctl.output import say_json, say_result, say_revision, table
from fuseboard.contract.budgets import MICRO_USD
from fuseboard.contract.money import usd

#: The options of a budget that are text.
OWNERS = {
    "account": "all pools of an account together",
    "dependency": "all calls to a dependency",
    "tier": "each tenant of a tier",
    "tenant": "one tenant",
}
TEXTS = {
    "measure": "the cost that is counted; by default micro_usd",
    "time_zone": "the time zone whose calendar counts; by default UTC",
    "instead_of": "of a tenant: the budget of its tier that it replaces",
}


class Account(Struct, frozen=True):
    name: str
    hosts: list[str]
    pools: list[str]
    version: int


class Budget(Struct, frozen=True):
    name: str
    account: str
    dependency: str
    tier: str
    tenant: str
    amount: int
    measure: str
    period: str
    warn_percent: int
    at_100: str
    version: int
    raised_to: int | None = None
    raised_until: str | None = None

    @property
    def owner(self) -> str:
        return next(f"{kind} {getattr(self, kind)}" for kind in OWNERS if getattr(self, kind))


def list_accounts(client: Client, given: argparse.Namespace) -> None:
    found = client.get("accounts", list[Account])
    if given.json:
        say_json(found)
        return
    rows = [(row.name, ", ".join(row.pools), ", ".join(row.hosts)) for row in found]
    table(rows, heads=("account", "pools", "hosts"))


def set_account(client: Client, given: argparse.Namespace) -> None:
    """Options that are not given keep their values."""
    body: dict[str, Any] = {"reason": given.reason}
    if given.pool is not None:
        body["pools"] = [name for name in given.pool if name]
    if given.host is not None:
        body["hosts"] = [name for name in given.host if name]
    known = {row.name: row.version for row in client.get("accounts", list[Account])}
    path = f"accounts/{part(given.account)}"
    made = client.write("PUT", path, NewRevision, body, version=known.get(given.account, 0))
    say_result(given, made, f"Account {given.account} is saved as revision {made.revision}.")


def remove_account(client: Client, given: argparse.Namespace) -> None:
    path = f"accounts/{part(given.account)}"
    version = client.get(path, Account).version
    made = client.write("DELETE", path, NewRevision, version=version, reason=given.reason)
    say_revision(given, made, f"Account {given.account} is removed")


def list_budgets(client: Client, given: argparse.Namespace) -> None:
    found = client.get("budgets", list[Budget])
    if given.json:
        say_json(found)
        return
    rows = [(row.name, row.owner, _amount(row), row.period, row.at_100, _raised(row)) for row in found]
    table(rows, heads=("budget", "of", "amount", "per", "when spent", "raised"))


def set_budget(client: Client, given: argparse.Namespace) -> None:
    """Options that are not given keep their values."""
    names = (*OWNERS, *TEXTS, "amount", "period", "warn_percent", "at_100")
    body = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    known = {row.name: row.version for row in client.get("budgets", list[Budget])}
    path = f"budgets/{part(given.budget)}"
    body["reason"] = given.reason
    made = client.write("PUT", path, NewRevision, body, version=known.get(given.budget, 0))
    say_result(given, made, f"Budget {given.budget} is saved as revision {made.revision}.")


def raise_budget(client: Client, given: argparse.Namespace) -> None:
    path = f"budgets/{part(given.budget)}"
    version = client.get(path, Budget).version
    body = {"amount": given.amount, "minutes": given.minutes, "reason": given.reason}
    made = client.write("POST", f"{path}/raise", NewRevision, body, version=version)
    say_result(
        given, made, f"Budget {given.budget} is raised for {given.minutes} min, as revision {made.revision}."
    )


def clear_budget(client: Client, given: argparse.Namespace) -> None:
    body = {"budget": given.budget, "tenant": given.tenant, "reason": given.reason}
    say_cleared(given, client.write("POST", "counters/clear", Cleared, body), given.budget)


def remove_budget(client: Client, given: argparse.Namespace) -> None:
    path = f"budgets/{part(given.budget)}"
    version = client.get(path, Budget).version
    made = client.write("DELETE", path, NewRevision, version=version, reason=given.reason)
    say_revision(given, made, f"Budget {given.budget} is removed")


def _amount(budget: Budget, amount: int | None = None) -> str:
    amount = budget.amount if amount is None else amount
    if budget.measure == MICRO_USD:
        return usd(amount, exact=True)
    return f"{amount:,} {budget.measure}"


def _raised(budget: Budget) -> str:
    return (
        f"to {_amount(budget, budget.raised_to)} until {budget.raised_until}" if budget.raised_until else ""
    )
