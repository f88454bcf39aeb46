"""One wrong input per form, as a person types it: the error is at its field, and nothing typed is lost."""

import re
from html import unescape
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import timezone
from editor_steps import bulk_shown, head

from controlplane.accounts.models import AgentToken, User
from controlplane.validation import SLUG_RULE
from tests.people import ADA

pytestmark = pytest.mark.django_db(transaction=True)

WHY = "CHG-4821 vendor maintenance"
LONG = "x" * 10_000
MUTE = {"act": "add", "rule": "lag", "minutes": "60", "reason": WHY}
ROUTE = {"act": "put", "name": "payments", "receivers": "on-call", "reason": WHY}
RECEIVER = {"act": "add", "name": "pager", "url": "https://192.0.2.7/x", "least_level": "2", "reason": WHY}
RULE = {"act": "save", "rule": "p99", "for_s": "60", "enabled": "on", "reason": WHY}
RUNBOOK = {
    "act": "save",
    "version": "0",
    "slug": "new-one",
    "title": "New",
    "body": "## Symptoms\n",
    "reason": WHY,
}
SCHEDULE = {
    "act": "new",
    "due_at": "2029-01-01T00:00",
    "plan": "tenants: {acme-retail: {tier: free}}",
    "reason": WHY,
}
DRILL = {"act": "begin", "kind": "slow", "minutes": "5", "who": "percent", "percent": "50", "reason": WHY}
TOKEN = {"act": "api", "name": "ci", "environment": "", "days": "365", "role": "metrics", "reason": WHY}
TEMPLATE = {"name": "partner", "limit": "10", "window_s": "60", "reason": WHY}
BULK = {"act": "save", "tier": "pro", "what": "scale", "quota": "requests", "percent": "150", "reason": WHY}

#: Address, what is typed, the wrong field with its text, the control that has the error, and the error.
CASES = [
    ("/alerts/mutes", MUTE, {"reason": ""}, "f-reason", "Say why"),
    ("/alerts/mutes", MUTE, {"minutes": "1,5"}, "f-min", "Enter a whole number from 1 to 10,080."),
    ("/alerts/mutes", MUTE, {"starts_at": "2020-01-01T00:00"}, "f-starts", "Choose a start from now"),
    ("/alerts/mutes", MUTE, {"pod": "web/1*x"}, "f-pod", "Use the name of a pod"),
    ("/alerts/routes", ROUTE, {"reason": ""}, "f-reason", "Say why"),
    ("/alerts/routes", ROUTE, {"name": "a/b"}, "f-name", "Use 1 to 64 letters, digits"),
    ("/alerts/routes", ROUTE, {"zone": "Mars/Olympus"}, "f-zone", "Use the name of a time zone"),
    ("/alerts/routes", ROUTE, {"begins": "9,30", "ends": "17:30"}, "f-begins", "Enter two different times"),
    ("/alerts/routes", ROUTE, {"place": "1,5"}, "f-place", "Enter a whole number"),
    ("/alerts/receivers", RECEIVER, {"reason": ""}, "f-reason", "Say why"),
    ("/alerts/receivers", RECEIVER, {"name": "on/call"}, "f-name", "Use 1 to 64 letters, digits"),
    ("/alerts/receivers", RECEIVER, {"url": "ftp://example.com"}, "f-url", ""),
    ("/alerts/rules", RULE, {"reason": ""}, "f-reason", "Say why"),
    ("/alerts/rules", RULE, {"warning": "1,5"}, "f-warning", "Enter a number, such as"),
    ("/alerts/rules", RULE, {"warning": f"0.5{'0' * 20}7"}, "f-warning", "Enter a number, such as"),
    ("/alerts/rules", RULE, {"for_s": "1,5"}, "f-for", "Enter a whole number from 0 to 3,600."),
    ("/alerts/rules", RULE, {"note": LONG[:600]}, "f-note", "500"),
    ("/runbooks/new", RUNBOOK, {"reason": ""}, "f-reason", "Say why"),
    ("/runbooks/new", RUNBOOK, {"slug": "a/b"}, "f-slug", "Use 1 to 64"),
    ("/runbooks/new", RUNBOOK, {"title": LONG[:201]}, "f-title", "200"),
    ("/schedules", SCHEDULE, {"reason": ""}, "f-reason", "Say why"),
    ("/schedules", SCHEDULE, {"due_at": "2020-01-01T00:00"}, "f-due", "Choose a time in the future"),
    ("/schedules", SCHEDULE, {"plan": "tenants: {acme-retail: {tire: free}}"}, "f-plan", "has no such field"),
    ("/edit-freeze", {"until": "2029-01-01T00:00", "reason": WHY}, {"reason": ""}, "f-reason", "Say why"),
    ("/edit-freeze", {"reason": WHY}, {"until": "2020-01-01T00:00"}, "f-until", "Choose a time in the next"),
    ("/views", {"act": "save", "address": "/audit"}, {"name": LONG}, "f-name", "characters"),
    ("/views", {"act": "save", "name": "mine"}, {"address": "/no/list"}, "f-address", ""),
    ("/refusals/erase", {"kind": "ip", "value": "192.0.2.1"}, {"reason": ""}, "f-reason", "Say why"),
    ("/tenants/bulk", BULK, {"percent": "1,5"}, "f-percent", "Enter a whole number"),
    ("/tenants/bulk", BULK, {"quota": "a/b"}, "f-quota", "Use 1 to 64"),
    ("/tenants/bulk", BULK, {"reason": ""}, "f-reason", "Say why"),
    ("/tenants/bulk", BULK, {"starts": "2020-01-01T00:00"}, "f-starts", "Choose a time in the future"),
    ("/drills", DRILL, {"reason": ""}, "f-reason", "Say why"),
    ("/drills", DRILL, {"minutes": "1,5"}, "f-min", "Enter a whole number from 1 to 60"),
    ("/drills", DRILL, {"minutes": "61"}, "f-min", "Enter a whole number from 1 to 60"),
    ("/drills", DRILL, {"percent": "1e400"}, "f-pct", "Enter a whole number from 1 to 100."),
    ("/drills", DRILL, {"who": "service", "service": "none", "percent": ""}, "f-svc", "No pod of"),
    ("/tokens", TOKEN, {"reason": ""}, "p-reason", "Say why"),
    ("/tokens", TOKEN, {"name": LONG}, "p-name", "Use at most 200 characters"),
    ("/tokens", TOKEN, {"act": "agent", "environment": "production", "service": "a b"}, "f-service", "Use "),
    ("/tokens", TOKEN, {"act": "agent", "environment": ""}, "f-environment", "Choose an environment"),
    ("/requests", {"needed": "2", "reason": WHY}, {"reason": ""}, "f-reason", "Say why"),
    ("/requests", {"reason": WHY}, {"needed": "0"}, "f-needed", "It is 0 already"),
    ("/people/vera", {"act": "roles", "role": "admin"}, {"reason": ""}, "f-reason", "Say why"),
    ("/people/vera", {"act": "off"}, {"reason": "short"}, "f-why", "Say why"),
    ("/templates/new", TEMPLATE, {"name": "x" * 65}, "t-name", "Use at most 64 characters"),
    ("/revisions/1", {"seen": "now"}, {"reason": ""}, "f-reason", "Say why"),
    ("/revisions/4/revert", {"seen": "now"}, {"reason": ""}, "f-reason", "Say why"),
]


