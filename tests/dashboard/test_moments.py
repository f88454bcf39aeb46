"""Times that people type and read: an offset counts, and the local time is beside UTC."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from browsing import becomes
from django.core.exceptions import ValidationError
from test_override_form import PATH, TRIP, holds

from controlplane.schedules.models import Schedule
from dashboard.forms import MomentField
from dashboard.views.editor.form_input import typed_in
from dashboard.words.moments import moment_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("2030-01-31T18:00", datetime(2030, 1, 31, 18, tzinfo=UTC)),
        ("2030-01-31T18:00+02:00", datetime(2030, 1, 31, 16, tzinfo=UTC)),
        (" 2030-01-31T18:00Z ", datetime(2030, 1, 31, 18, tzinfo=UTC)),
    ],
)
def test_an_offset_that_a_person_types_counts(typed, meant):
    """It was dropped: 18:00+02:00 became 18:00 UTC, two hours late."""
    assert moment_of(typed) == meant
    assert MomentField().clean(typed) == meant
    quota = {"quotas.requests.limit": 9, "quotas.requests.window_s": 60}
    read = typed_in("tenant", {"limit.requests.expires_at": typed}, quota)
    assert read.fields["quotas"]["requests"]["expires_at"] == meant.isoformat()


@pytest.mark.parametrize(
    "typed", ["", "tomorrow", "2030-13-01T00:00", "0001-01-01T00:00+23:59", "9999-12-31T23:59"]
)
def test_what_is_no_time_is_refused(typed):
    with pytest.raises(ValueError, match=r"."):
        moment_of(typed)
    with pytest.raises(ValidationError):
        MomentField().clean(typed)


def test_the_end_of_an_override_with_an_offset_counts(log_in, production):
    end = (datetime.now(UTC) + timedelta(hours=1)).replace(second=0, microsecond=0)
    typed = end.astimezone(tz=datetime.fromisoformat("2030-01-01T00:00+05:30").tzinfo).isoformat()
    answer = log_in("olga").post(PATH, TRIP | {"lasts": "until", "until": typed})
    assert answer.status_code == 302
    [override] = holds()
    assert override.expires_at == end


def test_a_scheduled_change_is_shown_with_its_local_time(log_in, production):
    client = log_in("ada")
    plan = "tenants:\n  acme-retail:\n    quotas:\n      requests: {limit: 50, window_s: 60, burst: 5}"
    due_at = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    due = {"act": "new", "plan": plan, "reason": "agreed with acme", "due_at": due_at}
    assert client.post("/schedules", due).status_code == 302
    at = int(Schedule.objects.get().due_at.timestamp())
    assert f'data-local="{at}"' in client.get("/schedules").content.decode()


@pytest.mark.browser
def test_a_form_shows_the_local_time_of_what_is_typed_in_utc(sign_in: Any, production: str) -> None:
    page = sign_in("ada")
    session = page.context.new_cdp_session(page)
    session.send("Emulation.setTimezoneOverride", {"timezoneId": "Europe/Berlin"})
    page.goto("/schedules")
    note = "document.querySelector('#f-due ~ [data-local-time]').textContent"
    zone = page.evaluate(note)
    assert zone in (f"In UTC. Your time zone, Europe/Berlin, is UTC+{hours} now." for hours in (1, 2))
    page.fill("#f-due", "2030-01-31T18:00")
    becomes(page, f"/7:00\\s*PM|19:00/.test({note}) && {note}.endsWith('in Europe/Berlin')")
    # London is at UTC only in winter, and Reykjavik all year.
    zones = {"Europe/London": "In UTC. Your time zone", "Atlantic/Reykjavik": "UTC is your time zone, too."}
    for place, said in zones.items():
        session.send("Emulation.setTimezoneOverride", {"timezoneId": place})
        page.goto("/schedules")
        assert page.evaluate(note).startswith(said)
    session.send("Emulation.setTimezoneOverride", {"timezoneId": "Europe/Berlin"})
    page.goto("/audit")
    becomes(page, "/GMT\\+|CES?T/.test(document.querySelector('tbody time').title)")
