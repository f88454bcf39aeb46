"""Erases what is stored about one caller, in one transaction with its audit entry.

The entry says what was erased and why, but not about whom: the audit is never deleted.
"""

from collections import Counter
from dataclasses import asdict, dataclass

from django.db import transaction

from controlplane.accounts.saved_views import erase_tenant as erase_views
from controlplane.alerts.erasure import erase_tenant as erase_alerts
from controlplane.audit.actor import Actor
from controlplane.audit.record import record
from controlplane.fleet.models import DescriptorFigures, Figures, GatewayOrder, OrderKind
from controlplane.ledger.edits import erase_tenant as erase_usage
from controlplane.phrases import count
from controlplane.policies.document import environment_of, tuning_of
from controlplane.reconciliation.copying import erase_tenant as erase_allowed
from controlplane.refusals.erasure import erase_caller, is_named
from controlplane.refusals.erasure import erase_tenant as erase_samples
from controlplane.refusals.top_lists import erase_tenant as erase_top_lists
from controlplane.series.erasure import erase_tenant as erase_series
from controlplane.series.kinds import tenant_number
from controlplane.usage.rollups import erase_tenant as erase_demand
from controlplane.validation import Problems, printable
from controlplane.weekly.keep import erase_tenant as erase_weekly
from controlplane.weekly.send import erase_tenant as erase_weekly_messages
from fuseboard.contract.addresses import counted_address

TENANT = "tenant"
#: Kinds of callers to erase -> their words in the audit. All but the tenant are subjects of limits.
KINDS = {"ip": "an address", "user": "a login", "api_key": "an API key", TENANT: "a tenant"}
#: Fields of the gateways' figures that are lists with a tenant in each row, see ``gateway.servers.figures``.
_FIGURES_BY_TENANT = ("tenants", "usage", "rules")
#: The number in an order that is only about examples of descriptors. No tenant has it.
_NO_TENANT = 0


@dataclass(frozen=True, kw_only=True)
class Erased:
    """How many rows were deleted, or do not name the caller any more."""

    #: Samples of refusals.
    samples: int
    #: Charts of a tenant, and the rows that what-if reads.
    series: int = 0
    demand: int = 0
    #: Stored top lists of refusals that had it.
    top_lists: int = 0
    #: Requests that it was allowed without Redis.
    without_redis: int = 0
    #: Rows of the ledger of models. What it used stays, without its name.
    usage: int = 0
    #: Resolved alerts that named it.
    alerts: int = 0
    #: Saved views of people that filtered by it, or had it in their names.
    views: int = 0
    #: The network that pods count an IPv6 address by. All its addresses are erased.
    network: str = ""

    @property
    def words(self) -> str:
        parts = [f"{count(self.samples, 'sample', grouped=True)} of refusals"]
        if self.network:
            parts[0] += f" of {self.network}, which pods count as one caller"
        if self.series or self.demand:
            parts += [f"{self.series:,} series", f"{self.demand:,} rows of demand"]
        if self.top_lists:
            parts.append(count(self.top_lists, "top list", grouped=True))
        if self.without_redis:
            parts.append(f"{self.without_redis:,} counts of an outage")
        if self.usage:
            parts.append(f"its name in {count(self.usage, 'row', grouped=True)} of the ledger")
        if self.alerts:
            parts.append(count(self.alerts, "resolved alert", grouped=True))
        if self.views:
            parts.append(count(self.views, "saved view", grouped=True))
        return ", ".join(parts)


def erase(*, environment: str, kind: str, value: str, reason: str, actor: Actor) -> Erased:
    """Delete everything that is stored about a subject or a tenant. The configuration and the audit stay.

    Raises ``InvalidEdit`` or ``NotFound``.
    """
    problems = Problems()
    problems.reason(reason)
    if kind not in KINDS:
        problems.add("kind", f"Choose one of: {', '.join(KINDS)}.")
    problems.subject("value", value)
    if value and is_named(kind, value, reason):
        problems.add("reason", "Leave the caller out of the reason: the audit keeps it forever.")
    problems.settle()
    row = environment_of(environment)
    slug = row.slug
    with transaction.atomic():
        # An example of a descriptor can be the caller, or begin like it. Gateways write these rows again.
        DescriptorFigures.objects.filter(environment=slug).delete()
        if kind == TENANT:
            # Figures of heartbeats have it without characters that no text has: see gateway/wire/texts.py.
            names = sorted({value, printable(value)})
            numbers = sum((_erase_tenant(slug, name) for name in names), Counter[str]())
            erased = Erased(
                samples=numbers["samples"],
                series=numbers["series"],
                demand=numbers["demand"],
                top_lists=numbers["top_lists"],
                without_redis=numbers["without_redis"],
                usage=numbers["usage"],
                alerts=numbers["alerts"],
                views=numbers["views"],
            )
        else:
            counted = counted_address(value, tuning_of(row).ipv6_prefix) if kind == "ip" else ""
            network = counted if counted != value and "/" in counted else ""
            _order(slug, _NO_TENANT)
            erased = Erased(samples=erase_caller(slug, kind, value), network=network)
        _record(slug, kind, erased, reason, actor)
    return erased


def _erase_tenant(environment: str, name: str) -> Counter[str]:
    _erase_figures(environment, name)
    erase_weekly(environment, name)
    erase_weekly_messages(environment, name)
    _order(environment, tenant_number(name))
    return Counter(
        samples=erase_samples(environment, name),
        series=erase_series(environment, name),
        demand=erase_demand(environment, name),
        top_lists=erase_top_lists(environment, tenant_number(name)),
        without_redis=erase_allowed(environment, name),
        usage=erase_usage(environment, name),
        alerts=erase_alerts(environment, name),
        views=erase_views(environment, name),
    )


def _order(environment: str, tenant: int) -> None:
    """Gateways forget the tenant and all examples, which they have in memory and would write again."""
    GatewayOrder.objects.create(environment=environment, kind=OrderKind.ERASE, server=str(tenant))


def _erase_figures(environment: str, tenant: str) -> None:
    """A gateway that runs writes its figures again, without a tenant that is idle."""
    rows = list(Figures.objects.select_for_update().filter(environment=environment))
    for row in rows:
        for field in _FIGURES_BY_TENANT:
            row.document[field] = [one for one in row.document.get(field, ()) if one["tenant"] != tenant]
    Figures.objects.bulk_update(rows, ["document"])


def _record(environment: str, kind: str, erased: Erased, reason: str, actor: Actor) -> None:
    action = "history.erased" if kind == TENANT else "subject.erased"
    record(
        actor=actor,
        action=action,
        target_kind="history" if kind == TENANT else "subject",
        target_name=KINDS[kind],
        # The network is left out: it is the caller.
        after={
            name: n for name, n in asdict(erased).items() if name == "samples" or (n and name != "network")
        },
        reason=reason,
        environment=environment,
    )
