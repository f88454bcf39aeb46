"""The editor of a tenant: quotas of its tier, temporary and scheduled quotas, templates, wrong values."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.editing import edits
from controlplane.policies.models import Environment, SubjectLimit, Tenant, TenantQuota
from controlplane.schedules.models import Schedule
from tests.dashboard.editor_steps import ACME, WHY, base_of, head, page, quota
from tests.dashboard.shown import text_of
from tests.people import BOB

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ada(log_in: Any, production: str) -> Any:
    quota()
    return log_in("ada")


def acme_quota(limit: int, **more: Any) -> int:
    return edits.set_tenant_quota(
        environment="production",
        tenant="acme-retail",
        quota="requests",
        limit=limit,
        window_s=60,
        burst=1,
        expected_version=None,
        reason=WHY,
        actor=BOB,
        **more,
    )


def acme_requests() -> TenantQuota:
    return TenantQuota.objects.get(tenant__key="acme-retail", name="requests")


def test_a_quota_of_the_tier_becomes_one_of_the_tenant_by_typing_in_it(ada: Any) -> None:
    quota(600, failure_policy="fail_closed", warn_percent=80)
    shown = page(ada.get(ACME))
    assert "of tier pro; a value that you type makes it a quota of this tenant" in shown
    typed = {"base": base_of(shown), "limit.requests.limit": "900", "reason": WHY}
    preview = text_of(page(ada.post("/edit/tenant/preview?key=acme-retail", typed)))
    assert "requests: 600 per min, burst 100 (tier pro) → 900 per min, burst 100 (+50 %)" in preview
    ada.post(ACME, typed)
    row = acme_requests()
    assert (row.limit, row.burst, row.failure_policy, row.warn_percent) == (900, 100, "fail_closed", 80)
    back = {"base": head(), "keep.requests": "remove", "reason": WHY}
    preview = text_of(page(ada.post("/edit/tenant/preview?key=acme-retail", back)))
    assert "requests: 900 per min, burst 100 → 600 per min, burst 100 (tier pro) (-33 %)" in preview
    ada.post(ACME, back)
    assert not TenantQuota.objects.exists()


def test_a_quota_of_the_tier_is_saved_as_it_was_shown_or_conflicts(ada: Any) -> None:
    quota(600, failure_policy="reserved", reserved_percent=20)
    typed = {"base": head(), "limit.requests.limit": "900", "reason": WHY}
    quota(500, window_s=30, failure_policy="fail_closed", shadow=True)
    shown = page(ada.post(ACME, typed), 409)
    assert "bob changed the same values" in shown
    for column in ("limit", "window", "without Redis", "over the limit"):
        assert f"requests, {column} (tier pro)" in shown
    assert not TenantQuota.objects.exists()
    ada.post(ACME, {**typed, "drop": "quotas.requests"})
    assert not TenantQuota.objects.exists()
    ada.post(ACME, {**typed, "replace": "quotas.requests", "seen": head()})
    row = acme_requests()
    assert (row.limit, row.window_s, row.burst, row.shadow) == (900, 60, 100, False)
    assert (row.failure_policy, row.reserved_percent) == ("reserved", 20)


def test_a_calendar_quota_of_the_tier_becomes_a_bucket_of_the_tenant(ada: Any) -> None:
    quota(600, algorithm="fixed_window", period="day", window_s=86_400, burst=1)
    typed = {"limit.requests.algorithm": "token_bucket", "limit.requests.window_s": "60"}
    assert ada.post(ACME, {**typed, "base": head(), "reason": WHY}).status_code == 302
    row = acme_requests()
    assert (row.algorithm, row.period, row.limit, row.window_s) == ("token_bucket", "", 600, 60)


def test_a_temporary_quota_says_when_it_ends_and_what_applies_then(ada: Any) -> None:
    acme_quota(5)
    ends = (timezone.now() + timedelta(days=1)).replace(second=7)
    acme_quota(50, expires_at=ends)
    shown = page(ada.get(ACME))
    assert f"temporary: ends {ends:%-d %b %H:%M} UTC, then 5 per min" in shown
    typed = {"base": base_of(shown), "limit.requests.expires_at": f"{ends:%Y-%m-%dT%H:%M}"}
    raised = {**typed, "limit.requests.limit": "60", "reason": WHY}
    preview = page(ada.post("/edit/tenant/preview?key=acme-retail", raised))
    assert f"requests is temporary: ends {ends:%-d %b %H:%M} UTC, then 5 per min, burst" in preview
    ada.post(ACME, raised)
    row = acme_requests()
    assert (row.limit, row.expires_at, (row.returns_to or {}).get("limit")) == (60, ends, 5)


def test_a_quota_becomes_temporary_and_permanent_in_the_editor(ada: Any) -> None:
    acme_quota(5)
    ends = (timezone.now() + timedelta(days=1)).replace(second=0, microsecond=0)
    named = "limit.requests.expires_at"
    typed = {"limit.requests.limit": "60", named: f"{ends:%Y-%m-%dT%H:%M}", "reason": WHY}
    wrong = page(ada.post(ACME, {**typed, "base": head(), named: "tomorrow"}), 422)
    assert 'id="f-limit-requests-expires_at_error"' in wrong
    past = page(ada.post(ACME, {**typed, "base": head(), named: "2020-01-01T00:00"}), 422)
    assert "Choose a time in the future." in past
    assert ada.post(ACME, {**typed, "base": head()}).status_code == 302
    row = acme_requests()
    assert (row.limit, row.expires_at, (row.returns_to or {}).get("limit")) == (60, ends, 5)
    assert "expiring override" in page(ada.get("/tenant/effective?key=acme-retail"))
    assert ada.post(ACME, {"base": head(), named: "", "reason": WHY}).status_code == 302
    row = acme_requests()
    assert (row.limit, row.expires_at, row.returns_to) == (60, None, None)


def test_13_1_the_preview_says_what_a_changed_quota_allows_without_redis(ada: Any) -> None:
    quota(600, failure_policy="local_share")
    acme_quota(60, failure_policy="local_share")
    typed = {"base": head(), "limit.requests.limit": "30", "limit.requests.burst": "7", "reason": WHY}
    for address in ("tenant/preview?key=acme-retail", "tier/preview?key=pro"):
        preview = text_of(page(ada.post(f"/edit/{address}", typed)))
        assert "requests without Redis: Each of 3 pods allows 10 of 30." in preview
    unchanged = {"base": head(), "reason": WHY}
    assert "without Redis" not in text_of(page(ada.post("/edit/tenant/preview?key=acme-retail", unchanged)))
    typed = {"base": head(), "keep.requests": "remove", "reason": WHY}
    assert "without Redis" not in text_of(page(ada.post("/edit/tenant/preview?key=acme-retail", typed)))


def test_13_1_the_preview_of_a_temporary_quota_says_what_it_allows_without_redis(ada: Any) -> None:
    acme_quota(60, failure_policy="fail_closed")
    ends = timezone.now() + timedelta(days=1)
    typed = {"limit.requests.limit": "90", "limit.requests.expires_at": f"{ends:%Y-%m-%dT%H:%M}"}
    preview = text_of(
        page(ada.post("/edit/tenant/preview?key=acme-retail", {**typed, "base": head(), "reason": WHY}))
    )
    assert "requests without Redis:" in preview


def test_a_quota_is_saved_without_a_script_and_the_page_shows_its_rollout(ada: Any) -> None:
    answer = ada.post(ACME, {"base": head(), "limit.requests.limit": "50", "reason": WHY, "act": "save"})
    assert answer.status_code == 302
    assert acme_requests().limit == 50
    shown = text_of(page(ada.get(answer["Location"])))
    assert f"Saved as revision {head()}." in shown
    assert f"The last change of this tenant is revision {head()}: 3 of 3 pods have applied it" in shown


@pytest.mark.parametrize(
    ("column", "typed", "said"),
    [
        ("limit", "-1", "Enter a whole number from 0 to 1,000,000,000."),
        ("limit", "1.5", "Enter a whole number"),
        ("limit", "NaN", "Enter a whole number"),
        ("limit", "9" * 18, "Enter a whole number from 0 to 1,000,000,000."),
        ("limit", "9" * 30, "Enter a whole number"),
        ("limit", "", "Enter a whole number"),
        ("window_s", "0", "Enter a whole number from 1 to 34,560,000."),
        ("burst", "many", "Enter a whole number"),
        ("shadow", "perhaps", "Choose one of the values."),
        ("expires_at", "soon", "Enter a date and a time"),
        ("expires_at", "2020-01-01T00:00", "Choose a time in the future."),
        ("expires_at", "2999-01-01T00:00", "Choose a time in the next 400 days."),
    ],
)
def test_a_wrong_value_is_reported_at_its_field_and_nothing_typed_is_lost(
    ada: Any, column: str, typed: str, said: str
) -> None:
    form = {"limit": "50", "window_s": "30", "burst": "5", column: typed}
    sent = {f"limit.requests.{name}": text for name, text in form.items()}
    shown = page(ada.post(ACME, {**sent, "base": head(), "reason": WHY}), 422)
    assert f'id="f-limit-requests-{column}_error"' in shown
    assert said in shown
    assert 'aria-invalid="true"' in shown
    for name in form.keys() - {"shadow"}:
        assert f'name="limit.requests.{name}" value="{form[name]}"' in shown
    assert f">{WHY}</textarea>" in shown
    assert not TenantQuota.objects.exists()


@pytest.mark.parametrize(
    ("starts", "said"),
    [("2020-01-01T00:00", "Choose a time in the future."), ("soon", "Enter a date and a time")],
)
def test_a_wrong_start_is_reported_and_nothing_is_scheduled(ada: Any, starts: str, said: str) -> None:
    typed = {"base": head(), "limit.requests.limit": "50", "starts": starts, "reason": WHY}
    shown = page(ada.post(ACME, typed), 422)
    assert said in shown
    assert 'id="f-starts_error"' in shown
    assert not Schedule.objects.exists()


def test_a_quota_that_starts_later_and_ends_is_scheduled(ada: Any) -> None:
    day = timezone.now().replace(second=0, microsecond=0) + timedelta(days=1)
    typed = {
        "base": head(),
        "limit.requests.limit": "900",
        "limit.requests.expires_at": f"{day + timedelta(days=2):%Y-%m-%dT%H:%M}",
        "starts": f"{day:%Y-%m-%dT%H:%M}+02:00",
        "reason": WHY,
    }
    assert ada.post(ACME, typed)["Location"] == "/schedules"
    assert not TenantQuota.objects.exists()
    planned = Schedule.objects.get()
    assert planned.due_at == day - timedelta(hours=2)
    quota = planned.document["tenants"]["acme-retail"]["quotas"]["requests"]
    assert (quota["limit"], quota["expires_at"]) == (900, (day + timedelta(days=2)).isoformat())
    assert "acme-retail" in page(ada.get("/schedules"))


def test_two_admins_on_one_quota_see_both_values_and_nothing_typed_is_lost(ada: Any) -> None:
    base = head()
    acme_quota(70)
    typed = {"base": base, "limit.requests.limit": "90", "reason": "Typed by ada, slowly"}
    shown = page(ada.post(ACME, typed), 409)
    assert "bob changed the same values" in shown
    assert 'name="limit.requests.limit" value="90"' in shown
    assert "Typed by ada, slowly" in shown
    assert acme_requests().limit == 70
    seen = re.search(r'name="seen" value="(\d+)"', shown)
    assert seen
    ada.post(ACME, {**typed, "replace": "quotas.requests", "seen": seen[1]})
    row = acme_requests()
    # With the values that the form showed, and not those of bob.
    assert (row.limit, row.window_s, row.burst, row.failure_policy) == (90, 60, 100, "fail_open")


def test_the_part_spent_without_redis_is_edited(ada: Any) -> None:
    acme_quota(600, failure_policy="reserved", reserved_percent=50)
    named = "limit.requests.reserved_percent"
    assert f'name="{named}" value="50"' in page(ada.get(ACME))
    assert ada.post(ACME, {"base": head(), named: "0", "reason": WHY}).status_code == 302
    assert acme_requests().reserved_percent == 0
    # A form without the field keeps the value; an empty field restores the fleet's default.
    ada.post(ACME, {"base": head(), "limit.requests.limit": "500", "reason": WHY})
    assert acme_requests().reserved_percent == 0
    assert "reserved_percent" in page(ada.get("/tenant/effective?key=acme-retail"))
    assert ada.post(ACME, {"base": head(), named: "", "reason": WHY}).status_code == 302
    assert acme_requests().reserved_percent == -1
    assert "the fleet default" in page(ada.get(ACME))
    for wrong in ("101", "-2", "half"):
        shown = page(ada.post(ACME, {"base": head(), named: wrong, "reason": WHY}), 422)
        assert 'id="f-limit-requests-reserved_percent_error"' in shown
        assert f'value="{wrong}"' in shown


def test_a_quota_follows_a_template_and_overrides_only_what_is_typed(ada: Any) -> None:
    values = {"limit": 900, "window_s": 60, "burst": 90}
    edits.set_template(
        environment="production", template="standard", expected_version=0, reason=WHY, actor=BOB, **values
    )
    follow = {"base": head(), "limit.requests.template": "standard", "reason": WHY}
    assert ada.post(ACME, follow).status_code == 302
    row = acme_requests()
    assert (row.limit, row.burst, row.template, row.own) == (900, 90, "standard", [])
    every = {"limit.requests.limit": "950", "limit.requests.window_s": "60", "limit.requests.burst": "90"}
    assert ada.post(ACME, {"base": head(), **every, "reason": WHY}).status_code == 302
    assert acme_requests().own == ["limit"]
    shown = page(ada.get(ACME))
    assert "follows template standard, except limit; typed values override it" in shown
    assert "Use every value of template standard" in shown
    back = {"base": head(), "keep.requests": "follow", "reason": WHY}
    assert "950" in page(ada.post("/edit/tenant/preview?key=acme-retail", back))
    assert ada.post(ACME, back).status_code == 302
    assert (acme_requests().limit, acme_requests().own) == (900, [])
    assert "Use every value" not in page(ada.get(ACME))
    alone = {"base": head(), "limit.requests.template": "", "reason": WHY}
    assert ada.post(ACME, alone).status_code == 302
    row = acme_requests()
    assert (row.limit, row.burst, row.template) == (900, 90, "")


def test_a_new_quota_with_a_template_and_an_empty_burst_has_the_burst_of_the_template(ada: Any) -> None:
    """The editor stored the limit as the burst of the tenant, and the template lost its effect."""
    values = {"limit": 900, "window_s": 60, "burst": 90}
    edits.set_template(
        environment="production", template="standard", expected_version=0, reason=WHY, actor=BOB, **values
    )
    new = {"new.name": "exports", "new.template": "standard", "new.burst": "", "base": head(), "reason": WHY}
    assert ada.post(ACME, new).status_code == 302
    row = TenantQuota.objects.get(name="exports")
    assert (row.limit, row.burst, row.own) == (900, 90, [])


def test_what_a_quota_counts_stays_when_it_follows_a_template(ada: Any) -> None:
    values = {"limit": 900, "window_s": 60, "burst": 90, "endpoints": ["GET /all"]}
    edits.set_template(
        environment="production", template="standard", expected_version=0, reason=WHY, actor=BOB, **values
    )
    acme_quota(5, per=["user"], endpoints=["POST /v1/*"])
    follow = {"base": head(), "limit.requests.template": "standard", "reason": WHY}
    assert ada.post(ACME, follow).status_code == 302
    row = acme_requests()
    assert (row.limit, row.per, row.endpoints, row.own) == (
        900,
        ["user"],
        ["POST /v1/*"],
        ["per", "endpoints"],
    )
    caller = {
        "new.name": "by-ip",
        "new.limit": "5",
        "new.window_s": "60",
        "new.per": "ip",
        "base": head(),
        "reason": WHY,
    }
    assert ada.post("/edit/environment", caller).status_code == 302
    follow = {"base": head(), "limit.by-ip.template": "standard", "reason": WHY}
    assert ada.post("/edit/environment", follow).status_code == 302
    limit = SubjectLimit.objects.get(name="by-ip")
    assert (limit.limit, limit.per, limit.template) == (900, ["ip"], "standard")


def test_a_preview_with_a_removal_says_that_it_is_not_replayed(ada: Any) -> None:
    typed = {"base": head(), "keep.requests": "remove", "own.priority": "9", "reason": WHY}
    preview = text_of(page(ada.post("/edit/tier/preview?key=pro", typed)))
    assert "Not replayed on the last days: a limit is removed." in preview
    assert "use this tier" in preview or "uses this tier" in preview
    kept = {**typed, "keep.requests": "keep"}
    assert "Not replayed" not in text_of(page(ada.post("/edit/tier/preview?key=pro", kept)))


def test_a_hand_made_choice_of_theirs_is_no_error_of_the_server(ada: Any) -> None:
    typed = {"base": head(), "own.tuning.ramp_ms": "9000", "drop": "tuning.ramp_ms:x", "reason": WHY}
    assert ada.post("/edit/environment", typed).status_code == 302
    assert Environment.objects.get(pk="production").tuning["ramp_ms"] == 9_000


@pytest.mark.parametrize(
    "at", ["limit.requests.limit", "limit.requests.template", "limit.requests.endpoints"]
)
def test_a_link_opens_the_editor_with_the_focus_in_one_field(ada: Any, at: str) -> None:
    shown = page(ada.get(f"{ACME}&at={at}"))
    assert re.findall(r'name="([^"]+)"[^>]* autofocus', shown) == [at]
    assert ('<details class="more-fields" open>' in shown) == (at != "limit.requests.limit")
    assert " autofocus" not in page(ada.get(ACME))


def test_a_tenant_is_not_resumed_by_a_wrong_word(ada: Any) -> None:
    ada.post(ACME, {"base": head(), "own.suspended": "yes", "reason": WHY})
    shown = page(ada.post(ACME, {"base": head(), "own.suspended": "perhaps", "reason": WHY}), 422)
    assert 'id="f-own-suspended_error">Choose one of the values.' in shown
    assert Tenant.objects.get(key="acme-retail").suspended


def test_a_new_quota_with_a_wrong_name_or_value_is_reported_at_its_field(ada: Any) -> None:
    new = {"new.name": "exports", "new.limit": "5", "new.window_s": "60", "base": head(), "reason": WHY}
    for column, typed, said in (
        ("name", "no name", "Use 1 to 64 letters"),
        ("limit", "-5", "Enter a whole number from 0 to 1,000,000,000."),
        ("template", "unknown", "There is no template &#x27;unknown&#x27;."),
    ):
        shown = page(ada.post(ACME, new | {f"new.{column}": typed}), 422)
        assert f'id="f-new-{column}_error">{said}' in shown
        assert f'value="{typed}"' in shown or column == "template"


def test_a_refused_deletion_keeps_what_was_typed_in_its_own_form(ada: Any) -> None:
    typed = {"act": "remove", "base": head(), "confirm": "acme", "reason": "They left us"}
    shown = page(ada.post(ACME, typed), 422)
    form, deletion = shown.split('id="delete"')
    assert "Type acme-retail exactly" in deletion
    assert 'name="confirm" value="acme"' in deletion
    assert ">They left us</textarea>" in deletion
    assert "They left us" not in form
    short = page(ada.post(ACME, typed | {"confirm": "acme-retail", "reason": "x"}), 422)
    form, deletion = short.split('id="delete"')
    assert "Say why, in 8 characters or more" in deletion
    assert 'id="f-reason_error"' not in form
