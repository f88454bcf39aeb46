"""C.10: forms say what a limit allows without Redis, and admins see rows with older defaults."""

from typing import Any

import pytest
from django.utils import timezone

from controlplane.audit.actor import Actor
from controlplane.editing import edits
from controlplane.fleet.models import Server
from controlplane.policies.models import Dependency, Template
from controlplane.policies.template_starts import STARTS

pytestmark = pytest.mark.django_db(transaction=True)


def a_pod(name: str, load: dict[str, Any]) -> None:
    now = timezone.now()
    Server.objects.create(
        environment="production",
        name=name,
        boot=f"boot-of-{name}",
        service="shop",
        agent_version="0.1.0",
        state="online",
        mode="shared",
        mode_since=now,
        config_status="applied",
        config_source="http",
        started_at=now,
        last_seen_at=now,
        due_at=now,
        load=load,
    )


ADA = Actor(name="ada", role="admin", origin="command")
WHY = "for a test"


def test_the_page_lists_rows_that_differ(log_in: Any) -> None:
    client = log_in("ada")
    common: dict[str, Any] = {"environment": "production", "reason": WHY, "actor": ADA}
    edits.create_dependency(dependency="ledger", kind="database", breaker={"slow_percent": 90}, **common)
    edits.set_tenant_quota(
        tenant="acme-retail",
        quota="exports",
        limit=5,
        window_s=60,
        failure_policy="fail_closed",
        expected_version=None,
        **common,
    )
    page = client.get("/defaults").content.decode()
    assert "A new default never changes an existing row" in page
    assert "ledger" in page
    assert "90 %" in page
    assert "exports" in page
    assert "refuses" in page
    assert 'href="/defaults"' in client.get("/templates").content.decode()


def test_a_template_form_says_what_each_choice_allows(log_in: Any) -> None:
    client = log_in("ada")
    new = client.get("/templates").content.decode()
    assert "limit / live pods" in new
    assert "admits 91 % of the limit" in new
    common: dict[str, Any] = {"environment": "production", "reason": WHY, "actor": ADA}
    edits.set_template(template="standard", limit=9, window_s=60, expected_version=0, **common)
    typed = {"limit": "9", "window_s": "60", "burst": "9", "algorithm": "token_bucket", "shadow": "no"}
    preview = client.post("/templates/of/standard/preview", typed | {"failure_policy": "fail_open"})
    assert "Pods allow every call, also beyond 9." in preview.content.decode()


def test_a_template_starts_from_usual_values(log_in: Any) -> None:
    client = log_in("ada")
    assert 'href="/templates?start=login#h-n"' in client.get("/templates").content.decode()
    form = client.get("/templates?start=login").context["form"]
    shown = {name: str(form[name].value()) for name in ("name", "limit", "window_s", "failure_policy")}
    assert shown == {"name": "login", "limit": "10", "window_s": "60", "failure_policy": "local_share"}
    for name, start in STARTS.items():
        form = client.get(f"/templates?start={name}").context["form"]
        typed = {each: str(form[each].value()) for each in form.fields if form[each].value() is not None}
        saved = client.post("/templates/new", typed | {"reason": WHY})
        assert saved.status_code == 302, saved.content.decode()[:2000]
        assert Template.objects.get(name=name).limit == start.limit


def test_the_page_lists_breakers_to_check(log_in: Any) -> None:
    client = log_in("ada")
    edits.create_dependency(
        environment="production",
        dependency="ledger",
        kind="database",
        breaker={"consecutive_failures": 1},
        fallback_note="Last known rate",
        reason=WHY,
        actor=ADA,
    )
    assert "a single failed call opens the breaker" in client.get("/defaults").content.decode()


def test_one_button_gives_every_older_bulkhead_all_slots_of_idle_tiers(log_in: Any) -> None:
    older = {"bulkhead": {"max_concurrent": 20}}
    Dependency.objects.filter(name="payments-api").update(protection=older)
    Server.objects.update(carries_counts=True, load={"shares_idle": True})
    a_pod("old-1", {"pressure": 0})
    a_pod("new-1", {"pressure": 0, "shares_idle": True})
    client = log_in("ada")
    page = " ".join(client.get("/defaults").content.decode().split())
    assert "Slots that no tier uses" in page
    assert "In the bulkhead of <b>payments-api</b>, a tier has only its share" in page
    assert "1 pod runs an older agent (old-1): a tier has only its share" in page
    refused = client.post("/defaults/idle-slots", {"reason": "x" * 501})
    assert refused.status_code == 422
    assert "x" * 501 in refused.content.decode(), "what was typed stays"
    assert client.post("/defaults/idle-slots", {"reason": WHY}).status_code == 302
    assert Dependency.objects.get(name="payments-api").protection["bulkhead"]["share_idle"] is True
    page = client.get("/defaults").content.decode()
    assert "Slots that no tier uses" not in page
    assert "1 pod runs an older agent (old-1): a tier has only its share" in page
    assert client.post("/defaults/idle-slots", {"reason": WHY}).status_code == 422


def test_only_those_who_may_edit_breakers_switch_it_on(log_in: Any) -> None:
    Dependency.objects.filter(name="payments-api").update(protection={"bulkhead": {"max_concurrent": 20}})
    client = log_in("vera")
    assert "Use all slots" not in client.get("/defaults").content.decode()
    assert client.post("/defaults/idle-slots", {"reason": WHY}).status_code == 403


def test_the_page_lists_settings_that_older_pods_do_not_apply(log_in: Any) -> None:
    Server.objects.update(carries_counts=True, load={"shares_idle": True})
    a_pod("old-1", {"pressure": 0, "shares_idle": True})
    client = log_in("ada")
    assert "Pods of an older version" not in client.get("/defaults").content.decode()
    edits.set_subject_limit(
        environment="production", name="flood", service="*", limit=9, window_s=60, reason=WHY, actor=ADA
    )
    page = " ".join(client.get("/defaults").content.decode().split())
    assert "(old-1): limits of all callers do not apply there. Update them first." in page
