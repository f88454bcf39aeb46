"""The editor of tiers, tenants, dependencies and the environment, as a person uses it without a script."""

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.approvals.models import ChangeRequest
from controlplane.approvals.rules import set_approvals
from controlplane.editing import edits
from controlplane.fleet.models import Figures
from controlplane.policies.history import Changed
from controlplane.policies.models import (
    Dependency,
    Environment,
    Revision,
    Tenant,
    Tier,
    TierQuota,
)
from controlplane.schedules.models import Schedule
from dashboard.hub import hub
from dashboard.live.drawing import SentFragments, draw
from dashboard.live.edited import edited_key
from dashboard.live.pages import page_of
from dashboard.live.topics import Topic
from dashboard.setting_controls import Control
from dashboard.views.editor.form_input import Typed
from dashboard.views.page import current_live
from dashboard.words.change_words import change_words
from tests.dashboard.editor_steps import PRO, WHY, base_of, head, page, quota, requests_of_pro
from tests.dashboard.live_page import LivePage
from tests.dashboard.shown import text_of
from tests.people import BOB

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ada(log_in: Any, production: str) -> Any:
    quota()
    return log_in("ada")


@pytest.mark.parametrize(
    ("address", "marked"),
    [
        ("/edit/tier?key=pro", "Tiers"),
        ("/edit/environment", "Environment"),
        ("/edit/tenant?key=acme-retail", "Tenants"),
        ("/edit/tenant?new", "Tenants"),
    ],
)
def test_the_navigation_marks_the_list_of_what_is_edited(ada: Any, address: str, marked: str) -> None:
    """A tenant was edited under "Tiers"."""
    shown = ada.get(address).content.decode()
    assert re.findall(r'aria-current="page"[^>]*>\s*([A-Z][a-z]+)', shown) == [marked]


def test_a_quota_of_a_tier_is_changed_in_three_clicks(ada: Any) -> None:
    assert f'href="{PRO}"' in page(ada.get("/tiers"))
    shown = page(ada.get(PRO))
    assert 'name="limit.requests.limit" value="600"' in shown
    typed = {"base": base_of(shown), "limit.requests.limit": "900"}
    preview = page(ada.post("/edit/tier/preview?key=pro", typed))
    assert "600 per min, burst 100" in preview
    assert "900 per min, burst 100" in preview
    assert "(+50 %)" in preview
    assert requests_of_pro().limit == 600
    answer = ada.post(PRO, {**typed, "reason": WHY, "act": "save"})
    revision = Revision.objects.latest("number")
    assert answer["Location"] == f"{PRO}&saved={revision.number}"
    assert requests_of_pro().limit == 900
    assert requests_of_pro().burst == 100
    after = page(ada.get(answer["Location"]))
    assert f"revision {revision.number}</a>" in after
    assert "Undo" in after


def test_undo_reverts_the_edit_and_keeps_what_another_person_changed(ada: Any) -> None:
    shown = page(ada.get(PRO))
    priority = Tier.objects.get(name="pro").priority
    ada.post(PRO, {"base": base_of(shown), "own.priority": "7", "reason": WHY, "act": "save"})
    number = Revision.objects.latest("number").number
    quota(700)
    answer = ada.post(f"/revisions/{number}/undo", {"back": PRO})
    assert answer["Location"] == f"{PRO}&saved={number + 2}"
    assert Revision.objects.latest("number").reason == f"Undo of revision {number}"
    assert (Tier.objects.get(name="pro").priority, requests_of_pro().limit) == (priority, 700)
    # It is not a way to other sites.
    for back in ("//evil.example", "/\t///evil.example", "/\\evil.example", "https://evil.example"):
        where = ada.post(f"/revisions/{number}/undo", {"back": back})["Location"]
        assert "evil" not in where
    rollout = f"/revisions/{number}/rollout"
    assert "3 of 3 pods have applied it." in text_of(page(ada.get(rollout)))
    # Without a gateway, no pod is live: it said "0 of 0 pods", and was never asked for again.
    Figures.objects.all().delete()
    shown = page(ada.get(rollout))
    assert text_of(shown).strip() == "No gateway reports which pods have applied it."
    assert "hx-get" in shown
    assert "no gateway reports which pods have applied it." in text_of(
        page(ada.get("/tenant?key=acme-retail"))
    )


