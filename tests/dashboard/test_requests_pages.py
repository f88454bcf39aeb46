"""Where edits need approval: two people with two browsers, and every form that could bypass it."""

import os
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import Any

import pytest
from editor_steps import ACME, bulk_shown, head, put_demand
from shown import text_of

from tests.people import BOB, PASSWORD

pytestmark = pytest.mark.django_db(transaction=True)
WHY = "CHG-4822 a new contract"


@pytest.fixture
def guarded(production: str) -> str:
    from controlplane.approvals.rules import set_approvals

    set_approvals(environment=production, needed=1, reason=WHY, actor=BOB)
    return production


def test_every_form_redirects_to_its_change_request(guarded: str, log_in: Any) -> None:
    from controlplane.approvals.models import ChangeRequest
    from controlplane.policies.models import Environment

    client, before = log_in("ada"), Environment.objects.get().revision
    later = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M")
    numbers = {"limit.requests.limit": "9", "limit.requests.burst": "9", "base": before}
    plan = "tenants: {acme-retail: {tier: free}}"
    suspend = {"act": "save", "what": "suspend", "tier": "pro"}
    forms: list[tuple[str, dict[str, Any]]] = [
        (ACME, numbers),
        (ACME, numbers | {"starts": later}),
        ("/tenants/bulk", suspend | bulk_shown(client, suspend)),
        ("/tenants/bulk", suspend | bulk_shown(client, suspend) | {"starts": later}),
        ("/revisions/1", {"seen": before}),
        ("/schedules", {"act": "new", "due_at": later, "plan": plan}),
        ("/requests", {"needed": "0"}),
    ]
    for address, typed in forms:
        answer = client.post(address, typed | {"reason": WHY})
        number = ChangeRequest.objects.latest("pk").pk
        assert (answer.status_code, answer["Location"]) == (302, f"/requests/{number}"), (address, answer)
        assert b"needs" in client.get("/requests").content
        assert client.get(f"/requests/{number}").status_code == 200
    file = BytesIO(plan.encode())
    file.name = "quotas.yaml"
    draft = client.post("/import", {"file": file})["Location"]
    assert b"Propose change" in client.get(draft).content
    client.post(draft, {"reason": WHY})
    number = ChangeRequest.objects.latest("pk").pk
    assert f"/requests/{number}".encode() in client.get(draft).content
    assert (ChangeRequest.objects.count(), Environment.objects.get().revision) == (len(forms) + 1, before)
    shown = text_of(client.get(f"/requests/{number}").content.decode())
    assert "Apply a file to production, waiting for approval" in shown, "S3.31: not in the past tense"
    assert "No approvals yet." in shown
    for act in ("approve", "reject"):
        answer = client.post(f"/requests/{number}", {"act": act, "version": "1", "reason": WHY})
        assert (answer.status_code, b"you have made or changed it" in answer.content) == (403, True)
    assert client.post(f"/requests/{number}", {"act": "apply"}).status_code == 422
    assert ChangeRequest.objects.get(pk=number).state == "open"


def test_a_request_in_conflict_is_rebased_and_approved_again(guarded: str, log_in: Any) -> None:
    from controlplane.policies.models import Tenant

    client = log_in("ada")
    typed = {"limit.requests.burst": "9", "base": head(), "reason": WHY}
    first, second = (
        client.post(ACME, typed | {"limit.requests.limit": limit})["Location"] for limit in ("8", "9")
    )
    log_in("olga")
    shown = text_of(client.get(first).content.decode())
    assert "1,000 per min, burst 100 (tier pro)" in shown
    for address in (first, second):
        assert client.post(address, {"act": "approve", "version": "1"}).status_code == 302
    log_in("ada")
    assert client.post(first, {"act": "apply"})["Location"].startswith("/revisions/")
    assert client.post(second, {"act": "apply"}).status_code == 409
    shown = client.get(second).content.decode()
    assert "Conflicts with later changes" in shown
    assert "Apply changes" not in shown
    assert client.post(second, {"act": "rebase"}).status_code == 302
    log_in("olga")
    assert "rebased 1 time" in client.get(second).content.decode()
    assert client.post(second, {"act": "approve", "version": "1"}).status_code == 409
    assert client.post(second, {"act": "approve", "version": "2"}).status_code == 302
    log_in("ada")
    client.post(second, {"act": "apply"})
    assert Tenant.objects.get().quotas.get().limit == 9


def test_an_approver_sees_the_effect_and_who_still_applies_it(guarded: str, log_in: Any) -> None:
    """They saw the new values alone, and that they had approved the request."""
    from controlplane.approvals.models import ChangeRequest

    client = log_in("ada")
    before = head()
    numbers = {"limit.requests.limit": "9", "limit.requests.burst": "9", "base": before}
    client.post(ACME, {**numbers, "reason": WHY})
    row = ChangeRequest.objects.get()
    address = f"/requests/{row.pk}"
    shown = log_in("olga").get(address).content.decode()
    assert f'hx-get="{address}/replay"' in shown
    assert "An approval alone changes nothing. ada, or another admin, applies" in text_of(shown)
    replay = client.get(f"{address}/replay", headers={"HX-Request": "true"})
    assert replay.status_code == 200
    assert "Replay of the last 7 days" in text_of(replay.content.decode())
    assert "<html" not in replay.content.decode()
    # Without JavaScript, a link leads to the page with it.
    assert f'<a href="{address}/replay">' in shown
    whole = client.get(f"{address}/replay").content.decode()
    assert "Replay of the last 7 days" in text_of(whole)
    assert "<html" in whole
    assert "Computing" not in whole
    assert log_in("vera").get(f"{address}/replay").status_code == 403
    assert f'hx-get="{address}/replay"' not in log_in("vera").get(address).content.decode()
    olga = log_in("olga")
    olga.post(address, {"act": "approve", "version": "1"})
    shown = text_of(olga.get(address).content.decode())
    assert (
        "It is approved, and nothing has changed yet. ada, or another admin, still has to apply it." in shown
    )
    assert head() == before


