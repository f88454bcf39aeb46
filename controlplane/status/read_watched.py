"""Reads the figures of ``controlplane.status.watched``. Blocking: call it in a thread."""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from statistics import median
from threading import Lock
from typing import Any, Literal, TypeVar

import structlog
from cryptography import x509
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from controlplane import tls
from controlplane.accounts.models import AgentToken, ApiToken
from controlplane.accounts.second_factors import unreadable_second_factors
from controlplane.encryption import unreadable_urls
from controlplane.fleet.failed_calls import recent_kinds
from controlplane.fleet.live import FleetFigures
from controlplane.ledger.invoices import (
    ALERTING_MONTHS,
    Drift,
    Entered,
    compare,
    months_to_enter,
    read_entered,
)
from controlplane.ledger.reading import read_jump, read_spent_today, read_unpriced
from controlplane.refusals.callers import RefusedCaller, most_refused
from controlplane.same_fields import made_from
from controlplane.series.recent import recent_calls
from controlplane.series.tenant_hours import read_hourly_rates
from controlplane.spending.models import Price
from controlplane.status.read_vendor_limits import read_vendor_limits
from controlplane.status.watched import (
    Blind,
    Expiry,
    Source,
    Spent,
    Unreadable,
    VendorAnswers,
    Watched,
    spent_key,
)
from controlplane.usage.budgets import budgets
from fuseboard.contract.words import DEFAULT_ENVIRONMENT

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: A process reads them this often, however many pages it serves.
READ_AGAIN_S = 30.0
#: Budgets that are kept: those that are spent most.
MAX_SPENT = 200
#: The usual hour of a tenant is the median of this time.
USUAL_H = 7 * 24
#: Hours of a tenant below which nothing is usual.
_MIN_HOURS = 12
_USUAL_AGAIN_S = 600.0
#: The ledger of the months of invoices is summed again after this time: late calls and new prices change it.
_COMPARED_AGAIN_S = 600.0
#: Refusals of one caller are added up over this time.
_REFUSED_FOR = timedelta(minutes=10)
#: A token that has expired is named for this time.
_EXPIRED_FOR = timedelta(days=1)
#: Copies of ``fuseboard.calling.vendor_codes``, which a control plane does not import: a test compares both.
TOO_MANY = frozenset(
    (
        *("HTTP 429", "rate_limit_exceeded", "rate_limit_error", "RESOURCE_EXHAUSTED"),
        *("ThrottlingException", "Throttling", "TooManyRequestsException"),
    )
)
REFUSED_ACCOUNT = frozenset(
    (
        *("HTTP 401", "HTTP 402", "HTTP 403", "insufficient_quota", "billing_hard_limit_reached"),
        *("invalid_api_key", "account_deactivated", "authentication_error", "permission_error"),
        *("billing_error", "billing_not_active"),
        *("UNAUTHENTICATED", "PERMISSION_DENIED", "AccessDeniedException"),
    )
)


def _callers(environment: str) -> tuple[RefusedCaller, ...]:
    now = datetime.now(UTC)
    return most_refused(environment, now - _REFUSED_FOR, now)


def _spending(environment: str) -> dict[str, Any]:
    """The figures of the ledger, as fields of ``Watched``."""
    now = datetime.now(UTC)
    return {
        "spent_today": read_spent_today(environment, now),
        # An environment without any price has chosen to count no money.
        "unpriced": read_unpriced(environment, now) if _prices(environment) else (),
        "spend_jump": read_jump(environment, now),
    }


def _prices(environment: str) -> bool:
    return Price.objects.filter(model__environment=environment).exists()


def _spending_of(before: Watched) -> dict[str, Any]:
    return {name: getattr(before, name) for name in ("spent_today", "unpriced", "spend_jump")}