def test_two_admins_edit_different_quotas_of_one_tier(ada: Any) -> None:
    shown = page(ada.get(PRO))
    edits.set_tier_quota(
        environment="production",
        tier="pro",
        quota="uploads",
        limit=5,
        window_s=60,
        burst=5,
        expected_version=None,
        reason="uploads are slow",
        actor=BOB,
    )
    key = edited_key("tier", "pro", int(base_of(shown)))
    topic, history = Topic(page="edit", role="admin", key=key), hub.of("production").history
    editor = page_of(topic, current_live("production"), history)
    theirs = LivePage().take(draw(editor, SentFragments(), rev=1, announce="").whole)
    assert "<b>bob</b> changed" in theirs
    assert "uploads are slow" in theirs
    for other in (replace(topic, role="viewer"), replace(topic, key="x 1 y"), replace(topic, key="tier 0")):
        assert not page_of(other, current_live("production"), history).context.get("theirs")
    assert f"key=tier+{base_of(shown)}+pro" in shown
    assert '<div id="theirs" aria-live="polite"></div>' in shown
    answer = ada.post(PRO, {"base": base_of(shown), "limit.requests.limit": "900", "reason": WHY})
    assert answer.status_code == 302
    assert {row.name for row in TierQuota.objects.filter(tier__name="pro")} >= {"requests", "uploads"}


def test_two_admins_who_change_one_rate_choose_whose_to_keep(ada: Any) -> None:
    shown = page(ada.get(PRO))
    quota(700)
    typed = {
        "base": base_of(shown),
        "limit.requests.limit": "900",
        "own.title": "Professional",
        "reason": WHY,
    }
    conflict = page(ada.post(PRO, typed), 409)
    assert "bob changed the same values" in conflict
    assert 'value="900"' in conflict
    assert WHY in conflict
    assert requests_of_pro().limit == 700
    assert 'type="radio" name="choice.quotas.requests:rate" value="drop"' in conflict
    ada.post(PRO, {**typed, "choice.quotas.requests:rate": "drop"})
    assert (requests_of_pro().limit, Tier.objects.get(name="pro").title) == (700, "Professional")
    seen = re.search(r'name="seen" value="(\d+)"', conflict)
    assert seen
    ada.post(PRO, {**typed, "choice.quotas.requests:rate": "replace", "seen": seen[1]})
    assert requests_of_pro().limit == 900


def test_wrong_values_are_reported_at_their_fields_and_nothing_is_saved(ada: Any) -> None:
    shown = page(ada.get(PRO))
    before = Environment.objects.get().revision
    typed = {"base": base_of(shown), "limit.requests.limit": "many", "own.priority": "500", "reason": "x"}
    wrong = page(ada.post(PRO, typed), 422)
    assert 'id="f-limit-requests-limit_error">Enter a whole number from 0 to 1,000,000,000.' in wrong
    wrong = page(ada.post(PRO, {**typed, "limit.requests.limit": "900"}), 422)
    assert "Say why" in wrong
    wrong = page(ada.post(PRO, {**typed, "limit.requests.limit": "900", "reason": WHY}), 422)
    assert 'id="f-own-priority_error"' in wrong
    assert 'value="900"' in wrong
    nothing = page(ada.post(PRO, {"base": base_of(shown), "reason": WHY}), 422)
    assert "Nothing is changed" in nothing
    assert Environment.objects.get().revision == before


