"""What people type into forms, and what each form says then: the answer names the next step."""

from typing import Any

import pytest
from editor_steps import base_of, bulk_shown
from form_reading import forms_to_fill, page_of

from dashboard.forms import WholeNumberField
from dashboard.views.tenants import bulk

pytestmark = pytest.mark.django_db(transaction=True)

WHY = "CHG-4821 vendor maintenance"
ROCKET = "\U0001f680"
HUGE = "9" * 25
SLUG = "Use 1 to 64 letters, digits"
WHEN = "Enter a date and a time from 2000 to 2999"
#: Numbers as people type them, which no whole number is.
NOT_WHOLE = ("1,5", "1.5", "1k", "10 min", "-1", HUGE, ROCKET, "1\n2", "1 000", "50%", "+5", "1,00")

MUTE = {"act": "add", "rule": "lag", "minutes": "60"}
ROUTE = {"act": "put", "name": "payments", "receivers": "none"}
DRILL = {"act": "begin", "kind": "slow", "minutes": "5", "who": "percent", "percent": "50"}
RULE = {"act": "save", "rule": "429", "for_s": "60", "enabled": "on"}
BULK = {"act": "save", "tier": "pro", "what": "quota", "quota": "requests", "limit": "5", "window_s": "5"}
BUDGET = {"whose": "tenant", "tenant": "acme-retail", "limit": "10", "period": "day", "counts": "requests"}
TEMPLATE = {"name": "partner", "limit": "10", "window_s": "60", "algorithm": "token_bucket", "shadow": "no"}
TEMPLATE |= {"failure_policy": "local_share"}
OVERRIDE = {"act": "forced_open", "lasts": "minutes", "minutes": "5"}
SETTINGS = "/breakers/payments-api/settings"
FREEZE = {"act": "freeze"}
SCHEDULE = {"act": "new", "plan": "tenants: {acme-retail: {tier: free}}"}
TIER, TENANT = "/edit/tier?key=pro", "/edit/tenant?new"
NEW_QUOTA = {"act": "save", "new.limit": "5", "new.window_s": "5"}
NEW_TENANT = {"act": "save", "name": "zz", "own.tier": "pro"}
RECEIVER = {"act": "add", "name": "pager", "url": "https://192.0.2.7/x", "least_level": "2"}
VIEW = {"act": "save", "name": "mine", "address": "/tenants"}

#: Address, what else is typed, the field, what is typed there, and the answer beside it.
SAID: list[tuple[str, dict[str, str], str, tuple[str, ...], str]] = [
    ("/alerts/mutes", MUTE, "minutes", NOT_WHOLE, "Enter a whole number from 1 to 10,080."),
    ("/alerts/mutes", MUTE, "starts_at", ("31.01.2030 18:00", "tomorrow", "18:00"), WHEN),
    ("/alerts/mutes", MUTE, "starts_at", ("2020-01-01T00:00",), "Choose a start from now to 90 days"),
    ("/alerts/mutes", MUTE, "pod", ("a b", ROCKET, "a\nb"), "Use the name of a pod"),
    ("/alerts/routes", ROUTE, "place", ("1,5", "1k"), "Enter a whole number from 1 to 50."),
    ("/alerts/routes", ROUTE, "name", ("a b", ROCKET, "a\nb"), SLUG),
    ("/alerts/routes", ROUTE | {"ends": "17:30"}, "begins", ("9", "9.30", "25:00"), "Enter two different"),
    ("/alerts/routes", ROUTE, "zone", ("Berlin", "UTC+1"), "Use the name of a time zone, like Europe"),
    ("/alerts/receivers", RECEIVER, "url", ("example.com", "mailto:x"), "Enter a URL that begins with https"),
    ("/alerts/receivers", RECEIVER, "url", ("https://a b.c",), "Use plain characters without blanks"),
    ("/alerts/rules?edit=429", RULE, "warning", ("1,5", "1k", ROCKET), "Enter a number, such as 2 or 0.5"),
    ("/alerts/rules?edit=429", RULE, "warning", ("-1", "1000"), "Enter a number from 0 to 100 %."),
    ("/alerts/rules?edit=429", RULE, "for_s", ("10 min", "-1"), "Enter a whole number from 0 to 3,600."),
    ("/drills", DRILL, "minutes", NOT_WHOLE, "Enter a whole number from 1 to 60."),
    ("/drills", DRILL, "percent", ("50%", "0,5", "101"), "Enter a whole number from 1 to 100."),
    ("/edit-freeze", FREEZE, "until", ("31.01.2030 18:00", "1 h"), WHEN),
    ("/edit-freeze", FREEZE, "until", ("2020-01-01T00:00",), "Choose a time in the next 31 days."),
    ("/schedules", SCHEDULE, "due_at", ("tomorrow",), WHEN),
    ("/schedules", SCHEDULE, "due_at", ("2999-01-01T00:00",), "Choose a time at most 400 days from now."),
    (
        "/schedules",
        SCHEDULE | {"due_at": "2020-01-01T00:00"},
        "plan",
        (ROCKET,),
        "line 1: Begin with a section",
    ),
    ("/tenants/bulk", BULK, "limit", NOT_WHOLE, "Enter a whole number from 0 to 1,000,000,000."),
    ("/tenants/bulk", BULK, "quota", ("a b", ROCKET), SLUG),
    ("/budgets/new", BUDGET, "limit", NOT_WHOLE, "Enter a whole number from 0 to 1,000,000,000."),
    ("/budgets/new", BUDGET, "tenant", ("a b", ROCKET), "There is no tenant"),
    ("/budgets/new", BUDGET, "time_zone", ("Berlin",), "Use a name of the time zone database, like Europe"),
    (TIER, {"act": "save"}, "own.priority", NOT_WHOLE, "Enter a whole number from 0 to 100."),
    (TIER, {"act": "save"}, "own.wait_ms", ("1 s", "-1"), "Enter a whole number from 0 to 60,000."),
    (TIER, NEW_QUOTA, "new.name", ("a b", ROCKET), "Use 1 to 64"),
    (TIER, {"act": "save", "new.limit": "5"}, "new.name", ("", "  "), "Enter a name for the quota"),
    (TENANT, NEW_TENANT, "name", ("a\nb", "x\u200by"), "Use "),
    (TENANT, NEW_TENANT, "own.parent", ("a b",), "There is no tenant"),
    (SETTINGS, {}, "timeout_ms", NOT_WHOLE, "Enter a whole number from 1 to"),
    (SETTINGS, {}, "breaker.failure_percent", ("50%", "101"), "Enter a whole number from 1 to 100."),
    ("/templates", TEMPLATE, "limit", NOT_WHOLE, "Enter a whole number from 0 to 1,000,000,000."),
    ("/templates", TEMPLATE, "name", ("a b", ROCKET), SLUG),
    ("/people", {"username": "zed"}, "email", ("x", "a@b"), "Enter an email address, or leave it empty."),
    ("/people", {}, "username", ("a b", ROCKET), "Use letters, digits and"),
    ("/views", VIEW, "address", ("tenants",), "This address is not a list. Open a list"),
    ("/breakers/payments-api", OVERRIDE, "minutes", ("1,5", "10 min", "-1"), "Enter a whole number"),
    ("/breakers/payments-api", OVERRIDE | {"lasts": "until"}, "until", ("18:00",), WHEN),
    ("/breakers/payments-api", OVERRIDE, "ticket", ("CHG-1",), "Enter the address of the ticket"),
    ("/limits/clear", {"tenant": "acme-retail"}, "limit", ("", " "), "Enter the name of a limit"),
    ("/refusals/erase", {"kind": "ip"}, "value", ("", " "), "Use 1 to 200 characters"),
]


