"""The form of what protects every pod."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from shown import text_of

from controlplane.audit.models import Entry
from controlplane.editing import edits
from controlplane.policies.document import environment_of, policy_of
from controlplane.schedules.models import Schedule
from dashboard.views.fleet.pod_protection_form import groups, typed_settings, values_of
from fuseboard.contract.protection import PodProtection, Route
from fuseboard.contract.protection_fields import OBSERVED_PARTS, POD_SETTINGS
from tests.people import OLGA

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = "/protection"
REASON = "Requests pile up at noon"


@pytest.fixture
def ada(log_in: Any) -> Any:
    return log_in("ada")


def published() -> PodProtection | None:
    return policy_of(environment_of("production")).protection


def change(protection: Any = None, **observe_for_s: int) -> None:
    edits.set_pod_protection(
        environment="production",
        protection=protection or {},
        observe_for_s=observe_for_s,
        reason=REASON,
        actor=OLGA,
    )


def typed(**changes: str) -> dict[str, str]:
    """The form as it is displayed, with some values typed over it; dots are ``__``."""
    row = environment_of("production")
    values = values_of(row) | {"base": str(row.revision), "reason": REASON}
    return values | {name.replace("__", "."): value for name, value in changes.items()}


def test_the_form_shows_every_setting_and_saving_it_unchanged_changes_nothing(ada: Any) -> None:
    page = ada.get(PAGE).content.decode()
    for setting in POD_SETTINGS:
        name = f"protection.{setting.path}"
        if setting.part == "observe":
            name = f"observe_for_s.{setting.name.removesuffix('_until_us')}"
        assert f'name="{name}"' in page, name
    revision = environment_of("production").revision
    answer = ada.post(PAGE, typed())
    assert (answer.status_code, answer["Location"]) == (302, "/servers")
    assert "Nothing has changed." in ada.get("/servers").content.decode()
    assert environment_of("production").revision == revision
    assert published() is None
    saved = ada.post(PAGE, typed(protection__retries_per_s="4"))
    assert saved["Location"] == f"/servers?saved={revision + 1}"
    assert "Undo" in ada.get(saved["Location"]).content.decode()
    change({"shedding": {"shed_at": 60}, "routes": [{"pattern": "GET /a=b", "sla_ms": 50}]}, retry=3600)
    before = published()
    assert ada.post(PAGE, typed()).status_code == 302
    assert published() == before


def test_it_saves_all_of_it_in_one_revision(ada: Any) -> None:
    revision = environment_of("production").revision
    changes = typed(
        protection__shedding__on="on",
        protection__shedding__queue_max="200",
        protection__readiness__on="on",
        protection__readiness__hold_ms="20000",
        protection__retries_per_s="5",
        protection__routes="POST /v1/* = 2000\n\n GET /q?a=b=30 \n",
        observe_for_s__shedding="86400",
    )
    assert ada.post(PAGE, changes).status_code == 302
    assert environment_of("production").revision == revision + 1
    saved = published()
    assert saved is not None
    assert saved.shedding is not None
    assert saved.readiness is not None
    assert (saved.shedding.queue_max, saved.shedding.shed_at) == (200, 70)
    assert (saved.readiness.hold_ms, saved.retries_per_s) == (20_000, 5)
    assert saved.routes == (
        Route(pattern="POST /v1/*", sla_ms=2_000),
        Route(pattern="GET /q?a=b", sla_ms=30),
    )
    left_s = saved.observe.shedding_until_us / 1_000_000 - datetime.now(UTC).timestamp()
    assert 86_000 < left_s <= 86_400
    assert saved.observe.bulkhead_until_us == 0
    entry = Entry.objects.get(action="pod_protection.set")
    assert (entry.actor, entry.reason) == ("ada", REASON)
    # The next visit shows the end, and offers to end it now.
    page = ada.get(PAGE).content.decode()
    assert len(re.findall(r"Until \d+ \w+ \d\d:\d\d UTC<", page)) == 1
    # Trial mode refuses nothing: it read "sheds when ..." and "Trial mode now: shedding".
    assert re.search(
        r"Shedding now: would shed when more than \d+ calls wait, but is in trial mode", text_of(page)
    )
    assert "Trial mode in it now: " in text_of(page)
    assert (
        ada.post(PAGE, typed(observe_for_s__shedding="0", protection__readiness__on="off")).status_code == 302
    )
    saved = published()
    assert saved is not None
    assert (saved.observe.shedding_until_us, saved.readiness) == (0, None)
    assert "Shedding now: sheds when more than" in text_of(ada.get(PAGE).content.decode())


def test_wrong_values_are_reported_at_their_fields_and_what_was_typed_stays(ada: Any) -> None:
    revision = environment_of("production").revision
    wrong = typed(
        protection__shedding__on="on",
        protection__shedding__queue_max="many",
        protection__routes="POST /v1/* 2000\nGET / = 5",
    )
    answer = ada.post(PAGE, wrong)
    page = unescape(answer.content.decode())
    assert answer.status_code == 422
    assert "Enter a whole number from" in page
    assert "Line 1: enter a pattern, =, and milliseconds" in page
    assert 'value="many"' in page
    assert "POST /v1/* 2000\nGET / = 5</textarea>" in page
    for field, value, said in (
        ("protection__shedding__shed_at", "95", "ust be at least shed_at, 95"),
        ("protection__routes", "GET / = 5\nGET / = 6", "is listed twice"),
        ("protection__routes", "GET / = 0", "at most 200 routes"),
        ("observe_for_s__retry", "604801", "from 0 to 604,800"),
        ("observe_for_s__retry", "soon", "Enter a whole number."),
        ("reason", "x", "Say why"),
        ("base", "", "Enter a whole number."),
    ):
        answer = ada.post(PAGE, typed(protection__shedding__on="on", **{field: value}))
        assert answer.status_code == 422, field
        assert said in unescape(answer.content.decode()), field
    assert environment_of("production").revision == revision


def test_a_conflict_keeps_the_input_and_the_next_save_replaces(ada: Any) -> None:
    mine = typed(protection__retries_per_s="4")
    change({"retries_per_s": 7})
    answer = ada.post(PAGE, mine)
    page = answer.content.decode()
    assert answer.status_code == 409
    assert "olga changed the protection of pods while you were editing" in page
    assert 'name="protection.retries_per_s" value="4"' in page
    now = environment_of("production").revision
    assert f'name="base" value="{now}"' in page
    assert "process: 7/s → 4/s" in text_of(page), "the preview compares with their values"
    assert ada.post(PAGE, mine | {"base": str(now)}).status_code == 302
    saved = published()
    assert saved is not None
    assert saved.retries_per_s == 4


def test_an_edit_of_something_else_does_not_conflict(ada: Any) -> None:
    mine = typed(protection__retries_per_s="4")
    edits.set_default_tier(environment="production", tier="free", reason=REASON, actor=OLGA)
    assert ada.post(PAGE, mine).status_code == 302


def test_the_preview_says_what_changes(ada: Any) -> None:
    hasty = typed(
        protection__shedding__on="on", observe_for_s__shedding="3600", protection__routes="GET / = 5"
    )
    text = text_of(ada.post(f"{PAGE}/preview", hasty).content.decode())
    for words in (
        "shed when calls waiting exceed: off",
        "Trial mode of shedding: off",
        "until ",
        "GET / 5 ms",
    ):
        assert words in text, words
    assert "retries" not in text
    assert published() is None
    assert "Nothing is changed yet" in ada.post(f"{PAGE}/preview", typed()).content.decode()
    assert "Line 1" in ada.post(f"{PAGE}/preview", typed(protection__routes="x")).content.decode()


def test_only_admins_have_the_form(log_in: Any) -> None:
    assert f'href="{PAGE}"' not in log_in("olga").get("/servers").content.decode()
    assert log_in("olga").get(PAGE).status_code == 403
    client = log_in("ada")
    assert f'href="{PAGE}"' in client.get("/servers").content.decode()
    assert PAGE in {entry["href"] for entry in client.get("/palette").json()["entries"]}


def test_the_audit_shows_a_time_not_a_number(ada: Any) -> None:
    change({}, shedding=3600)
    assert re.search(
        r"trial of shedding until \d+ \w+ 20\d\d \d\d:\d\d UTC", ada.get("/audit").content.decode()
    )


def test_every_control_belongs_to_a_value_of_the_edit(production: str) -> None:
    row = environment_of("production")
    found = groups(row, values_of(row), {}, datetime.now(UTC))
    names = {control.name for group in found for control in group.controls}
    names |= {group.switch.name for group in found if group.switch}
    assert names == set(values_of(row))
    assert {part for part in OBSERVED_PARTS if f"observe_for_s.{part}" in names} == set(OBSERVED_PARTS)
    assert typed_settings(values_of(row), row)["observe_for_s"] == {}


def test_the_form_can_schedule(ada: Any) -> None:
    mine = typed(protection__retries_per_s="4")
    wrong = ada.post(PAGE, mine | {"starts": "2020-01-01T00:00"})
    shown = wrong.content.decode()
    assert wrong.status_code == 422
    assert 'id="f-starts_error">Choose a time in the future.' in shown
    assert 'value="2020-01-01T00:00"' in shown, "what was typed stays"
    assert 'id="f-starts_error">Enter a date' in ada.post(PAGE, mine | {"starts": "soon"}).content.decode()
    assert "Nothing is changed." in ada.post(PAGE, typed(starts="2029-01-01T00:00")).content.decode()
    later = f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%dT%H:%M}"
    assert ada.post(PAGE, mine | {"starts": later})["Location"] == "/schedules"
    assert Schedule.objects.get().document == {"protection": {"retries_per_s": 4}}
    assert published() is None