def test_a_quota_is_added_removed_and_scheduled(ada: Any) -> None:
    typed = {"base": base_of(page(ada.get(PRO))), "reason": WHY}
    new = {"new.name": "uploads", "new.limit": "5", "new.window_s": "60", "new.algorithm": "sliding_window"}
    ada.post(PRO, {**typed, **new})
    assert TierQuota.objects.get(name="uploads").algorithm == "sliding_window"
    typed["base"] = base_of(page(ada.get(PRO)))
    past = {"limit.requests.limit": "900", "starts": "2020-01-01T10:00"}
    assert 'id="f-starts_error"' in page(ada.post(PRO, {**typed, **past}), 422)
    tomorrow = f"{timezone.now() + timedelta(days=1):%Y-%m-%dT%H:%M}"
    soon = {"limit.requests.limit": "900", "starts": tomorrow}
    assert ada.post(PRO, {**typed, **soon})["Location"] == "/schedules"
    # The whole rate that the form showed: another number of it may change until then.
    rate = {"limit": 900, "window_s": 60, "burst": 100, "algorithm": "token_bucket"}
    assert Schedule.objects.get().document == {"tiers": {"pro": {"quotas": {"requests": rate}}}}
    refused = page(ada.post(PRO, {**typed, "keep.uploads": "remove", "starts": tomorrow}), 422)
    assert "A removal cannot be scheduled" in refused
    ada.post(PRO, {**typed, "keep.uploads": "remove"})
    assert not TierQuota.objects.filter(name="uploads").exists()
    incomplete = page(ada.post(PRO, {**typed, "new.name": "x"}), 422)
    assert 'id="f-new-limit_error"' in incomplete


def test_taking_the_value_of_another_admin_works_for_removals_and_names_with_dots() -> None:
    typed = Typed(
        fields={"quotas": {"api": {"limit": 1, "shadow": True}, "api.v1": {"limit": 2}}}, removed=["old"]
    )
    typed.drop(["quotas.api.v1", "quotas.api:rate", "quotas.old", "title"])
    assert (typed.fields, typed.removed) == ({"quotas": {"api": {"shadow": True}}}, [])
    typed.drop(["quotas.api:shadow"])
    assert not typed


def test_a_new_limit_is_saved_as_the_form_shows_it(ada: Any) -> None:
    name = Dependency.objects.values_list("name", flat=True).first()
    where = f"/edit/dependency?key={name}"
    shown = page(ada.get(where))
    new = re.findall(r'<select id="f-new-(\w+)".*?</select>', shown, re.DOTALL)
    assert {"algorithm", "failure_policy", "shadow"} <= set(new)
    start = re.search(r'id="f-new-algorithm".*?value="(\w+)" selected', shown, re.DOTALL)
    assert start
    assert start[1] == "sliding_window"
    typed = {
        "base": base_of(shown),
        "new.name": "bucket",
        "new.limit": "10",
        "new.window_s": "1",
        "new.burst": "3",
        "new.algorithm": "token_bucket",
        "new.failure_policy": "fail_open",
        "new.shadow": "no",
        "reason": WHY,
    }
    assert ada.post(where, typed).status_code == 302
    row = Dependency.objects.get(name=name).vendor_limits.get(name="bucket")
    assert (row.algorithm, row.failure_policy, row.burst) == ("token_bucket", "fail_open", 3)


def test_a_scheduled_edit_is_checked_like_one_that_is_saved_now(ada: Any) -> None:
    tomorrow = f"{timezone.now() + timedelta(days=1):%Y-%m-%dT%H:%M}"
    typed = {"name": "pro", "own.title": "Another", "starts": tomorrow, "reason": WHY}
    assert "already exists" in page(ada.post("/edit/tier?new", typed), 422)
    base = base_of(page(ada.get(PRO)))
    quota(700)
    later = {"base": base, "limit.requests.limit": "900", "starts": tomorrow, "reason": WHY}
    assert "bob changed the same values" in page(ada.post(PRO, later), 409)
    assert not Schedule.objects.exists()