@pytest.mark.parametrize(("address", "typed", "field", "values", "said"), SAID)
def test_the_answer_names_the_next_step(
    log_in: Any, address: str, typed: dict[str, str], field: str, values: tuple[str, ...], said: str
) -> None:
    ada = log_in("ada")
    html = ada.get(address).content.decode()
    form = next(
        one
        for one in forms_to_fill(html)
        if any(control.name == field for control in one.controls)
        and (not one.buttons[0][0] or ("act", typed.get("act")) in one.buttons)
    )
    button = next((one for one in form.buttons if one == ("act", typed.get("act"))), ("", ""))
    for value in values:
        sent = {**form.sends(button, {}), **typed, "reason": WHY, field: value}
        if address == "/tenants/bulk":
            sent |= bulk_shown(ada, sent)
        answer = ada.post(form.address(address), sent)
        assert answer.status_code == 422, value
        page = page_of(answer.content.decode())
        beside = [page.said_at(one) for form in page.forms for one in form.controls if one.name == field]
        assert any(text.startswith(said) for text in beside), (value, beside, page.errors)


def test_a_number_may_have_blanks_around_it_and_the_commas_of_pages(log_in: Any) -> None:
    """Pages write 10,000, and refused it."""
    from controlplane.policies.models import Template, Tier

    ada = log_in("ada")
    answer = ada.post("/templates/new", TEMPLATE | {"limit": " 10,000 ", "reason": WHY})
    assert answer.status_code == 302, page_of(answer.content.decode()).errors
    assert Template.objects.get().limit == 10_000
    base = base_of(ada.get(TIER).content.decode())
    ada.post(TIER, {"act": "save", "base": base, "own.wait_ms": " 2,500 ", "reason": WHY})
    assert Tier.objects.get(name="pro").wait_ms == 2_500


def test_a_number_that_is_one_already_stays_what_it_is() -> None:
    assert [WholeNumberField(0, 5).clean(value) for value in (0, 5, " 5 ")] == [0, 5, 5]


def test_a_quota_that_a_tenant_does_not_have_yet_needs_its_window(log_in: Any) -> None:
    """The page showed ``tenants.acme-retail.quotas.new.window_s`` beside another field."""
    ada, typed = log_in("ada"), BULK | {"quota": "new", "window_s": "", "reason": WHY}
    html = ada.post("/tenants/bulk", typed | bulk_shown(ada, typed)).content.decode()
    said = "acme-retail has no quota new yet: fill in this field, too."
    assert page_of(html).errors["f-window_error"] == said


def test_what_else_is_wrong_is_shown_beside_a_missing_window() -> None:
    missing = "tenants.acme-retail.quotas.new.window_s: A new limit needs this."
    other = "tenants.globex.quotas.new.burst: Only a token bucket has a burst."
    assert bulk._placed("quota", {"change": [missing, other]}) == {
        "window_s": ["acme-retail has no quota new yet: fill in this field, too."],
        "limit": [other],
    }
