"""An environment whose calls are in the ledger and in budgets, and what is in both."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pgtrigger
import psycopg
import redis
from django.db import connection
from django.utils import timezone

from controlplane.editing import edits
from controlplane.ledger.models import UsageDay, UsageHour, UsageTotal, Whose
from controlplane.ledger.rows import AMOUNTS, DAYS, HOURS, TOTALS
from controlplane.policies.models import Revision
from controlplane.repair.budgets import restore_all
from controlplane.repricing.reprice import Repriced, reprice_calls
from controlplane.spending.models import Budget
from controlplane.usage.budget_counters import shared_counters, tier_counters
from controlplane.usage.models import CORRECTIONS_LOCK
from fuseboard.contract import keys
from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.words import Period
from tests.controlplane.ledger.ledger_rows import today
from tests.controlplane.web_process import database_url
from tests.people import ADA

WHY: dict[str, Any] = {"environment": "production", "reason": "The price list was misread", "actor": ADA}
MILLION = 1_000_000
MODEL, POOL = "gpt-5.2", "openai"
#: 2 and 10 USD per million tokens; the calls below were counted by half of it.
RIGHT = {"input": 2_000_000, "cached": 200_000, "output": 10_000_000}


def set_up(*, period: str = "month") -> None:
    """A model, an account with a budget and a tier with one. All is older than the longest period, so the
    budgets have all calls of theirs.
    """
    edits.set_model(model=MODEL, pool=POOL, expected_version=0, **WHY)
    edits.set_account(account="main", pools=[POOL], hosts=[], expected_version=0, **WHY)
    edits.create_tenant(tenant="acme/shop", tier="pro", parent="acme", **WHY)
    revisions_are_older()
    for name, owner in (("main-budget", {"account": "main"}), ("pro-budget", {"tier": "pro"})):
        Budget.objects.create(environment_id="production", name=name, amount=10**12, period=period, **owner)


def revisions_are_older() -> None:
    with pgtrigger.ignore("policies.Revision:revision_stays"):
        Revision.objects.update(at=timezone.now() - timedelta(days=100))


def counter_keys() -> dict[str, str]:
    """Owner -> the key of its counter."""
    tenants = tier_counters("production", ["acme", "acme/shop"])
    shared = {one.row.account or one.row.dependency: one.key for one in shared_counters("production")}
    return shared | {one.tenant: one.key for one in tenants}


def heartbeat(
    day: date,
    tenant: str,
    *,
    service: str = "shop",
    model: str = MODEL,
    dependency: str = POOL,
    **numbers: int,
) -> None:
    """As gateways write what pods used, in one transaction: calls of the first hour of a day."""
    add(rows_of(day, tenant, service=service, model=model, dependency=dependency, **numbers))


def rows_of(day: date, tenant: str, *, service: str, model: str, dependency: str, **numbers: int) -> Any:
    amounts = {**dict.fromkeys(AMOUNTS, 0), "calls": 1, **numbers}
    what = {"environment": "production", "model": model, "dependency": dependency, **amounts}
    at = datetime.combine(day, time.min, UTC).isoformat()
    whole = {"environment": "production", "day": day.isoformat(), **amounts}
    hours = [
        {"whose": Whose.SERVICE, "at": at, "name": service, **what},
        {"whose": Whose.TENANT, "at": at, "name": tenant, **what},
    ]
    return (HOURS, hours), (DAYS, [{"day": day.isoformat(), "tenant": tenant, **what}]), (TOTALS, [whole])


def add(tables: Iterable[Any]) -> None:
    from django.db import transaction

    with transaction.atomic(), connection.cursor() as cursor:
        for table, rows in tables:
            cursor.execute(table.add, [json.dumps(rows)])


def began_us(period: str = "month") -> int:
    return period_around(int(datetime.now(UTC).timestamp() * MILLION), Period(period), "UTC")[0]


def spend(limits: redis.Redis, owner: str, amount: int, *, period: str = "month") -> None:
    """As pods spend, and look at what is spent."""
    key, began = counter_keys()[owner], began_us(period)
    limits.set(key, f"{began} {spent(limits, owner) + amount}")
    if not limits.hexists(keys.budget_mark(key), str(began)):
        now = limits.time()
        limits.hset(keys.budget_mark(key), str(began), f"{now[0] * MILLION + now[1]} 0")


def spent(limits: redis.Redis, owner: str) -> int:
    text = limits.get(counter_keys()[owner])
    return int(text.split()[1]) if text else 0


def worker() -> None:
    """What the worker does every 10 s."""
    restore_all(["production"], datetime.now(UTC))


def books() -> list[dict[str, int]]:
    """The sums of the four books of the ledger, which must be equal but for what rounding up adds."""
    rows: tuple[Any, ...] = (
        UsageHour.objects.filter(whose=Whose.SERVICE),
        UsageHour.objects.filter(whose=Whose.TENANT),
        UsageDay.objects.all(),
        UsageTotal.objects.all(),
    )
    return [{name: sum(row[name] for row in each.values(name)) for name in AMOUNTS} for each in rows]


def costs() -> list[int]:
    return [book["micro_usd"] for book in books()]


def put_calls_of_today() -> None:
    """What acme and its shop used today cost 1.50 USD."""
    set_up(period="day")
    heartbeat(today(), "acme", fresh=MILLION, micro_usd=1_000_000)
    heartbeat(today(), "acme/shop", output=100_000, micro_usd=500_000)
    heartbeat(today(), "acme", model="another", micro_usd=77)


def asked(**more: Any) -> dict[str, Any]:
    return {
        "environment": "production",
        "model": MODEL,
        "since": today(),
        "until": today(),
        "price": RIGHT,
    } | more


def again(**more: Any) -> Repriced:
    return reprice_calls(**asked(**WHY, expected_version=None, **more))


def someone_waits() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


@contextmanager
def someone_corrects() -> Iterator[None]:
    """Another session has the lock of corrections, and this one waits for it for 0.1 s."""
    with psycopg.connect(database_url()) as other:
        lock = "SELECT pg_advisory_xact_lock(hashtext(%s), hashtext('production'))"
        other.execute(lock, [CORRECTIONS_LOCK])
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '100ms'")
        try:
            yield
        finally:
            # The next one has the usual time.
            connection.close()