def test_a_tier_is_added_and_deleted_by_its_name(ada: Any) -> None:
    assert "Add tier" in page(ada.get("/tiers"))
    page(ada.get("/edit/tier?new"))
    missing = page(ada.post("/edit/tier?new", {"name": "", "reason": WHY}), 422)
    assert "Enter a name." in missing
    typed = {"name": "gold", "own.title": "Gold", "own.priority": "80", "reason": WHY}
    answer = ada.post("/edit/tier?new", typed)
    assert answer["Location"].startswith("/edit/tier?key=gold&saved=")
    assert Tier.objects.get(name="gold").priority == 80
    assert "already exists" in page(ada.post("/edit/tier?new", typed), 422)
    gold = "/edit/tier?key=gold"
    wrong = page(ada.post(gold, {"act": "remove", "base": head(), "confirm": "silver", "reason": WHY}), 422)
    assert "Type gold exactly" in wrong
    used = page(ada.post(PRO, {"act": "remove", "base": head(), "confirm": "pro", "reason": WHY}), 422)
    assert "still has tenants" in used
    stale = {"act": "remove", "base": base_of(page(ada.get(gold))), "confirm": "gold", "reason": WHY}
    edits.set_tier_quota(
        environment="production",
        tier="gold",
        quota="requests",
        limit=1,
        window_s=60,
        expected_version=None,
        reason=WHY,
        actor=BOB,
    )
    assert ada.post(gold, stale)["Location"] == gold
    assert "Nothing was deleted: bob changed gold meanwhile" in page(ada.get(gold))
    assert ada.post(gold, {**stale, "base": head()})["Location"].startswith("/tiers")
    assert not Tier.objects.filter(name="gold").exists()


def test_a_new_tenant_has_the_tier_that_a_person_chose(ada: Any) -> None:
    shown = page(ada.get("/edit/tenant?new"))
    assert re.search(r'name="own.tier".*?>\s*<option value="" selected>Choose a tier', shown)
    for typed in ({}, {"own.tier": ""}):
        missing = page(ada.post("/edit/tenant?new", {"name": "globex", "reason": WHY} | typed), 422)
        assert 'id="f-own-tier_error">Choose a tier.' in missing
    assert not Tenant.objects.filter(key="globex").exists()
    quota(120)
    preview = page(ada.post("/edit/tenant/preview?new", {"name": "globex", "own.tier": "pro"}))
    assert "120 per min, burst 100 (tier pro)" in text_of(preview), (
        "what it may do is shown before it is added"
    )


def test_moving_a_tenant_shows_its_quotas_before_and_after(ada: Any) -> None:
    quota(120)
    edits.set_tier_quota(
        environment="production",
        tier="free",
        quota="requests",
        limit=4,
        window_s=60,
        burst=4,
        expected_version=None,
        reason=WHY,
        actor=BOB,
    )
    typed = {"base": head(), "own.tier": "free", "reason": WHY}
    preview = page(ada.post("/edit/tenant/preview?key=acme-retail", typed))
    assert "requests: 120 per min, burst 100 → 4 per min, burst 4 (-97 %, burst -96 %)" in text_of(preview)
    assert 'class="st-word st-warn">4 per min' in preview


def test_an_empty_burst_is_as_large_as_the_limit(ada: Any) -> None:
    new = {"new.name": "exports", "new.limit": "40", "new.window_s": "60", "new.burst": ""}
    ada.post(PRO, new | {"base": head(), "reason": WHY})
    assert TierQuota.objects.get(tier__name="pro", name="exports").burst == 40
    daily = new | {"new.name": "daily", "new.algorithm": "fixed_window", "new.period": "day"}
    ada.post(PRO, daily | {"base": head(), "reason": WHY})
    assert TierQuota.objects.get(tier__name="pro", name="daily").burst == 1, "only a token bucket has a burst"
    typed = {"limit.exports.limit": "30", "limit.exports.burst": "", "base": head(), "reason": WHY}
    ada.post(PRO, typed)
    assert TierQuota.objects.get(tier__name="pro", name="exports").burst == 30


