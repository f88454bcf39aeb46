"""The page of a tenant: its quotas, the result of a shadow quota, its effective settings and its history."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.audit.actor import Actor
from controlplane.audit.models import Entry
from controlplane.editing import edits
from controlplane.policies.models import TenantQuota
from controlplane.reconciliation.models import AllowedAlone
from controlplane.schedules.due import announce
from controlplane.status.read_facts import read_facts, read_pods
from dashboard.live.tenant import tenant_context
from dashboard.live.topics import Topic, fragments
from dashboard.views import page as views
from tests.dashboard.editor_steps import ACME, base_of, page, put_demand, quota
from tests.dashboard.fleet_rows import put_figures
from tests.dashboard.shown import text_of
from tests.people import ADA

pytestmark = pytest.mark.django_db(transaction=True)

TENANT = "/tenant?key=acme-retail"


def set_shadow(name: str = "requests", **more: Any) -> None:
    edits.set_tenant_quota(
        environment="production",
        tenant="acme-retail",
        quota=name,
        window_s=60,
        shadow=True,
        expected_version=None,
        reason="Try it first",
        actor=ADA,
        **{"limit": 600, "burst": 1, **more},
    )


def test_neither_a_page_nor_its_form_nor_a_preview_reads_the_whole_fleet(
    log_in: Any, monkeypatch: Any
) -> None:
    """They read everything, the page twice, for one number."""
    read, client = [], log_in("ada")
    monkeypatch.setattr(views, "read_facts", lambda environment: read.append(1) or read_facts(environment))
    page(client.get(TENANT))
    typed = {"base": base_of(page(client.get(ACME))), "limit.requests.limit": "50"}
    preview = page(client.post("/edit/tenant/preview?key=acme-retail", typed))
    assert "requests without Redis:</b> Pods allow every call" in preview
    assert read == []


def tile(shown: str, name: str) -> str:
    found = re.search(rf'id="{name}".*?</(?:a|div)>', shown, re.DOTALL)
    assert found
    return text_of(f"<{found[0]}")


def test_the_page_answers_at_a_glance(log_in: Any) -> None:
    client = log_in("vera")
    shown = page(client.get(TENANT))
    assert "Quota requests 1,000 per min of tier pro" in tile(shown, "quota_now")
    quota(120, window_s=1, burst=100)
    shown = page(client.get(TENANT))
    assert "Quota requests 120 per s of tier pro" in tile(shown, "quota_now")
    assert "60 /s 50 % of the quota" in tile(shown, "use_now")
    assert "1 /s" in tile(shown, "refused_now")
    quota(440, window_s=1, burst=100)
    # It was cut off to 13 %.
    assert "60 /s 13.6 % of the quota" in tile(page(client.get(TENANT)), "use_now")
    assert 'href="/reconciliation?tenant=acme-retail"' in shown
    # The chart has the limit as a line.
    assert "requests: 120 per s" in shown
    assert "&quot;limit&quot;: 120.0" in shown


def test_what_pods_decided_locally_is_counted_once_and_for_a_day(log_in: Any) -> None:
    now = timezone.now()
    usual: dict[str, Any] = {
        "environment": "production",
        "domain": "t:1",
        "value": 0,
        "tenant": "acme-retail",
    }
    for number, (rule, amount, hours) in enumerate(
        [("requests", 40, 1), ("requests", 3, 2), ("exports", 9, 1), ("requests", 500, 30)]
    ):
        start = now - timedelta(hours=hours)
        AllowedAlone.objects.create(
            field=f"f{number}", counter="c", amount=amount, start=start, rule=rule, length_s=60, **usual
        )
    assert "Decided locally, 24 h 43 allowed without Redis" in text_of(page(log_in("vera").get(TENANT)))
    # Neither tokens nor what a limit only counts are requests.
    for field, other in {"t": {"measure": "tokens"}, "s": {"shadow": True}}.items():
        AllowedAlone.objects.create(
            field=field,
            counter="c",
            amount=50_000,
            start=now - timedelta(hours=1),
            rule=field,
            length_s=60,
            **usual,
            **other,
        )
    shown = text_of(page(log_in("vera").get(TENANT)))
    assert "Decided locally, 24 h 43 allowed without Redis" in shown
    assert "without Redis since" not in shown


def test_a_monthly_quota_alone_counts_what_pods_decided_locally_since_its_month_began(log_in: Any) -> None:
    """It was 0: the month did not begin within the day."""
    start = timezone.now() - timedelta(days=9)
    AllowedAlone.objects.create(
        environment="production",
        domain="t:1",
        field="f",
        counter="c",
        value=0,
        amount=70,
        start=start,
        length_s=30 * 86_400,
        rule="monthly",
        tenant="acme-retail",
    )
    shown = text_of(page(log_in("vera").get(TENANT)))
    assert f"24 h 70 allowed without Redis since {start:%-d %b %H:%M}" in shown


def test_a_tenant_that_is_not_among_the_busiest_has_no_known_rate(log_in: Any) -> None:
    """Its rates were 0 /s."""
    put_figures(tenants=[])
    shown = page(log_in("vera").get(TENANT))
    assert "0 /s" in tile(shown, "use_now"), "every tenant with requests is listed, and it is not"
    busy = {"requests_per_s": 90.0, "refused_per_s": 5.0}
    put_figures(tenants=[{"tenant": f"busy-{number}", **busy} for number in range(20)])
    shown = page(log_in("vera").get(TENANT))
    for name in ("use_now", "refused_now"):
        assert "unknown it is not among the busiest" in tile(shown, name)


def test_the_table_of_quotas_has_the_rate_of_the_tile_and_is_live(log_in: Any) -> None:
    """The tile had 3.2/s and the table 3.6/s: two counters, and a table as of the load of the page."""
    quota(120, window_s=1, burst=100)
    rule = {"tenant": "acme-retail", "rule": "requests", "refused_per_s": 0.0, "shadow_per_s": 0.0}

    def shown(requests_per_s: float, asked_per_s: float) -> str:
        put_figures(
            tenants=[{"tenant": "acme-retail", "requests_per_s": requests_per_s, "refused_per_s": 0.0}],
            rules=[{**rule, "asked_per_s": asked_per_s}],
        )
        return page(log_in("vera").get(TENANT))

    first = shown(60.4, 66.6)
    assert "60.4 /s" in tile(first, "use_now")
    assert "now 60.4 per s" in text_of(first)
    assert "66.6" not in first
    context = {**tenant_context(read_pods("production"), "acme-retail"), "page": "tenant", "no_data": ""}
    topic = Topic(page="tenant", role="viewer", key="acme-retail")
    live = {each.target: each.html(context) for each in fragments(topic, context)[2:] if "use" in each.target}
    assert "60.4 /s" in text_of(live["use_now"])
    assert "now 60.4 per s" in text_of(f"<table>{live['use-requests']}</table>")


def test_a_temporary_quota_shows_its_end_and_who_changed_it(
    log_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = timezone.now() + timedelta(minutes=30)
    edits.set_tenant_quota(
        environment="production",
        tenant="acme-retail",
        quota="requests",
        limit=200,
        window_s=1,
        burst=200,
        expires_at=ends,
        expected_version=None,
        reason="a sale until tonight",
        actor=ADA,
    )
    with monkeypatch.context() as later:
        later.setattr(timezone, "now", lambda: ends - timedelta(minutes=5))
        announce()
    assert Entry.objects.filter(action="tenant_quota.ends_soon").exists()
    shown = text_of(page(log_in("vera").get(TENANT)))
    words = f"ends {ends:%-d %b %H:%M} UTC, then the quota of its tier applies"
    assert shown.count(words) == 2, "beside the quota, and in its row"
    assert "last change by ada" in shown, "an announcement changes nothing"


def test_the_quota_that_the_address_names_is_marked(log_in: Any) -> None:
    client = log_in("vera")
    assert '<tr id="q-requests" aria-current="true">' in page(client.get(f"{TENANT}&quota=requests"))
    assert '<tr id="q-requests">' in page(client.get(TENANT))
    # The page has no form for a quota any more: it is edited in one place.
    assert client.post(TENANT).status_code == 405


def test_a_shadow_is_compared_and_promoted(log_in: Any) -> None:
    put_demand()
    set_shadow()
    client = log_in("ada")
    shown = page(client.get(TENANT))
    assert "it would have refused 8,999 of 15,000 requests" in text_of(shown)
    # An edit of another value keeps it a shadow.
    typed = {"base": base_of(page(client.get(ACME))), "limit.requests.limit": "700", "reason": "more of it"}
    assert client.post(ACME, typed).status_code == 302
    assert TenantQuota.objects.get().shadow
    link = "/edit/tenant?key=acme-retail&limit.requests.shadow=no&at=limit.requests.shadow"
    assert f'href="{link.replace("&", "&amp;")}">Start refusing</a>' in shown
    form = page(client.get(link))
    assert 'name="limit.requests.shadow" autofocus' in form
    preview = text_of(form.partition('id="preview"')[2])
    assert "requests, over the limit: Only count (shadow) → Refuse" in preview
    typed = {"base": base_of(form), "limit.requests.shadow": "no", "reason": "it refuses what it should"}
    assert client.post(link, typed).status_code == 302
    quota = TenantQuota.objects.get()
    assert (quota.shadow, quota.limit) == (False, 700)
    assert "is a shadow quota" not in page(client.get(TENANT))
    assert "Start refusing" not in page(log_in("vera").get(TENANT))


def test_the_page_shows_the_result_of_one_shadow_and_leads_to_the_others(log_in: Any) -> None:
    set_shadow("exports")
    set_shadow("uploads")
    client = log_in("vera")
    shown = page(client.get(TENANT))
    assert "exports is a shadow quota" in shown
    assert 'href="/tenant?key=acme-retail&amp;quota=uploads">Result of uploads</a>' in shown
    assert "uploads is a shadow quota" in page(client.get(f"{TENANT}&quota=uploads"))


def test_every_role_sees_effective_settings_even_of_an_unknown_tenant(log_in: Any) -> None:
    client = log_in("vera")
    assert "tier default" in page(client.get("/tenant/effective?key=acme-retail"))
    assert "default tier" in page(client.get("/tenant/effective?key=who%20ever"))


def test_earlier_changes_include_plans_and_rollbacks(log_in: Any) -> None:
    from controlplane.editing.edits.rollback import rollback
    from controlplane.editing.plans import apply_plan, plan_from_document
    from controlplane.policies.models import Environment

    common: dict[str, Any] = {
        "environment": "production",
        "actor": Actor(name="pipeline", role="admin", origin="api"),
    }
    before = Environment.objects.get(pk="production").revision
    document = {"tenants": {"acme-retail": {"tier": "free"}, "others": {"tier": "free"}}}
    plan = plan_from_document(document)
    made = apply_plan(plan=plan, expected_revision=before, reason="They pay less now", **common)
    rollback(to_revision=before, expected_revision=made, reason="They pay again", **common)
    shown = page(log_in("ada").get(TENANT))
    shown = shown[shown.index('id="history"') :]
    assert "They pay less now" in shown
    assert '<span class="was">tier pro</span>' in shown
    assert "tier free" in shown
    assert shown.index("They pay again") < shown.index("They pay less now")
