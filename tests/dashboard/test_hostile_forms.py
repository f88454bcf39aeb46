"""Every page with a form answers hostile input with a page, never with an error of the server."""

from typing import Any

import pytest
from django.utils import timezone

from controlplane.alerts.models import Incident

pytestmark = pytest.mark.django_db(transaction=True)

WHY = "CHG-4821 vendor maintenance"
SCRIPT = "<script>alert(1)</script>"
HOSTILE = ("x" * 12_000, SCRIPT, "9" * 30)

#: Address -> values of the button, and every field of the forms of the page.
FORMS: dict[str, tuple[tuple[str, ...], str]] = {
    "/alerts": (("acknowledge", "release", "end_mute", "end_period"), "note reason"),
    "/alerts/mutes": (
        ("preview", "add", "end", "end_period"),
        "rule dependency pod starts_at minutes repeats mute reason",
    ),
    "/alerts/receivers": (
        ("add", "secret", "remove", "enable", "weekly", "no-weekly", "test"),
        "name url least_level least_severity weekly reason",
    ),
    "/alerts/routes": (
        ("put", "remove"),
        "name place owner least_level least_severity days begins ends zone receivers after_0 to_0 reason",
    ),
    "/alerts/rules": (
        ("preview", "save", "reset"),
        "rule warning critical clear_percent for_s keep_s level enabled note version reason",
    ),
    "/backlogs/payments-api": (("return", "delete"), "confirm until reason"),
    "/defaults/idle-slots": (("save",), "reason"),
    "/breakers/payments-api/settings": (("save",), "version starts failure_percent timeout_ms reason"),
    "/drills": (("begin", "end"), "kind minutes who service percent servers drill reason"),
    "/edit-freeze": (("freeze", "end"), "until reason"),
    "/fleet/lift-freeze": (("lift",), "reason"),
    "/limits/clear": (("clear",), "limit tenant dependency user ip api_key endpoint reason"),
    "/people": (("invite",), "username email role reason"),
    "/people/vera": (
        ("roles", "cancel", "off", "on", "logout", "factor", "link"),
        "cancel role in-production service environment reason",
    ),
    "/protection": (("save",), "base starts reason"),
    "/refusals/erase": (("erase",), "kind value reason"),
    "/requests": (("save",), "needed reason"),
    "/requests/1": (("approve", "reject", "withdraw", "rebase", "apply"), "version reason"),
    "/revisions/1": (("save",), "seen reason"),
    "/revisions/4/revert": (("save",), "seen anyway reason"),
    "/runbooks/new": (("preview", "save"), "slug title body version reason"),
    "/runbooks/redis-slow": (("",), "tick"),
    "/runbooks/redis-slow/edit": (("preview", "save"), "slug title body version reason"),
    "/runbooks/redis-slow/change": (("restore", "use", "keep", "remove"), "version number reason"),
    "/schedules": (("new", "cancel", "acknowledge"), "due_at plan schedule reason"),
    "/servers/web-1/forget": (("forget",), "reason"),
    "/tokens": (
        ("agent", "api", "rotate", "revoke"),
        "name environment days service name_prefix role selector overlap reason",
    ),
    "/tokens/first": (("make",), "reason"),
    "/views": (("save", "change", "delete", "unshare"), "name address shared view reason"),
    "/weekly-summary": (("send",), "receiver"),
}


@pytest.fixture
def incident(production: str) -> int:
    now = timezone.now()
    row = Incident.objects.create(
        environment=production,
        cause="redis-down",
        title="Redis is down",
        level=3,
        severity="critical",
        started_at=now,
        opened_at=now,
    )
    return int(row.pk)


def attack(client: Any, address: str, buttons: tuple[str, ...], fields: str) -> None:
    names = fields.split()
    for button in buttons:
        inputs = [dict.fromkeys(names, hostile) for hostile in HOSTILE]
        for typed in ({}, dict.fromkeys(names, SCRIPT), *(one | {"reason": WHY} for one in inputs)):
            sent = {"act": button} | typed
            if button in ("acknowledge", "release", "end_mute", "end_period"):
                sent[button] = typed.get("note", "")
            answer = client.post(address, sent)
            asked = f"{address} {button} {sent.get(names[0], '')[:20]}"
            assert answer.status_code in (200, 302, 404, 409, 422), asked
            assert SCRIPT not in answer.content.decode(), asked


@pytest.mark.parametrize("address", FORMS)
def test_hostile_input_gets_a_page(log_in: Any, production: str, address: str) -> None:
    attack(log_in("ada"), address, *FORMS[address])


def test_hostile_input_about_an_incident_gets_a_page(log_in: Any, incident: int) -> None:
    ada = log_in("ada")
    buttons = ("note", "step", "close", "merge", "split", "acknowledge:1", "acknowledge:x", "release:", "no")
    attack(ada, f"/incidents/{incident}", buttons, "note runbook step text done into alert reason")
    attack(ada, f"/incidents/{incident}/report", ("share", "unshare", "no"), "days")