def test_a_tenant_is_added_moved_suspended_and_deleted(ada: Any) -> None:
    typed = {"name": "globex", "own.tier": "pro", "own.title": "Globex", "reason": WHY}
    assert ada.post("/edit/tenant?new", typed)["Location"].startswith("/tenant?key=globex&saved=")
    link = "/edit/tenant?key=globex&amp;own.suspended=yes"
    assert link in page(ada.get("/tenant?key=globex"))
    shown = page(ada.get(link.replace("&amp;", "&")))
    assert '<input type="hidden" name="own.suspended" value="yes">' in shown
    assert "Suspended" in shown.partition('id="preview"')[2]
    where = "/edit/tenant?key=globex"
    ada.post(where, {"base": base_of(shown), "own.suspended": "yes", "own.tier": "free", "reason": WHY})
    row = Tenant.objects.select_related("tier").get(key="globex")
    assert (row.suspended, row.tier.name) == (True, "free")
    assert "own.suspended=no" in page(ada.get("/tenant?key=globex"))
    ada.post(where, {"act": "remove", "base": head(), "confirm": "globex", "reason": WHY})
    assert Tenant.objects.get(key="globex").deleted


def test_suspend_and_resume_are_short_forms_that_say_what_callers_get(ada: Any) -> None:
    """Suspend opened twenty fields, with a button "Save changes" beside "Delete"."""
    team: dict[str, Any] = {"environment": "production", "tenant": "team", "reason": WHY, "actor": BOB}
    edits.create_tenant(tier="pro", **team)
    edits.move_tenant(parent="acme-retail", expected_version=None, **team)
    link = "/edit/tenant?key=acme-retail&own.suspended="
    html = page(ada.get(f"{link}yes"))
    shown = text_of(html)
    assert "Suspend acme-retail" in shown
    assert "refuse every request of acme-retail with status 403, until an admin resumes" in shown
    assert "The same applies to its 1 child tenant." in shown
    assert "Suspended: no → yes" in shown
    assert "Suspend tenant" in shown
    for other in ("own.tier", "own.title", "limit.requests.limit", "new.name", "confirm"):
        assert f'name="{other}"' not in html, other
    assert "Save changes" not in shown
    sent = {"base": base_of(html), "own.suspended": "yes"}
    refused = page(ada.post(f"{link}yes", sent | {"reason": ""}), 422)
    assert "Suspend tenant" in refused
    assert 'id="f-reason_error"' in refused
    assert 'name="own.tier"' not in refused
    ada.post(f"{link}yes", sent | {"reason": WHY})
    assert Tenant.objects.get(key="acme-retail").suspended
    assert "acme-retail is suspended already." in text_of(page(ada.get(f"{link}yes")))
    html = page(ada.get(f"{link}no"))
    assert "allow requests of acme-retail again, within its quotas (tier pro)" in text_of(html)
    assert "Resume tenant" in html
    ada.post(f"{link}no", {"base": base_of(html), "own.suspended": "no", "reason": WHY})
    assert not Tenant.objects.get(key="acme-retail").suspended
    assert "acme-retail is not suspended." in text_of(page(ada.get(f"{link}no")))
    assert 'name="own.tier"' in page(ada.get(f"{link}perhaps")), "the editor, which says what is wrong"


def test_where_an_edit_needs_approval_suspend_proposes(ada: Any) -> None:
    set_approvals(environment="production", needed=1, reason=WHY, actor=BOB)
    link = "/edit/tenant?key=acme-retail&own.suspended=yes"
    html = page(ada.get(link))
    assert "Propose to suspend tenant" in html
    ada.post(link, {"base": base_of(html), "own.suspended": "yes", "reason": WHY})
    assert ChangeRequest.objects.filter(state="open").count() == 1
    assert not Tenant.objects.get(key="acme-retail").suspended


