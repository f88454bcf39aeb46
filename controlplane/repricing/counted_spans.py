"""The times in which calls of a pool or a tenant counted in a budget that exists now.

A pool comes to an account, and a tenant to another tier or parent, by a form, an import or a rollback. Each
is a revision, so these are read.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from controlplane.policies.document import environment_of
from controlplane.policies.models import Change, Tenant
from controlplane.spending.budget_rows import Account
from controlplane.usage.budget_counters import BudgetCounter

_EVER = datetime.min.replace(tzinfo=UTC)
_STILL = datetime.max.replace(tzinfo=UTC)


class Span(NamedTuple):
    """The calls of a pool or a tenant in some time; its end is not included."""

    name: str
    began: datetime
    ended: datetime

    def cut(self, began: datetime, ended: datetime) -> "Span":
        return Span(self.name, max(self.began, began), min(self.ended, ended))

    @property
    def is_empty(self) -> bool:
        return self.began >= self.ended


@dataclass(frozen=True)
class _State:
    """A thing, from a time on."""

    began: datetime
    ended: datetime
    #: Whether a pool is that of an account; the tier or the parent of a tenant.
    what: Any


class PoolSpans:
    """When the calls of pools were those of accounts."""

    def __init__(self, environment: str, since: datetime) -> None:
        accounts = dict(Account.objects.filter(environment=environment).values_list("name", "pools"))
        changes = _changes(environment, "account", since, accounts, "before__pools")
        self._spans: dict[str, list[Span]] = {}
        for account, pools in accounts.items():
            before = [(at, was or []) for at, was in changes.get(account, [])]
            # Each pool by itself: one that stays while others come and go has one span.
            self._spans[account] = [
                Span(pool, state.began, state.ended)
                for pool in sorted({*pools, *(pool for _, was in before for pool in was)})
                for state in _states(pool in pools, [(at, pool in was) for at, was in before])
                if state.what
            ]

    def of(self, counter: BudgetCounter) -> list[Span]:
        row = counter.row
        if not row.account:
            return [Span(row.dependency, _EVER, _STILL)]
        return self._spans.get(row.account, [])


class TenantSpans:
    """When the calls of tenants were those of a tenant: its own, and of the tenants below it at that time."""

    def __init__(self, environment: str, since: datetime, callers: Iterable[str], now: datetime) -> None:
        self._environment, self._since, self._now = environment, since, now
        self._default = environment_of(environment).default_tier.name
        self._tiers: dict[str, list[_State]] = {}
        self._parents: dict[str, list[_State]] = {}
        known = set(callers)
        self._read(known)
        #: Tenant -> spans of calls, each with the topmost tenant at that time.
        self._below: dict[str, list[tuple[Span, str]]] = {}
        for caller in known:
            for chain, began, ended in self._chains(caller, _EVER, _STILL):
                for tenant in chain:
                    self._add(tenant, Span(caller, began, ended), topmost=chain[-1])

    @property
    def tenants(self) -> list[str]:
        """The callers, and all that were above them."""
        return list(self._below)

    def of(self, counter: BudgetCounter) -> Iterator[Span]:
        """The tenant's own tier decides. Below another topmost tenant, it had another counter."""
        tenant = counter.tenant
        states = self._tiers.get(tenant, [])
        # A budget of its own applies in each tier.
        in_tier = [state for state in states if counter.row.tenant or state.what == counter.tier]
        topmost = next((chain[-1] for chain, *_ in self._chains(tenant, self._now, _STILL)), tenant)
        for span, above in self._below.get(tenant, []):
            if above == topmost:
                for state in in_tier:
                    part = span.cut(state.began, state.ended)
                    if not part.is_empty:
                        yield part

    def _add(self, tenant: str, span: Span, *, topmost: str) -> None:
        """A move between two tenants below the same ones changes nothing for these."""
        parts = self._below.setdefault(tenant, [])
        if parts:
            later, above = parts[-1]
            if (later.name, later.began, above) == (span.name, span.ended, topmost):
                parts.pop()
                span = Span(span.name, span.began, later.ended)
        parts.append((span, topmost))

    def _read(self, unknown: set[str]) -> None:
        while unknown:
            rows = Tenant.objects.filter(environment=self._environment, key__in=list(unknown), deleted=False)
            values = rows.values_list("key", "tier__name", "parent")
            present = {key: (tier, parent) for key, tier, parent in values}
            changes = _changes(
                self._environment, "tenant", self._since, unknown, "before__tier", "before__parent"
            )
            for tenant in unknown:
                # A tenant that is not registered has the default tier.
                tier, parent = present.get(tenant, (self._default, ""))
                before = changes.get(tenant, [])
                self._tiers[tenant] = _states(tier, [(at, was or self._default) for at, was, _ in before])
                self._parents[tenant] = _states(parent, [(at, above or "") for at, _, above in before])
            parents = {state.what for tenant in unknown for state in self._parents[tenant]}
            unknown = parents - self._parents.keys() - {""}

    def _chains(
        self, tenant: str, began: datetime, ended: datetime, seen: tuple[str, ...] = ()
    ) -> Iterator[tuple[tuple[str, ...], datetime, datetime]]:
        """The tenant and all above it, with the time in which they were; the newest first."""
        for state in self._parents.get(tenant, []):
            since, until = max(began, state.began), min(ended, state.ended)
            if since >= until:
                continue
            parent = state.what
            if not parent or parent in seen or parent == tenant:
                yield (tenant,), since, until
                continue
            for chain, first, last in self._chains(parent, since, until, (*seen, tenant)):
                yield (tenant, *chain), first, last


def _states(present: Any, changes: list[tuple[datetime, Any]]) -> list[_State]:
    """The newest first. ``changes``: what was before each, the oldest first."""
    found, ended = [], _STILL
    for at, before in reversed(changes):
        if before != present:
            found.append(_State(at, ended, present))
            present, ended = before, at
    return [*found, _State(_EVER, ended, present)]


def _changes(
    environment: str, kind: str, since: datetime, names: Iterable[str], *fields: str
) -> dict[str, list[Any]]:
    """Name -> the time of each change since, and the fields."""
    rows = Change.objects.filter(
        revision__environment=environment, revision__at__gte=since, kind=kind, name__in=list(names)
    ).order_by("revision__number")
    found: dict[str, list[Any]] = {}
    for name, *change in rows.values_list("name", "revision__at", *fields):
        found.setdefault(name, []).append(tuple(change))
    return found