@pytest.fixture
def on_call(production: str) -> None:
    from controlplane.alerts.delivery.receivers import add_receiver

    add_receiver(
        environment=production,
        name="on-call",
        url="https://192.0.2.7/alerts",
        least_level=2,
        least_severity="warning",
        reason=WHY,
        actor=ADA,
    )


def error_at(html: str, control: str) -> str:
    found = re.search(rf'id="{control}_error">([^<]*)', html)
    return unescape(found[1]) if found else ""


@pytest.mark.parametrize(("address", "typed", "wrong", "control", "error"), CASES)
def test_the_error_is_at_its_field_and_nothing_is_lost(
    log_in: Any, on_call: None, address: str, typed: Any, wrong: Any, control: str, error: str
) -> None:
    client, sent = log_in("ada"), {**typed, **wrong}
    if address == "/tenants/bulk":
        sent |= bulk_shown(client, sent)
    if sent.get("seen") == "now":
        sent["seen"] = str(head())
    answer = client.post(address, sent)
    html = answer.content.decode()
    assert answer.status_code == 422
    shown = error_at(html, control)
    assert shown, re.findall(r'class="err".*|role="alert">.*', html)
    assert error in shown
    for name, value in sent.items():
        if name not in ("act", "seen", "previewed") and value:
            assert value in unescape(html), f"{name} is lost"
    for text in re.findall(r'class="notice[^"]*" role="alert">.*?</p>', html, re.S):
        assert shown not in unescape(text), "the error is stated twice"


def test_a_file_and_its_reason_are_refused_at_their_fields(log_in: Any) -> None:
    client = log_in("ada")
    assert error_at(client.post("/import").content.decode(), "f-file") == "Choose a file."
    empty = SimpleUploadedFile("a.yaml", b" ")
    assert (
        error_at(client.post("/import", {"file": empty}).content.decode(), "f-file") == "The file is empty."
    )
    plan = SimpleUploadedFile("a.yaml", b"tenants: {acme-retail: {tier: free}}")
    draft = client.post("/import", {"file": plan})["Location"]
    refused = client.post(draft, {"reason": "x"})
    assert refused.status_code == 422
    assert error_at(refused.content.decode(), "f-reason").startswith("Say why")
    assert ">x</textarea>" in refused.content.decode()
    for _ in range(2):
        last = client.post(draft, {"reason": WHY})
    assert "This file was applied already" in last.content.decode()


CHOICES = [
    ("/tokens", TOKEN),
    ("/requests", {"needed": "2"}),
    ("/people/vera", {"act": "roles", "role": "admin", "in-production": "none"}),
]


