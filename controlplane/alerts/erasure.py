"""Takes a tenant out of resolved alerts, their messages, and closed incidents.

An alert that is open is about the present: it goes on, and is erased once it is resolved.
"""

import re
from typing import Any

from django.db.models import Q, QuerySet

from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import Alert, Delivery, Incident
from controlplane.alerts.rules.rule import OF_TENANT, rule_of
from controlplane.alerts.rules.texts import most_are_from

#: The alert about the requests of all tenants, which names the one with most refusals.
_OF_ALL = "429"
_ERASED = "erased"


def erase_tenant(environment: str, tenant: str) -> int:
    """Delete the alerts about a tenant with their messages, and leave it out of the others.

    Returns how many alerts were deleted or changed. In a transaction.
    """
    if not tenant:
        raise ValueError("Name the tenant: without a name, alerts are about no tenant.")
    done = Alert.objects.filter(environment=environment, state=AlertState.RESOLVED)
    # An incident that is not closed needs its alerts.
    done = done.filter(Q(incident=None) | Q(incident__closed_at__isnull=False))
    changed = _leave_out(done.filter(key=_OF_ALL), tenant)
    about = done.filter(subject_kind__in=OF_TENANT, subject_name=tenant).exclude(key=_OF_ALL)
    keys = set(about.values_list("key", flat=True))
    # Their alerts may be forgotten already.
    closed = Incident.objects.filter(environment=environment, closed_at__isnull=False)
    named = (
        Q(cause__in=keys) | Q(cause=f"runaway-tenant:{tenant}") | Q(cause__startswith=f"hot-key:{tenant}/")
    )
    for incident in closed.filter(named):
        rule = rule_of(incident.cause)
        incident.cause, incident.title = f"{rule}:{_ERASED}", f"Alert {rule} of an erased tenant"
        incident.save(update_fields=["cause", "title"])
    rows = list(about.values_list("pk", flat=True))
    Alert.objects.filter(pk__in=rows).delete()
    return changed + len(rows)


def _leave_out(alerts: QuerySet[Alert], tenant: str) -> int:
    """Alerts about all tenants stay, without the sentence that names this one."""
    # A sentence about ``acme.com`` begins like one about ``acme``.
    sentence = re.compile(rf"{re.escape(most_are_from(tenant))}(?!\S)")
    about = Q(subject_kind="tenant", subject_name=tenant)
    words = most_are_from(tenant)
    found = alerts.filter(Q(detail__contains=words) | Q(begun_detail__contains=words) | about)
    rows = [
        row
        for row in found
        if row.subject_name == tenant or sentence.search(row.detail) or sentence.search(row.begun_detail)
    ]
    for row in rows:
        row.detail, row.begun_detail = sentence.sub("", row.detail), sentence.sub("", row.begun_detail)
        if row.subject_name == tenant:
            row.subject_kind, row.subject_name = "tenants", ""
    Alert.objects.bulk_update(rows, ["detail", "begun_detail", "subject_kind", "subject_name"])
    deliveries = list(Delivery.objects.filter(alert__in=rows).select_for_update())
    for delivery in deliveries:
        data: dict[str, Any] = delivery.document["data"]
        for field in ("detail", "message"):
            if field in data:
                data[field] = sentence.sub("", data[field])
    Delivery.objects.bulk_update(deliveries, ["document"])
    return len(rows)
