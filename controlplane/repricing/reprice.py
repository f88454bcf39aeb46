"""Prices the calls of past days to a model again: the ledger, the budgets and the audit in one transaction.

What is spent of budgets is in Redis, which the worker corrects afterwards, each correction once: see
``controlplane/repair/corrections.py``. The prices of the model are history, and stay.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta

import structlog
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from controlplane.audit.actor import Actor
from controlplane.audit.record import acting, record
from controlplane.errors import find
from controlplane.phrases import usd
from controlplane.policies.conflicts import check_version
from controlplane.policies.document import environment_of
from controlplane.postgres import transaction_lock
from controlplane.repricing.budget_changes import BudgetChange, changed_budgets
from controlplane.repricing.ledger_costs import Costs, Sums, Window, names_in_ledger
from controlplane.spending.fields import NEEDED, check_price, model_fields, plain_price
from controlplane.spending.models import PRICES, Model, Price
from controlplane.usage.models import CORRECTIONS_LOCK, BudgetCorrection
from controlplane.validation import Problems

log = structlog.get_logger(__name__)

#: Days that are priced at once: this month and the last one. Gateways wait meanwhile, so the rows of tenants
#: are bounded too: 50,000 take some seconds.
MAX_DAYS, MAX_ROWS = 62, 50_000
#: Budgets that an entry of the audit lists. Each tenant can have some.
MAX_AUDITED = 100


@dataclass(frozen=True, kw_only=True)
class BudgetSum:
    """The addition to a budget in its present period, in micro-USD; to that of a tier, for all tenants."""

    budget: str
    counters: int
    added: int


@dataclass(frozen=True, kw_only=True)
class Repriced:
    """Sums in micro-USD."""

    model: str
    version: int
    since: date
    until: date
    calls: int
    tokens: int
    before: int
    after: int
    #: Calls of these, at most, that were in a batch, or long, at another price. The ledger knows no more.
    batch_calls: int
    long_calls: int
    #: Budgets that change most come first.
    budgets: tuple[BudgetSum, ...]


@dataclass(frozen=True)
class _Asked:
    model: Model
    costs: Costs
    #: A price of these days had another one for batches; and the fewest tokens of a long call, 0 for none.
    batches: bool
    long_above: int

    def repriced(self, sums: Sums, changes: Iterable[BudgetChange]) -> Repriced:
        added: dict[str, list[int]] = {}
        for change in changes:
            added.setdefault(change.counter.row.name, []).append(change.added)
        budgets = [
            BudgetSum(budget=name, counters=len(each), added=sum(each)) for name, each in added.items()
        ]
        return Repriced(
            model=self.model.name,
            version=self.model.version,
            since=self.costs.window.since,
            until=self.costs.window.until,
            calls=sums.calls,
            tokens=sums.tokens,
            before=sums.before,
            after=sums.after,
            batch_calls=sums.calls if self.batches else 0,
            long_calls=sums.long_calls,
            budgets=tuple(sorted(budgets, key=lambda one: (-abs(one.added), one.budget))),
        )


def preview_repricing(
    *, environment: str, model: str, since: date, until: date, price: Mapping[str, int]
) -> Repriced:
    """Return what ``reprice_calls`` would do now. Raises ``InvalidEdit`` and ``NotFound``."""
    asked = _checked(environment, model, Window(since, until), price, Problems())
    sums = asked.costs.sums(long_above=asked.long_above)
    return asked.repriced(sums, changed_budgets(asked.costs, timezone.now()))


def reprice_calls(
    *,
    environment: str,
    model: str,
    since: date,
    until: date,
    price: Mapping[str, int],
    expected_version: int | None,
    reason: str,
    actor: Actor,
) -> Repriced:
    """Let the calls of whole days in UTC cost what they do by ``price``. Repeated, it changes nothing more.

    Calls that the ledger gets later keep the price of their pod. Raises ``EditError``.
    """
    problems = Problems()
    problems.reason(reason)
    with transaction.atomic():
        acting(actor)
        asked = _checked(
            environment, model, Window(since, until), price, problems, expected_version=expected_version
        )
        costs = asked.costs
        transaction_lock(CORRECTIONS_LOCK, environment)
        # Budgets get the difference to what the rows have now, so no row may change in between.
        costs.lock()
        sums = costs.sums(long_above=asked.long_above)
        changes = changed_budgets(costs, timezone.now())
        costs.write()
        BudgetCorrection.objects.bulk_create([change.row for change in changes], batch_size=2_500)
        done = asked.repriced(sums, changes)
        _audit(environment, done, costs, reason=reason, actor=actor)
    log.warning("ledger.repriced", environment=environment, model=model, actor=actor.name)
    return done


def _checked(
    environment: str,
    model: str,
    window: Window,
    price: Mapping[str, int],
    problems: Problems,
    *,
    expected_version: int | None = None,
) -> _Asked:
    of = environment_of(environment)
    row = find(Model.objects.filter(environment=of).prefetch_related("prices"), "model", name=model)
    today = timezone.now().date()
    oldest = today - timedelta(days=settings.LEDGER_KEPT_DAYS_D)
    if window.since > window.until:
        problems.add("since", "Enter a day that is not after the last one.")
    elif window.days > MAX_DAYS:
        problems.add("since", f"Enter at most {MAX_DAYS} days at once.")
    if window.until > today:
        problems.add("until", "Enter a day that has begun, in UTC.")
    if window.since < oldest:
        problems.add("since", f"Enter a day from {oldest} on: the ledger keeps no older ones.")
    given = dict(price)
    for column in sorted(given.keys() - set(PRICES)):
        problems.add(column, "Past calls have no such price: the ledger does not know which they were.")
    for column in NEEDED:
        if column not in given:
            problems.add(column, "Enter what these calls cost, in micro-USD per million tokens.")
    check_price(problems, {column: value for column, value in given.items() if column in PRICES})
    problems.settle()
    check_version(
        environment=environment,
        target_kind="model",
        target_name=model,
        expected=expected_version,
        now=model_fields(row),
    )
    prices = list(_in_force(row, window))
    longs = [each.long_above for each in prices if each.long_above]
    costs = Costs(
        environment=environment,
        models=names_in_ledger(environment, model, window),
        window=window,
        **plain_price(given),
    )
    if costs.has_more_than(MAX_ROWS):
        problems.add("since", f"Enter fewer days: these have more than {MAX_ROWS:,} rows of tenants.")
    problems.settle()
    return _Asked(row, costs, any(each.batch_percent != 100 for each in prices), min(longs, default=0))


def _in_force(model: Model, window: Window) -> Iterable[Price]:
    """The prices of the model that applied at some time of these days."""
    ends = window.end
    for row in sorted(model.prices.all(), key=lambda row: row.starts_at, reverse=True):
        if row.starts_at < window.end and ends > window.first:
            yield row
        ends = row.starts_at


def _audit(environment: str, done: Repriced, costs: Costs, *, reason: str, actor: Actor) -> None:
    """The entry names no tenant, because it is never deleted."""
    spent = [f"{one.budget} {one.added:+,} micro-USD" for one in done.budgets[:MAX_AUDITED]]
    others = len(done.budgets) - MAX_AUDITED
    record(
        actor=actor,
        action="ledger.repriced",
        target_kind="ledger",
        target_name=done.model,
        before={"cost": usd(done.before, exact=True)},
        after={
            "cost": usd(done.after, exact=True),
            "days": f"{done.since} to {done.until}",
            "calls": f"{done.calls:,}",
            "price": ", ".join(f"{column} {usd(getattr(costs, column), exact=True)}" for column in PRICES),
            "spent": ", ".join(spent) + (f" and {others:,} more" if others > 0 else ""),
        },
        reason=reason,
        environment=environment,
    )
