"""``model``: models of language, their aliases, and their prices by date."""

import argparse
from typing import Any

from msgspec import Struct

from fuseboard.cli.ctl.client import Client, part
from fuseboard.cli.ctl.documents import NewRevision
from fuseboard.cli.ctl.output import say, say_json, say_result, say_revision, table
from fuseboard.contract.money import usd

#: The options of a price, in micro-USD per million tokens, and what each is of.
AMOUNTS = {
    "input": "input that the model reads afresh",
    "cached": "input that is read from the vendor's cache",
    "written": "input that is written to the vendor's cache",
    "output": "output",
    "long_input": "input of a long call",
    "long_cached": "input of a long call that is read from the cache",
    "long_written": "input of a long call that is written to the cache",
    "long_output": "output of a long call",
}
#: The options of a price of past calls: the ledger does not know which of these were long.
PAST = ("input", "cached", "written", "output")
#: Budgets of a re-pricing that are printed: each tenant can have some.
SHOWN = 100
#: The other options of a price.
NUMBERS = {
    "batch_percent": "what a call in a batch costs, in percent",
    "long_above": "calls with more tokens of input than this cost the long prices",
}


class Price(Struct, frozen=True):
    starts_at: str
    applies: bool
    input: int
    cached: int
    written: int
    output: int
    batch_percent: int
    long_above: int
    long_input: int
    long_cached: int
    long_written: int
    long_output: int


class Model(Struct, frozen=True):
    name: str
    aliases: list[str]
    pool: str
    prices: list[Price]
    version: int


class BudgetSum(Struct, frozen=True):
    budget: str
    counters: int
    added: int


class Repriced(Struct, frozen=True):
    calls: int
    tokens: int
    before: int
    after: int
    batch_calls: int
    long_calls: int
    budgets: list[BudgetSum]
    version: int


def listing(client: Client, given: argparse.Namespace) -> None:
    found = client.get("models", list[Model])
    if given.json:
        say_json(found)
        return
    rows = [(row.name, row.pool or "by host", _present(row), ", ".join(row.aliases)) for row in found]
    table(rows, heads=("model", "pool", "input / output per million tokens", "aliases"))


def show(client: Client, given: argparse.Namespace) -> None:
    model = client.get(f"models/{part(given.model)}", Model)
    if given.json:
        say_json(model)
        return
    say(f"{model.name}: pool {model.pool or 'by host'}, version {model.version}")
    say(f"aliases: {', '.join(model.aliases) or 'none'}")
    rows = [(price.starts_at, *_amounts(price), "applies" if price.applies else "") for price in model.prices]
    table(rows, heads=("from", "input", "cached", "written", "output", ""))


def set_model(client: Client, given: argparse.Namespace) -> None:
    """Options that are not given keep their values."""
    body: dict[str, Any] = {"reason": given.reason}
    if given.alias is not None:
        body["aliases"] = [alias for alias in given.alias if alias]
    if given.pool is not None:
        body["pool"] = given.pool
    known = {row.name: row.version for row in client.get("models", list[Model])}
    path = f"models/{part(given.model)}"
    made = client.write("PUT", path, NewRevision, body, version=known.get(given.model, 0))
    say_result(given, made, f"Model {given.model} is saved as revision {made.revision}.")


def set_price(client: Client, given: argparse.Namespace) -> None:
    values = {name: getattr(given, name) for name in (*AMOUNTS, *NUMBERS)}
    body = {name: value for name, value in values.items() if value is not None} | {"reason": given.reason}
    path = f"models/{part(given.model)}"
    version = client.get(path, Model).version
    made = client.write("PUT", f"{path}/prices/{part(given.start)}", NewRevision, body, version=version)
    say_result(given, made, f"The price of {given.model} is saved as revision {made.revision}.")


def add_reprice_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model")
    parser.add_argument("since", help="the first day in UTC, such as 2026-01-31")
    parser.add_argument("until", help="the last day in UTC")
    for name in PAST:
        needed = name in ("input", "output")
        says = f"micro-USD per million tokens of {AMOUNTS[name]}"
        parser.add_argument(f"--{name}", type=int, required=needed, help=says)
    parser.add_argument("--dry-run", action="store_true", help="only print what would change")


def reprice(client: Client, given: argparse.Namespace) -> None:
    """Price past calls again, on the version of the model that the preview has."""
    names = ("since", "until", *PAST)
    body = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    path = f"models/{part(given.model)}/reprice"
    planned = client.write("POST", f"{path}/preview", Repriced, body)
    if given.dry_run:
        if given.json:
            say_json(planned)
        else:
            _say_repriced(planned, "would cost")
        return
    done = client.write("POST", path, Repriced, body | {"reason": given.reason}, version=planned.version)
    if given.json:
        say_json(done)
    else:
        _say_repriced(done, "cost")


def _say_repriced(found: Repriced, verb: str) -> None:
    say(
        f"{found.calls:,} calls with {found.tokens:,} tokens {verb} {usd(found.after, exact=True)} instead of"
        f" {usd(found.before, exact=True)}."
    )
    for calls, what in ((found.batch_calls, "in a batch"), (found.long_calls, "long")):
        if calls:
            say(f"At most {calls:,} of them were {what}. The ledger does not know which: all get this price.")
    if not found.calls:
        say("There is nothing to re-price in these days.")
    for one in found.budgets[:SHOWN]:
        say(f"Budget {one.budget}: {_more(one.added)} is spent in its present period.")
    if others := found.budgets[SHOWN:]:
        say(f"{len(others):,} other budgets: {_more(sum(one.added for one in others))}. --json prints all.")


def _more(added: int) -> str:
    return f"{usd(abs(added), exact=True)} {'more' if added > 0 else 'less'}"


def remove_price(client: Client, given: argparse.Namespace) -> None:
    path = f"models/{part(given.model)}"
    version = client.get(path, Model).version
    made = client.write(
        "DELETE", f"{path}/prices/{part(given.start)}", NewRevision, version=version, reason=given.reason
    )
    say_revision(given, made, f"The price of {given.model} from {given.start} is removed")


def remove(client: Client, given: argparse.Namespace) -> None:
    path = f"models/{part(given.model)}"
    version = client.get(path, Model).version
    made = client.write("DELETE", path, NewRevision, version=version, reason=given.reason)
    say_revision(given, made, f"Model {given.model} is removed")


def _present(model: Model) -> str:
    price = next((price for price in model.prices if price.applies), None)
    return f"{usd(price.input, exact=True)} / {usd(price.output, exact=True)}" if price else "no price"


def _amounts(price: Price) -> tuple[str, ...]:
    amounts = (price.input, price.cached, price.written, price.output)
    return tuple(usd(amount, exact=True) for amount in amounts)