@pytest.mark.parametrize(("address", "chosen"), CHOICES)
def test_a_refused_form_keeps_what_was_chosen(log_in: Any, address: str, chosen: dict[str, str]) -> None:
    html = log_in("ada").post(address, chosen | {"reason": ""}).content.decode()
    html = html.partition('id="h-api"')[2] or html  # another form stands above that of API tokens
    for name in chosen.keys() & {"environment", "days", "role", "needed", "in-production"}:
        select = re.search(rf'<select[^>]*name="{name}".*?</select>', html, re.S)
        assert select
        assert re.findall(r'value="([^"]*)" selected', select[0]) == [chosen[name]], name


def test_what_was_refused_is_shown_at_the_token_that_it_is_about(log_in: Any) -> None:
    ada = log_in("ada")
    for name in ("one", "two"):
        ada.post("/tokens", TOKEN | {"name": name, "act": "agent", "environment": "production"})
    first = AgentToken.objects.get(name="one").selector
    typed = {"act": "rotate", "selector": first, "overlap": "168", "reason": "short"}
    html = ada.post("/tokens", typed).content.decode()
    assert error_at(html, f"why-{first}").startswith("Say why")
    assert html.count(">short</textarea>") == 1
    row = html[html.index(f'id="why-{first}"') - 1_000 : html.index(f'id="over-{first}"') + 500]
    assert '<details class="more-acts" open>' in row
    assert '<option value="168" selected>' in row
    assert html.count('class="more-acts" open') == 1
    # Another token keeps the usual time.
    assert html.count('<option value="168" selected>') == 1


def test_a_token_that_ended_meanwhile_hides_no_error(log_in: Any) -> None:
    """Its row has no form any more that could display one."""
    ada = log_in("ada")
    ada.post("/tokens", TOKEN | {"name": "one", "act": "agent", "environment": "production"})
    token = AgentToken.objects.get(name="one")
    AgentToken.objects.update(expires_at=timezone.now())
    typed = {"act": "revoke", "selector": token.selector, "reason": "no"}
    assert "Say why" in ada.post("/tokens", typed).content.decode()


@pytest.mark.parametrize("who", ["percent", "service"])
def test_a_refused_drill_says_why_whatever_was_chosen(log_in: Any, who: str) -> None:
    """Errors of pods stood among the pods, which are displayed only if pods are chosen by name."""
    ada = log_in("ada")
    html = ada.post("/drills", DRILL | {"who": "service", "service": "", "percent": ""} | {"who": who})
    text = html.content.decode()
    pods = text[text.index('class="field on-servers"') : text.index('class="three on-percent"')]
    assert 'class="err"' in text
    assert 'class="err"' not in pods


def test_half_a_role_for_a_service_is_refused_and_kept(log_in: Any) -> None:
    """The page reported success and forgot the service."""
    ada = log_in("ada")
    typed = {"act": "roles", "role": "viewer", "service-environment": "production", "reason": WHY}
    for service, role, said in (("shop", "", "Choose a role for"), ("", "operator", "Enter the service")):
        answer = ada.post("/people/vera", typed | {"service": service, "service-role": role})
        html = answer.content.decode()
        assert answer.status_code == 422
        assert html.count(said) == 1
        assert f'name="service" value="{service}"' in html
        if role:
            assert f'<option value="{role}" selected>' in html
    assert User.objects.get(username="vera").service_roles == {}


def test_a_login_with_a_long_name_says_how_long_it_may_be(client: Any) -> None:
    html = client.post("/login", {"username": LONG, "password": "x"}).content.decode()
    assert error_at(html, "id_username") == "Use at most 150 characters."


@pytest.mark.parametrize(
    "address", ["/alerts/routes", "/alerts/receivers", "/templates", "/runbooks/new", "/edit/tier?new"]
)
def test_the_rule_about_a_name_stands_beside_its_field(log_in: Any, on_call: None, address: str) -> None:
    """A person met it only after saving."""
    html = log_in("ada").get(address).content.decode()
    assert f'_hint">{SLUG_RULE}</p>' in html


def test_a_name_of_a_receiver_that_is_taken_is_refused_in_words(log_in: Any, on_call: None) -> None:
    """The page showed the arguments of the error."""
    sent = RECEIVER | {"name": "on-call", "least_severity": "warning"}
    html = log_in("ada").post("/alerts/receivers", sent).content.decode()
    assert error_at(html, "f-name").startswith("A receiver with this name exists. Choose another name")


@pytest.mark.parametrize(
    ("address", "sent", "said"),
    [
        ("/alerts/mutes", {"act": "end", "mute": "99"}, "This mute has already ended."),
        ("/alerts", {"end_mute": "99"}, "This mute has already ended."),
        ("/drills", {"act": "end", "drill": "99"}, "This drill has already ended."),
        ("/views", {"act": "delete", "view": "99"}, "This view was deleted, or is not shared any more."),
        ("/tokens", {"act": "revoke", "selector": "0" * 16}, "This token has been revoked or replaced."),
    ],
)
def test_what_has_ended_meanwhile_is_named_without_its_number(
    log_in: Any, address: str, sent: dict[str, str], said: str
) -> None:
    answer = log_in("ada").post(address, sent | {"reason": WHY})
    assert answer.status_code in (404, 409)
    assert said in answer.content.decode()