def test_the_page_counts_all_requests_and_lists_the_newest(
    guarded: str, log_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    from controlplane.approvals.models import Approval, ChangeRequest
    from dashboard.views.history import change_requests

    def propose(state: str = "open") -> None:
        row = ChangeRequest.objects.create(
            environment=guarded,
            state=state,
            base=head(),
            action="tenant.set",
            reason=WHY,
            author="bob",
            persons=["bob"],
            expires_at=datetime.now(UTC) + timedelta(days=1),
        )
        if state == "approved":
            Approval.objects.create(request=row, version=1, person="olga", actor="olga")

    def queries() -> int:
        """Queries about requests: the frame of the page asks others."""
        with CaptureQueriesContext(connection) as asked:
            client.get("/requests")
        return sum('FROM "approvals_' in query["sql"] for query in asked)

    client = log_in("ada")
    for state in ("open", "approved"):
        propose(state)
    few = queries()
    for state in ("open", "open", "open", "open", "approved"):
        propose(state)
    assert queries() == few
    shown = text_of(client.get("/requests").content.decode())
    assert "5 changes are waiting for approval." in shown
    assert "2 are approved, and wait until an admin applies them." in shown
    assert (shown.count("0 of 1"), shown.count("The file has the others")) == (5, 0)
    monkeypatch.setattr(change_requests, "_MAX_PENDING", 3)
    shown = text_of(client.get("/requests").content.decode())
    assert "5 changes are waiting for approval." in shown
    assert "These are the newest 3 of 5. The file has the others, too." in shown
    assert shown.count("0 of 1") == 3
    file = b"".join(client.get("/requests?csv=h-w").streaming_content).decode()
    assert file.count("0 of 1") == 5


@pytest.mark.browser
def test_one_person_proposes_another_approves_and_the_revision_names_both(
    guarded: str, page: Any, sign_in: Any, chromium: Any, web: str
) -> None:
    other = chromium.new_context(viewport={"width": 1440, "height": 1000}, base_url=web)
    other.set_default_timeout(30_000)
    try:
        olga = other.new_page()
        olga.goto("/login")
        olga.fill("#id_username", "olga")
        olga.fill("#id_password", PASSWORD)
        olga.click("button[type=submit]")
        olga.wait_for_selector("header.bar")
        ada = sign_in("ada")
        ada.goto("/edit/tenant?key=acme-retail")
        ada.fill("#f-limit-requests-limit", "4321")
        ada.fill("#f-reason", WHY)
        _shot(ada, "form")
        ada.click("text=Propose change")
        ada.wait_for_url("**/requests/*")
        ada.wait_for_selector("text=Nothing is changed until it is approved")
        assert ada.locator("button", has_text="Approve").count() == 0
        _shot(ada, "proposed")
        # It reaches the other browser without a reload.
        olga.wait_for_selector("#nav >> text=/1 wait/")
        _shot(olga, "overview")
        olga.goto("/requests")
        _shot(olga, "list")
        olga.click("table a >> nth=0")
        olga.wait_for_selector("text=4,321")
        _shot(olga, "to-approve")
        olga.fill("#f-reason", "Checked with the contract")
        olga.click("button:has-text('Approve')")
        olga.wait_for_selector("text=You approved the request")
        _shot(olga, "approved")
        ada.reload()
        _shot(ada, "ready")
        ada.click("button:has-text('Apply')")
        ada.wait_for_url("**/revisions/*")
        said = ada.locator("header.verdict").inner_text()
        assert "by ada" in said
        assert "approved by olga" in said
        _shot(ada, "revision")
    finally:
        other.close()


def _shot(page: Any, name: str) -> None:
    """Save a screenshot for people."""
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=f"{folder}/requests-{name}.png", full_page=True)


def test_a_request_that_changes_no_limit_says_so_in_its_replay(guarded: str, log_in: Any) -> None:
    """A new title had an unknown effect: "no demand of these tenants is recorded", where there was some."""
    from controlplane.approvals.models import ChangeRequest

    put_demand()
    client = log_in("ada")
    client.post(ACME, {"own.title": "Acme Retail", "base": head(), "reason": WHY})
    address = f"/requests/{ChangeRequest.objects.get().pk}"
    replay = text_of(client.get(f"{address}/replay", headers={"HX-Request": "true"}).content.decode())
    assert "No request would be decided differently: no limit of a tenant changes." in replay
    assert "no demand" not in replay