class _Reader:
    """The last reading of this process, by environment."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._read: dict[str, tuple[float, Watched]] = {}
        #: Environment and tenant -> when it was read, and the rate.
        self._usual: dict[tuple[str, str], tuple[float, float]] = {}
        #: Environment -> when its invoices were compared, which ones, and the result.
        self._compared: dict[str, tuple[float, tuple[Entered, ...], tuple[Drift, ...]]] = {}
        #: Environment -> tenants whose budgets the first reading needs, busy or not.
        self._first: dict[str, frozenset[str]] = {}

    def of(self, environment: str, figures: FleetFigures) -> Watched:
        with self._lock:
            at, before = self._read.get(environment, (float("-inf"), Watched()))
            if time.monotonic() - at < READ_AGAIN_S:
                return before
            tenants = [one.tenant for one in figures.tenants]
            seen, first = _Blindness(before.blind), self._first.get(environment, frozenset())
            kept: tuple[tuple[Spent, ...], _Unread | None] = before.spent, None
            spent, unread = seen.kept(
                "budgets", lambda: _spent(environment, figures, before.spent, first), kept
            )
            if unread:
                seen.note("budgets", unread.because, unread.only)
            watched = Watched(
                usual_per_s=seen.kept(
                    "series", lambda: self._usual_of(environment, tenants), before.usual_per_s
                ),
                vendors=seen.kept("series", lambda: _vendors(environment, time.time()), before.vendors),
                spent=spent,
                expiring=seen.kept("tokens", lambda: tuple(_expiring(environment)), before.expiring),
                unreadable=seen.kept("tokens", lambda: read_unreadable(environment), before.unreadable),
                callers=seen.kept("series", lambda: _callers(environment), before.callers),
                **seen.kept("series", lambda: _spending(environment), _spending_of(before)),
                drifts=seen.kept("series", lambda: self._drifts_of(environment), before.drifts),
                **seen.kept(
                    "series",
                    lambda: read_vendor_limits(environment),
                    {name: getattr(before, name) for name in ("followed", "odd_pods")},
                ),
                blind=tuple(seen.blind.values()),
            )
            if "budgets" not in seen.blind:
                self._first.pop(environment, None)
            self._read[environment] = (time.monotonic(), watched)
            return watched

    def knows(self, environment: str) -> bool:
        with self._lock:
            return environment in self._read

    def read_first(self, environment: str, tenants: Iterable[str]) -> None:
        """After a start: tenants with an open alert may have spent a quota of their tier, and stopped."""
        with self._lock:
            self._first[environment] = frozenset(tenants)

    def forget(self) -> None:
        """Read again at once: after a change that must be seen, and in tests."""
        with self._lock:
            self._read.clear()
            self._usual.clear()
            self._compared.clear()
            self._first.clear()

    def _usual_of(self, environment: str, tenants: Collection[str]) -> dict[str, float]:
        now, known = time.monotonic(), self._usual
        for key in [key for key, (at, _) in known.items() if now - at >= _USUAL_AGAIN_S]:
            del known[key]
        unknown = [tenant for tenant in tenants if (environment, tenant) not in known]
        for tenant, per_s in _usual(environment, unknown).items():
            known[environment, tenant] = now, per_s
        usual = {tenant: known[environment, tenant][1] for tenant in tenants}
        return {tenant: per_s for tenant, per_s in usual.items() if per_s > 0}

    def _drifts_of(self, environment: str) -> tuple[Drift, ...]:
        """Invoices and accounts are read each time, so that a correction counts at once."""
        entered = read_entered(environment, months=months_to_enter()[:ALERTING_MONTHS])
        at, before, drifts = self._compared.get(environment, (float("-inf"), (), ()))
        if entered != before or time.monotonic() - at >= _COMPARED_AGAIN_S:
            at, drifts = time.monotonic(), compare(environment, entered)
            self._compared[environment] = (at, entered, drifts)
        return drifts


class _NoAnswer(Exception):
    """A source did not answer."""


@dataclass(frozen=True)
class _Unread:
    """The parts that a source left out of its answer."""

    because: str
    only: frozenset[str]


class _Blindness:
    """Notes which sources cannot be read in one reading. Rules that need them then conclude nothing."""

    def __init__(self, before: tuple[Blind, ...]) -> None:
        self._since = {one.source: one.since for one in before}
        self.blind: dict[Source, Blind] = {}

    def kept(self, source: Source, read: Callable[[], T], before: T) -> T:
        """The present reading, or the one before if that fails: other alerts are about Redis and pods.

        A savepoint, because a statement that is too slow must not end the transaction of an evaluation.
        """
        try:
            with transaction.atomic():
                return read()
        except _NoAnswer as error:
            because = str(error)
            log.warning("status.not_watched", source=source, error=because)
        except (DatabaseError, ImproperlyConfigured, OSError, ValueError) as error:
            # Without its text, which can have values of rows.
            because = f"a reading ended with {type(error).__name__}; the log has more"
            log.exception("status.not_watched", source=source)
        self.note(source, because)
        return before

    def note(self, source: Source, because: str, only: frozenset[str] = frozenset()) -> None:
        since = self._since.get(source, time.time())
        self.blind[source] = Blind(source=source, since=since, because=because, only=only)


_reader = _Reader()
read_watched, forget = _reader.of, _reader.forget
knows, read_first = _reader.knows, _reader.read_first


def _usual(environment: str, tenants: Collection[str]) -> dict[str, float]:
    """Tenant -> requests per second in the median of its whole hours; 0 if too few are known."""
    if not tenants:
        return {}
    now = datetime.now(UTC)
    rates = read_hourly_rates(environment, tenants, start=now - timedelta(hours=USUAL_H), end=now)
    return {tenant: median(hours) if len(hours) >= _MIN_HOURS else 0.0 for tenant, hours in rates.items()}


def _vendors(environment: str, now: float) -> dict[str, VendorAnswers]:
    found = {}
    since, kinds_of = recent_kinds(environment, now)
    calls = recent_calls(environment, since) if kinds_of else {}
    for dependency, kinds in kinds_of.items():
        too_many = sum(number for kind, number in kinds.items() if kind in TOO_MANY)
        refused = sum(number for kind, number in kinds.items() if kind in REFUSED_ACCOUNT)
        if too_many or refused:
            found[dependency] = VendorAnswers(
                calls=max(calls.get(dependency, 0), too_many + refused),
                too_many=too_many,
                refused_account=refused,
                minutes=max(1, round((now - since) / 60)),
            )
    return found


def _spent(
    environment: str, figures: FleetFigures, before: tuple[Spent, ...], first: Collection[str]
) -> tuple[tuple[Spent, ...], _Unread | None]:
    """Raises ``_NoAnswer`` if Redis does not answer: what was spent before did not become less.

    Each primary of a Cluster has some of the numbers, and the others can be read without it.

    A tenant that stops after it spent its quota is not busy any more, so those of before are read again.
    """
    now = time.time()
    earlier = {(one.tenant, one.dependency, one.name): one for one in before if one.ends > now}
    busy = {(rule.tenant, rule.rule) for rule in figures.rules if rule.tenant}
    busy |= {(tenant, name) for tenant, _, name in earlier if tenant}
    busy |= {(tenant, "") for tenant in first}
    found = budgets(environment, busy, now=now)
    if not found.known:
        raise _NoAnswer("Redis does not answer")
    rows = [
        earlier.get((row.tenant, row.dependency, row.name)) if row.spent is None else made_from(Spent, row)
        for row in found.rows
    ]
    known = [one for one in rows if one is not None]
    unread = frozenset(
        spent_key(row.tenant, row.dependency, row.name) for row in found.rows if row.spent is None
    )
    because = f"Redis gives no answer, or an error, for {len(unread)} of {len(found.rows)}"
    # The nearest to their warning are kept: a budget can warn when little is spent.
    known.sort(key=lambda one: -one.share * 100 / (one.warn_percent or 100))
    spent = tuple(sorted(known[:MAX_SPENT], key=lambda one: -one.share))
    return spent, _Unread(because, unread) if unread else None


def _expiring(environment: str) -> Iterable[Expiry]:
    """The next of each kind."""
    main = environment == DEFAULT_ENVIRONMENT
    agent = AgentToken.objects.filter(environment=environment)
    api = ApiToken.objects.filter(environment=environment)
    if main:
        # The main environment names the tokens of all environments too.
        api |= ApiToken.objects.filter(environment="")
    kinds: tuple[tuple[Literal["agent token", "API token"], QuerySet[Any]], ...] = (
        ("agent token", agent),
        ("API token", api),
    )
    for kind, rows in kinds:
        valid = rows.filter(revoked_at__isnull=True, expires_at__gt=Now() - _EXPIRED_FOR)
        row = valid.order_by("expires_at").values_list("name", "expires_at").first()
        if row is not None:
            yield Expiry(kind=kind, name=row[0], at=row[1].timestamp())
    file = tls.uvicorn_options().get("ssl_certfile")
    if main and file is not None:
        written = Path(file).stat().st_mtime_ns
        yield Expiry(kind="certificate", name=Path(file).name, at=certificate_expires_at(file, written))


def read_unreadable(environment: str) -> Unreadable:
    people = len(unreadable_second_factors()) if environment == DEFAULT_ENVIRONMENT else 0
    return Unreadable(receivers=unreadable_urls(environment), people=people)


@cache
def certificate_expires_at(file: str, _written: int) -> float:
    """When a certificate ends; read again when its file was written again."""
    certificate = x509.load_pem_x509_certificate(Path(file).read_bytes())
    return certificate.not_valid_after_utc.timestamp()
