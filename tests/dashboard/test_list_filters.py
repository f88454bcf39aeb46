"""Lists in pages: their filter, order and time range are in the address, and their links keep them."""

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.alerts.models import Alert
from controlplane.policies.models import Revision, Tenant

pytestmark = pytest.mark.django_db(transaction=True)


def page(client, address):
    answer = client.get(address)
    assert answer.status_code == 200
    return " ".join(answer.content.decode().split())


def test_revisions_are_found_by_words_and_time_and_ordered(log_in, production):
    client = log_in("vera")
    newest = Revision.objects.filter(environment="production").order_by("-number").first()
    oldest = Revision.objects.filter(environment="production").order_by("number").first()
    assert newest.number > oldest.number
    shown = page(client, "/revisions?sort=revision")
    assert shown.index(f'/revisions/{oldest.number}"') < shown.index(f'/revisions/{newest.number}"')
    assert 'aria-sort="ascending"' in shown
    assert "No edits match." in page(client, "/revisions?q=nobody-wrote-this")
    early = Revision.objects.get(pk=newest.pk)
    early.pk, early.number, early.changed = None, newest.number + 1, 1
    early.at = timezone.now() - timedelta(days=40)
    early.save(force_insert=True)
    assert f'/revisions/{early.number}"' in page(client, "/revisions?only=changes")
    shown = page(client, "/revisions?period=30d&only=changes")
    assert f'/revisions/{early.number}"' not in shown
    # The links keep what is chosen.
    assert 'href="?period=30d&amp;only=changes&amp;sort=revision"' in shown
    assert 'href="?period=30d"' in shown


def resolved(text, severity, days):
    at = timezone.now() - timedelta(days=days)
    return Alert(
        environment="production",
        key=text,
        level=1,
        severity=severity,
        worst=severity,
        state="resolved",
        true_since=at,
        level_since=at,
        resolved_at=at,
        text=text,
        subject_kind="servers",
    )


def test_past_alerts_are_found_and_their_pages_keep_the_filter(log_in, production):
    Alert.objects.bulk_create(
        [*(resolved(f"warned {n}", "warning", 1) for n in range(60)), resolved("broke", "critical", 20)]
    )
    client = log_in("vera")
    shown = page(client, "/alerts?severity=critical")
    assert "1 found, last 90 days" in shown
    assert "warned" not in shown
    shown = page(client, "/alerts?q=WARNED&period=7d")
    assert "60 found, last 7 days" in shown
    assert 'rel="next" href="?q=WARNED&amp;period=7d&amp;page=2"' in shown
    assert "No resolved alert matches." in page(client, "/alerts?severity=critical&period=24h")
    assert 'rel="next" href="?page=2"' in page(client, "/alerts")


def test_the_filter_stays_when_an_alert_is_acknowledged(log_in, production):
    firing = resolved("open", "critical", 0)
    firing.state, firing.resolved_at = "firing", None
    firing.save()
    answer = log_in("olga").post("/alerts?q=open&period=7d", {"acknowledge": firing.pk, "note": ""})
    assert answer["Location"] == "/alerts?q=open&period=7d"


def test_tenants_are_ordered_backwards_in_pages_and_found_by_state(log_in, production):
    one = Tenant.objects.get(key="acme-retail")
    Tenant.objects.bulk_create(
        Tenant(
            environment=one.environment,
            key=f"many-{number:05}",
            tier=one.tier,
            changed_revision=1,
            suspended=number == 3,
        )
        for number in range(120)
    )
    client = log_in("vera")
    shown = page(client, "/tenants?sort=-tenant&q=many")
    assert shown.index("many-00119") < shown.index("many-00070<")
    assert "many-00069<" not in shown
    shown = page(client, "/tenants?sort=-tenant&q=many&after=many-00070")
    assert shown.index("many-00069<") < shown.index("many-00020<")
    assert 'rel="prev" href="?q=many&amp;sort=-tenant&amp;before=many-00069"' in shown
    shown = page(client, "/tenants?sort=-tenant&q=many&before=many-00069")
    assert "many-00119<" in shown
    shown = page(client, "/tenants?state=suspended")
    assert "many-00003<" in shown
    assert "1 found" in shown
