"""An override in force can be extended and ended, also from the list of overrides."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from fleet_rows import breaker, put_server
from test_incidents import CLOSED, OPEN, picture

from controlplane.audit.action_words import action_words
from controlplane.audit.models import Entry
from dashboard.views.breakers.breakers import preview
from dashboard.words.labels import difference

pytestmark = pytest.mark.django_db(transaction=True)

PATH = "/breakers/payments-api"
TRIP = {"act": "forced_open", "reason": "CHG-4821 vendor maintenance", "lasts": "15"}
LONGER = {"act": "extend", "reason": "The vendor needs longer", "lasts": "240"}


def holds():
    from controlplane.breakers.models import Override

    return list(Override.objects.filter(ended_at__isnull=True))


def test_an_override_is_extended_in_its_mode(log_in):
    client = log_in("olga")
    client.post(PATH, TRIP)
    [before] = holds()
    answer = client.post(PATH, LONGER | {"seen": str(before.revision)}, follow=True)
    assert "The override on payments-api now ends at" in answer.content.decode()
    [after] = holds()
    assert (after.mode, after.reason) == ("forced_open", "The vendor needs longer")
    assert (after.expires_at - before.expires_at).total_seconds() > 3 * 3600
    entry = Entry.objects.latest("id")
    assert (entry.action, action_words(entry.action)) == ("breaker.extended", "Override extended")
    assert difference(entry.before, entry.after) == (
        f"until {before.expires_at:%-d %b %H:%M} UTC",
        f"until {after.expires_at:%-d %b %H:%M} UTC",
    )


def test_the_heading_changes_with_the_answer(log_in):
    """It was "Closed" for seconds after the breaker was forced open, until the next drawing of the page."""
    client = log_in("olga")
    answer = client.post(PATH, TRIP, headers={"HX-Request": "true"}).content.decode()
    assert 'id="override"' in answer
    heading = answer.partition('id="hero" hx-swap-oob="outerMorph"')[2]
    assert "Forced open" in heading.partition("</header>")[0]
    wrong = client.post(PATH, TRIP | {"reason": ""}, headers={"HX-Request": "true"}).content.decode()
    assert 'id="hero"' not in wrong
    assert "hx-swap-oob" not in client.get(PATH).content.decode()


def test_a_breaker_without_override_cannot_be_extended(log_in):
    answer = log_in("olga").post(PATH, LONGER)
    assert answer.status_code == 422
    assert "This breaker has no override any more." in answer.content.decode()
    assert holds() == []


def test_a_breaker_forced_closed_is_extended_by_minutes_only(log_in):
    client = log_in("olga")
    client.post(PATH, TRIP | {"act": "forced_closed", "confirm": "payments-api"})
    answer = client.post(PATH, LONGER)
    assert answer.status_code == 422
    assert "at most 15 minutes." in answer.content.decode()


def test_the_extension_of_a_breaker_forced_closed_offers_what_it_may_last(log_in):
    """The button read "Extend for 1 h", which was then refused."""
    client = log_in("olga")
    client.post(PATH, TRIP | {"act": "forced_closed", "confirm": "payments-api"})
    page = client.get(f"{PATH}?act=extend").content.decode()
    assert "Extend for 15 min" in page
    assert {value: css for value, _, css in client.get(PATH).context["form"].offered} == {
        "5": "",
        "10": "",
        "15": "",
        "30": "not-forced_closed not-extend",
        "60": "not-forced_closed not-extend",
        "240": "not-forced_closed not-extend",
        "minutes": "",
        "until": "not-forced_closed not-extend",
    }
    assert "Extend\n" in client.post(f"{PATH}/preview", LONGER).content.decode()
    shown = client.post(f"{PATH}/preview", LONGER | {"lasts": "5"}).content.decode()
    assert "Extend for 5 min" in shown
    # It counts from now: with 9 minutes left, "for 10 min" adds one.
    assert re.search(
        r"keep the override on payments-api until \d\d:\d\d:\d\d UTC instead of \d\d:\d\d:\d\d UTC", shown
    )
    assert client.post(PATH, LONGER | {"lasts": "5"}).status_code == 302
    [held] = holds()
    assert (held.mode, held.reason) == ("forced_closed", "The vendor needs longer")


def test_the_form_begins_with_a_duration_that_every_action_offers(log_in):
    """It began with 1 h, which stayed chosen, hidden, for forced closed."""
    form = log_in("olga").get(PATH).context["form"]
    assert form["lasts"].value() == "15"
    long = ["not-forced_closed"] * 3
    assert [css for _, _, css in form.offered] == ["", "", "", *long, "", "not-forced_closed"]


def test_the_list_of_overrides_links_to_the_filled_form(log_in):
    client = log_in("olga")
    client.post(PATH, TRIP)
    overview = client.get("/").content.decode()
    for act, button in (("extend", "Extend for 15 min"), ("automatic", "End override")):
        assert f'href="{PATH}?act={act}#override"' in overview
        page = client.get(f"{PATH}?act={act}").content.decode()
        assert f'value="{act}" checked' in page
        assert button in page
    assert len(holds()) == 1
    assert "?act=extend" not in log_in("vera").get("/").content.decode()


def test_without_an_override_the_form_only_offers_to_start_one(log_in):
    page = log_in("olga").get(f"{PATH}?act=extend").content.decode()
    assert 'value="extend"' not in page
    assert "Extend for" not in page


def test_the_button_promises_no_duration_that_forced_closed_does_not_offer(log_in):
    client = log_in("olga")
    for lasts, button in (
        ("15", "Force closed for 15 min"),
        ("60", "Force closed\n"),
        ("until", "Force closed\n"),
    ):
        answer = client.post(f"{PATH}/preview", TRIP | {"act": "forced_closed", "lasts": lasts})
        assert button in answer.content.decode()


def test_a_breaker_is_forced_open_for_a_typed_number_of_minutes(log_in):
    client = log_in("olga")
    typed = TRIP | {"lasts": "minutes", "minutes": " 7 "}
    assert "Force open for 7 min" in client.post(f"{PATH}/preview", typed).content.decode()
    assert client.post(PATH, typed).status_code == 302
    [held] = holds()
    assert 400 < (held.expires_at - datetime.now(UTC)).total_seconds() <= 420


@pytest.mark.parametrize(
    ("act", "minutes", "bound"),
    [
        ("forced_open", "", "1,440"),
        ("forced_open", "0", "1,440"),
        ("forced_open", "1441", "1,440"),
        ("forced_open", "\u00b2", "1,440"),
        ("forced_open", "9" * 9, "1,440"),
        ("forced_closed", "16", "15"),
    ],
)
def test_a_wrong_number_of_minutes_is_refused_with_its_bounds(log_in, act, minutes, bound):
    client = log_in("olga")
    typed = TRIP | {"act": act, "confirm": "payments-api", "lasts": "minutes", "minutes": minutes}
    wanted = f"Enter a whole number of minutes from 1 to {bound}."
    assert wanted in client.post(f"{PATH}/preview", typed).content.decode()
    answer = client.post(PATH, typed)
    assert answer.status_code == 422
    assert answer.context["form"].errors["minutes"] == [wanted]
    assert answer.content.decode().count(wanted) == 1, "the error is stated once"
    assert holds() == []


@pytest.mark.parametrize(
    ("until", "problem"),
    [
        ("2020-01-01T00:00", "This time is in the past. Choose a time in the future."),
        ("", "Enter a date and a time in UTC: the end of the override."),
        ("2999-01-01T00:00", "Choose a time at most 24 hours from now."),
    ],
)
def test_the_preview_shows_what_is_wrong_with_the_typed_end(log_in, until, problem):
    """It read "Force open until 2020-01-01 00:00", and "Force open until" without a date."""
    answer = log_in("olga").post(f"{PATH}/preview", TRIP | {"lasts": "until", "until": until})
    assert problem in answer.content.decode()
    assert "Force open\n" in answer.content.decode()


def test_the_preview_names_the_typed_end_in_utc(log_in):
    until = datetime.now(UTC) + timedelta(hours=2)
    typed = TRIP | {"lasts": "until", "until": f"{until:%Y-%m-%dT%H:%M}"}
    answer = log_in("olga").post(f"{PATH}/preview", typed).content.decode()
    assert f"Force open until {until:%Y-%m-%d %H:%M} UTC" in answer


def test_operators_force_a_breaker_open_from_each_row_and_viewers_do_not(log_in):
    link = f'href="{PATH}?act=forced_open#override"'
    assert link in log_in("olga").get("/breakers").content.decode()
    assert link not in log_in("vera").get("/breakers").content.decode()
    client = log_in("olga")
    client.post(PATH, TRIP)
    assert link not in client.get("/breakers").content.decode()
    assert f'href="{PATH}#override"' in client.get("/breakers").content.decode()


def test_what_forced_closed_adds_is_read_with_the_preview(log_in):
    """S2.10: the warning had the figures of when the page was loaded, beside those of the preview."""
    client = log_in("olga")
    assert "calls to payments-api failed" not in client.get(PATH).content.decode()
    put_server("web-1", breakers=[breaker("payments-api", window_calls=49, window_failures=6)])
    answer = client.post(f"{PATH}/preview", TRIP | {"act": "forced_closed"}).content.decode()
    assert "6 of the last 49 calls to payments-api failed." in answer
    assert "Each caller waits up to 30 s." in answer


@pytest.mark.parametrize(
    ("fields", "warning"),
    [
        ({}, "payments-api is open: 5 failures in a row, opens at 5; 2 failed probes since."),
        # Nothing was counted since the trip.
        (
            {"view": replace(OPEN, calls=24, failures=0)},
            "payments-api is open: 5 failures in a row, opens at 5; 2 failed probes since.",
        ),
        ({"view": replace(OPEN, state="half_open"), "transitions": ()}, "payments-api is probing."),
        (
            {"view": replace(OPEN, local=True)},
            "payments-api is open: 2 of 2 pods opened their own breaker, without Redis.",
        ),
        (
            {"view": replace(CLOSED, failures=4, local=True)},
            "4 of the last 33 calls to payments-api on one pod failed.",
        ),
        ({"view": replace(CLOSED, failures=4)}, "4 of the last 33 calls to payments-api failed."),
        ({"view": CLOSED}, ""),
    ],
)
def test_forcing_an_open_breaker_closed_warns_with_its_trip(fields, warning):
    """It warned with the window that stopped at the trip, "2 of the last 33 calls", or not at all."""
    shown = preview(picture(**fields).breakers[0], {"act": "forced_closed", "lasts": "15"})
    assert (shown.css, shown.warning) == ("risk", warning)


@pytest.mark.parametrize(("lasted", "chosen"), [("10", "10"), ("30", "30"), ("60", "60")])
def test_an_extension_begins_with_the_duration_of_the_override(log_in, lasted, chosen):
    """It began with 1 h after an override of 10 minutes."""
    client = log_in("olga")
    client.post(PATH, TRIP | {"lasts": lasted})
    page = client.get(f"{PATH}?act=extend").content.decode()
    assert re.search(rf'name="lasts" value="{chosen}"[^>]*checked', page)
