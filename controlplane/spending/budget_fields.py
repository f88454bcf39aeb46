"""The flat fields of accounts and budgets, what cannot be true of them, and their form in the policy."""

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from controlplane.phrases import amount_words
from controlplane.spending.budget_rows import OWNERS, Account, Budget
from controlplane.validation import Problems
from fuseboard.contract import budgets as contract
from fuseboard.contract.budgets import MAX_BUDGET, MAX_BUDGET_NAME, MAX_BUDGETS, MAX_HOSTS, MAX_POOLS, AtSpent
from fuseboard.contract.words import Period, is_slug

Fields = dict[str, Any]

NEW_ACCOUNT: Fields = {"hosts": [], "pools": []}
NEW_BUDGET: Fields = {
    **dict.fromkeys(OWNERS, ""),
    "measure": contract.MICRO_USD,
    "time_zone": "UTC",
    "instead_of": "",
    "warn_percent": 80,
    "at_100": AtSpent.STOP.value,
    "raised_to": 0,
    "raised_until": "",
}
#: The fields of a budget, in the order in which files and pages have them.
BUDGET_FIELDS = (*OWNERS, "amount", "measure", "period", *list(NEW_BUDGET)[len(OWNERS) + 1 :])
#: The fields of a raise of a budget, as they are without one.
NOT_RAISED: Fields = {"raised_to": 0, "raised_until": ""}
#: The longest time for which a budget is raised.
MAX_RAISED = timedelta(days=31)


def account_fields(row: Account) -> Fields:
    return {"hosts": list(row.hosts), "pools": list(row.pools), "version": row.version}


def budget_fields(row: Budget) -> Fields:
    columns = {field: getattr(row, field) for field in BUDGET_FIELDS}
    columns["raised_to"] = row.raised_to or 0
    columns["raised_until"] = row.raised_until.astimezone(UTC).isoformat() if row.raised_until else ""
    return columns | {"version": row.version}


def account_of(row: Account, budgets: list[contract.Budget]) -> contract.Account:
    return contract.Account(
        name=row.name, hosts=tuple(row.hosts), pools=tuple(row.pools), budgets=tuple(budgets)
    )


def budget_of(row: Budget) -> contract.Budget:
    """The budget as pods know it. A raised amount applies until its end is a revision, as for overrides."""
    return contract.Budget(
        name=row.instead_of or row.name,
        amount=row.applies,
        period=Period(row.period),
        time_zone=row.time_zone,
        measure=row.measure,
        warn_percent=row.warn_percent,
        at_100=row.at_100,
    )


def is_over(fields: Fields | None, at: datetime) -> bool:
    """Whether these are the fields of a budget whose raise is over."""
    until = (fields or {}).get("raised_until")
    return bool(until) and datetime.fromisoformat(str(until)) <= at


def without_ended_raise(fields: Fields, at: datetime) -> Fields:
    """Return the fields of a budget without a raise that is over: no edit brings one back."""
    return fields | NOT_RAISED if is_over(fields, at) else fields


def check_names(problems: Problems, field: str, value: Any) -> None:
    """Check the hosts or the pools of an account."""
    most = MAX_HOSTS if field == "hosts" else MAX_POOLS
    if not isinstance(value, list | tuple):
        problems.add(field, "Enter a list of names; [] for none.")
    elif len(value) > most:
        problems.add(field, f"Use at most {most} of them.")
    elif len({str(name) for name in value}) < len(value):
        problems.add(field, "Each may appear once.")
    else:
        for name in value:
            if field == "pools":
                problems.slug(field, name)
            elif not isinstance(name, str) or not name.strip():
                problems.add(field, "Enter each host as text, such as api.openai.com.")
            else:
                problems.text(field, name, 253)


def check_amount(problems: Problems, field: str, value: Any) -> None:
    problems.whole(field, value, 0, MAX_BUDGET)


def check_period(problems: Problems, field: str, value: Any) -> None:
    problems.choice(field, value, Period)


def check_at_100(problems: Problems, field: str, value: Any) -> None:
    problems.choice(field, value, AtSpent)


def check_instead_of(problems: Problems, field: str, value: Any) -> None:
    if value != "" and not (isinstance(value, str) and is_slug(value) and len(value) <= MAX_BUDGET_NAME):
        problems.add(field, "Enter the name of a budget of the tier; empty for none.")


def check_until(problems: Problems, field: str, value: Any) -> None:
    if value != "":
        problems.moment(field, value)


def wrong_budget(
    name: str, fields: Fields, before: Fields | None, now: datetime
) -> Iterator[tuple[str, str]]:
    """Yield field and message for what does not fit together in one budget."""
    if len(name) > MAX_BUDGET_NAME:
        yield "", f"Use a name of at most {MAX_BUDGET_NAME} characters."
    owners = [kind for kind in OWNERS if fields[kind]]
    if len(owners) != 1:
        yield owners[1] if owners else "account", f"Name one owner: {', '.join(OWNERS[:-1])} or {OWNERS[-1]}."
    for column in ("amount", "period"):
        if column not in fields:
            yield column, "A new budget needs this."
    if fields["measure"] == "calls":
        yield "measure", "A limit counts calls. A budget counts another cost, such as micro_usd."
    if fields["instead_of"] and not fields["tenant"]:
        yield "instead_of", "Only the budget of a tenant can replace one of its tier."
    yield from _wrong_raise(fields, before or {}, now)


def _wrong_raise(fields: Fields, before: Fields, now: datetime) -> Iterator[tuple[str, str]]:
    """A raise that stays as it is may be less than a newer amount: it changes nothing then."""
    to, until = fields["raised_to"], fields["raised_until"]
    if bool(until) != bool(to):
        yield "raised_until", "Say both: how much it is raised to, and until when."
        return
    if not until or all(fields[field] == before.get(field, usual) for field, usual in NOT_RAISED.items()):
        return
    if to <= fields.get("amount", 0):
        amount = amount_words(fields["amount"], fields["measure"])
        yield "raised_to", f"The budget is {amount} already: raise it to more, or change its amount."
    if until != before.get("raised_until") and not now < datetime.fromisoformat(until) <= now + MAX_RAISED:
        yield "raised_until", f"Choose a time within the next {MAX_RAISED.days} days."


def wrong_together(
    state: Mapping[tuple[str, str], Any], changed: Collection[tuple[str, str]] = ()
) -> Iterator[tuple[str, str, str, str]]:
    """Yield kind, name, field and message for what does not fit together in all accounts and budgets.

    Things that are ``changed`` come last: they are wrong, not those that were there before.
    """
    owners: dict[str, str] = {}
    counts: dict[tuple[str, str], int] = {}
    named: dict[tuple[str, str, str], str] = {}
    for kind, name in sorted(state, key=lambda thing: (thing in changed, thing)):
        if not (fields := state[kind, name]):
            continue
        if kind == "account":
            for pool in fields["pools"]:
                if owners.setdefault(pool, name) != name:
                    yield kind, name, "pools", f"{pool} is already a pool of account {owners[pool]}."
        elif kind == "budget":
            owner = next(((each, fields[each]) for each in OWNERS if fields[each]), ("", ""))
            counts[owner] = counts.get(owner, 0) + 1
            if counts[owner] == MAX_BUDGETS + 1:
                yield kind, name, owner[0], f"{owner[1]} has {MAX_BUDGETS} budgets already."
            known = (*owner, fields["instead_of"] or name)
            if named.setdefault(known, name) != name:
                yield kind, name, "instead_of", f"{named[known]} is already that budget of {owner[1]}."