def test_a_vendor_limit_and_the_owner_of_a_dependency_are_changed(ada: Any) -> None:
    name = Dependency.objects.values_list("name", flat=True).first()
    where = f"/edit/dependency?key={name}"
    typed = {
        "base": base_of(page(ada.get(where))),
        "own.owner": "payments team",
        "new.name": "contract",
        "new.limit": "100",
        "new.window_s": "1",
        "new.algorithm": "sliding_window",
        "new.failure_policy": "reserved",
        "reason": WHY,
    }
    assert ada.post(where, typed)["Location"].startswith(f"/breakers/{name}?saved=")
    row = Dependency.objects.get(name=name)
    assert row.owner == "payments team"
    assert row.vendor_limits.get(name="contract").limit == 100


def test_the_environment_has_an_editor_of_its_own(ada: Any) -> None:
    shown = page(ada.get("/edit/environment"))
    typed = {
        "base": base_of(shown),
        "own.tuning.ramp_ms": "9000",
        "new.name": "by-ip",
        "new.limit": "5",
        "new.window_s": "60",
        "new.per": "ip",
        "reason": WHY,
    }
    assert ada.post("/edit/environment", typed).status_code == 302
    row = Environment.objects.get()
    assert row.tuning["ramp_ms"] == 9000
    assert list(row.subject_limits.get().per) == ["ip"]
    assert 'href="/requests#approval-rule"' in shown, "where an admin looks for the switch of approvals"
    assert 'id="approval-rule"' in page(ada.get("/requests"))
    assert "delete" not in shown.lower().partition("<main")[2]


def test_only_admins_edit(log_in: Any, production: str) -> None:
    for person in ("vera", "olga"):
        client = log_in(person)
        assert "/edit/" not in page(client.get("/tiers"))
        for kind in ("tier", "tenant", "dependency", "environment"):
            assert client.get(f"/edit/{kind}?key=pro").status_code == 403
            assert client.post(f"/edit/{kind}?key=pro", {"reason": WHY}).status_code == 403
            assert client.post(f"/edit/{kind}/preview?key=pro").status_code == 403
        assert client.post("/revisions/1/undo").status_code == 403
    client = log_in("ada")
    assert client.get("/edit/colour?key=x").status_code == 404
    assert client.get("/edit/tier?key=none").status_code == 404


def test_taking_every_value_of_the_other_person_saves_nothing_and_says_so(ada: Any) -> None:
    base = head()
    quota(700)
    answer = ada.post(
        PRO, {"base": base, "limit.requests.limit": "900", "drop": "quotas.requests:rate", "reason": WHY}
    )
    assert answer["Location"] == PRO
    assert "the values of the other person stay" in page(ada.get(PRO))
    assert requests_of_pro().limit == 700


def test_taking_the_value_of_a_setting_leaves_a_limit_of_that_name_removed() -> None:
    typed = Typed(fields={"tuning": {"ramp_ms": 9}}, removed=["ramp_ms"])
    typed.drop(["tuning.ramp_ms"])
    assert typed.removed == ["ramp_ms"]


def test_limits_with_dots_and_dashes_have_inputs_of_their_own() -> None:
    names = ("limit.a.b.limit", "limit.a-b.limit", "keep.a.b", "keep.a-b", "own.tuning.ramp_ms")
    ids = [Control(name=name, label="", value="").id for name in names]
    assert ids == [
        "f-limit-a.b-limit",
        "f-limit-a-b-limit",
        "f-keep-a.b",
        "f-keep-a-b",
        "f-own-tuning-ramp_ms",
    ]


def test_a_unit_lists_only_its_changed_values() -> None:
    before = {"limit": 10, "window_s": 60, "burst": 1}
    lines = change_words(Changed("template", "standard", before, {**before, "limit": 20}))
    assert [(line.before, line.after) for line in lines] == [("10 per min, burst 1", "20 per min, burst 1")]
