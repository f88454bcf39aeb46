"""The form of a dependency's settings."""

from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from shown import text_of

from controlplane.audit.models import Entry
from controlplane.editing import edits
from controlplane.editing.plans import apply_plan, plan_from_document
from controlplane.fleet.models import Server
from controlplane.policies.document import environment_of, policy_of
from controlplane.policies.models import Dependency, Kind
from controlplane.schedules.due import run_due
from controlplane.schedules.models import Schedule
from dashboard.views.breakers.dependency_form import groups, new_row, typed_settings, values_of
from fuseboard.contract.protection_fields import CALL_SETTINGS
from tests.people import ADA

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = "/breakers/payments-api/settings"
REASON = "The vendor became slower"


@pytest.fixture
def ada(log_in: Any) -> Any:
    return log_in("ada")


def row() -> Dependency:
    return Dependency.objects.get(name="payments-api")


def typed(**changes: str) -> dict[str, str]:
    """The form as it is displayed, with some values typed over it; dots are ``__``."""
    values = values_of(row(), {}) | {"version": str(row().version), "reason": REASON}
    return values | {name.replace("__", "."): value for name, value in changes.items()}


def test_the_form_shows_every_setting_and_saving_it_unchanged_changes_nothing(ada: Any) -> None:
    page = ada.get(PAGE).content.decode()
    for setting in CALL_SETTINGS:
        assert f'name="protection.{setting.path}' in page, setting.path
    before, revision = policy_of(environment_of("production")), environment_of("production").revision
    answer = ada.post(PAGE, typed())
    assert (answer.status_code, answer["Location"]) == (302, "/breakers/payments-api")
    assert "Nothing has changed." in ada.get("/breakers/payments-api").content.decode()
    assert policy_of(environment_of("production")) == before
    assert environment_of("production").revision == revision


def test_it_saves_all_of_it_in_one_revision(ada: Any) -> None:
    revision = environment_of("production").revision
    changes = typed(
        breaker__open_ms="45000",
        timeout_ms="8000",
        wait_ms="500",
        fallback_note="Charge later",
        protection__tier="critical",
        protection__bulkhead__max_concurrent="30",
        protection__bulkhead__when_full__standard="queue",
        protection__bulkhead__queues__optional="0",
        protection__bulkhead__borrow="yes",
        protection__retry__on="off",
        protection__local_rate__on="on",
    )
    assert ada.post(PAGE, changes).status_code == 302
    assert environment_of("production").revision == revision + 1
    saved = row()
    assert (saved.open_ms, saved.timeout_ms, saved.wait_ms, saved.fallback_note) == (
        45_000,
        8_000,
        500,
        "Charge later",
    )
    found = next(
        each for each in policy_of(environment_of("production")).dependencies if each.name == saved.name
    )
    assert found.protection is not None
    assert found.protection.retry is None
    assert found.protection.local_rate is not None
    assert found.protection.bulkhead is not None
    assert (found.protection.bulkhead.max_concurrent, found.protection.bulkhead.borrow) == (30, True)
    assert found.protection.bulkhead.queues == (30, 30, 0)
    assert found.protection.bulkhead.when_full == ("queue", "queue", "discard")
    entry = Entry.objects.get(action="dependency.set")
    assert (entry.actor, entry.reason) == ("ada", REASON)
    assert entry.after["protection.bulkhead.max_concurrent"] == 30


def test_limits_of_own_machines_follow_the_time_of_calls(ada: Any) -> None:
    page = text_of(ada.get(PAGE).content.decode())
    assert "Lower limits of calls at once when calls take longer by, percent" in page
    assert "0 to 1,000; over their lowest time; 0: never. For pools of own machines" in page
    assert ada.post(PAGE, typed(latency_rise_percent="1001")).status_code == 422
    preview = text_of(ada.post(f"{PAGE}/preview", typed(latency_rise_percent="50")).content.decode())
    assert "Add one with the algorithm concurrency." in preview
    assert "Set vendor_floor_percent in its settings." in preview
    assert ada.post(PAGE, typed(latency_rise_percent="50")).status_code == 302
    (found,) = [one for one in policy_of(environment_of("production")).dependencies if one.name == row().name]
    assert (row().latency_rise_percent, found.latency_rise_percent) == (50, 50)


def test_it_is_scheduled_with_only_what_was_changed(ada: Any) -> None:
    starts = f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%dT%H:%M}"
    changes = {
        "breaker__open_ms": "45000",
        "protection__retry__on": "off",
        "protection__bulkhead__max_concurrent": "30",
    }
    version = row().version
    wrong = ada.post(PAGE, typed(**changes) | {"starts": "soon"})
    assert wrong.status_code == 422
    assert 'value="45000"' in wrong.content.decode()
    unchanged = ada.post(PAGE, typed() | {"starts": starts})
    assert unchanged.status_code == 422
    assert "Nothing is changed" in unchanged.content.decode()
    assert not Schedule.objects.exists()
    assert ada.post(PAGE, typed(**changes) | {"starts": starts}).status_code == 302
    assert row().version == version
    made = Schedule.objects.get()
    assert made.document == {
        "dependencies": {
            "payments-api": {
                "breaker": {"open_ms": 45_000},
                "protection": {"retry": None, "bulkhead": {"max_concurrent": 30}},
            }
        }
    }
    # Another admin changes something else until then: it stays.
    assert ada.post(PAGE, typed(timeout_ms="8000")).status_code == 302
    Schedule.objects.update(due_at=datetime.now(UTC))
    run_due()
    made.refresh_from_db()
    assert made.state == "applied", made.error
    saved = row()
    assert (saved.open_ms, saved.timeout_ms) == (45_000, 8_000)
    assert "retry" not in saved.protection
    assert saved.protection["bulkhead"]["max_concurrent"] == 30


def test_a_schedule_from_an_older_page_reverts_nothing(ada: Any) -> None:
    starts = f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%dT%H:%M}"
    older = typed(breaker__open_ms="45000") | {"starts": starts}
    assert ada.post(PAGE, typed(timeout_ms="8000")).status_code == 302
    refused = ada.post(PAGE, older)
    assert refused.status_code == 409
    assert f'value="{starts}"' in refused.content.decode()
    assert not Schedule.objects.exists()


def test_wrong_values_are_reported_at_their_fields_and_what_was_typed_stays(ada: Any) -> None:
    wrong = typed(
        timeout_ms="soon",
        protection__bulkhead__shares__critical="60",
        protection__retry__attempts="9",
        breaker__open_ms="1",
    )
    answer = ada.post(PAGE, wrong)
    assert answer.status_code == 422
    page = answer.content.decode()
    assert "Enter a whole number from" in page
    assert 'value="soon"' in page
    answer = ada.post(PAGE, wrong | {"timeout_ms": "5000"})
    page = answer.content.decode()
    assert answer.status_code == 422
    assert "Enter a whole number from 1 to 5." in page
    answer = ada.post(PAGE, wrong | {"timeout_ms": "5000", "protection.retry.attempts": "3"})
    assert answer.status_code == 422
    assert "the sum must be 100 percent, not 110" in unescape(answer.content.decode()).lower()
    answer = ada.post(PAGE, typed(reason="x"))
    assert answer.status_code == 422
    assert "Say why" in answer.content.decode()
    assert row().version == 1


def test_a_conflict_keeps_the_input_and_the_next_save_replaces(ada: Any) -> None:
    from tests.people import OLGA

    mine = typed(timeout_ms="7000")
    edits.set_protection(
        environment="production",
        dependency="payments-api",
        protection={"sla_ms": 900},
        expected_version=None,
        reason=REASON,
        actor=OLGA,
    )
    answer = ada.post(PAGE, mine)
    assert answer.status_code == 409
    page = answer.content.decode()
    assert "saved payments-api while you were editing" in page
    assert 'value="7000"' in page
    assert 'name="version" value="2"' in page
    assert ada.post(PAGE, mine | {"version": "2"}).status_code == 302
    assert row().timeout_ms == 7_000


def test_the_preview_says_what_changes_with_the_advice_of_a_plan(ada: Any) -> None:
    hasty = typed(
        breaker__consecutive_failures="1",
        breaker__open_ms="5000",
        fallback_note="",
        timeout_ms="4000",
        protection__bulkhead__queue_timeout_ms="4500",
    )
    answer = ada.post(f"{PAGE}/preview", hasty)
    assert answer.status_code == 200
    text = text_of(answer.content.decode())
    for words in (
        "Open time: 60,000 ms → 5,000 ms",
        "Bulkhead: queue timeout: ",
        "Opens after 1 failure in a row",
        "Open time is 5,000 ms",
        "What callers do is not described",
        "Queue timeout is 4,500 ms, not below the timeout of a call, 4,000 ms",
    ):
        assert words in text, words
    assert row().version == 1
    text = ada.post(f"{PAGE}/preview", typed(breaker__open_ms="")).content.decode()
    assert "Enter a whole number from" in text
    assert "Nothing is changed yet" in ada.post(f"{PAGE}/preview", typed()).content.decode()


@pytest.mark.parametrize("kind", Kind.values)
def test_the_presets_of_a_new_dependency_warn_about_nothing(ada: Any, kind: str) -> None:
    # A pod with an older agent ignores some presets. That is a warning about the pod.
    Server.objects.update(carries_counts=True, enforces_budgets=True)
    page = ada.get(f"/dependencies/new?kind={kind}").content.decode()
    preview = page[page.index('id="preview"') :]
    preview = preview[: preview.index("<label")]
    assert "Saving adds the dependency" in preview
    assert "st-warn" not in preview
    hasty = {"name": "ledger", "kind": kind, "drawn_for": kind, "breaker.open_ms": "5000"}
    shown = text_of(ada.post("/dependencies/new/preview", hasty).content.decode())
    assert "Open time is 5,000 ms" in shown
    assert "What callers do" not in shown, "nobody knows it before it is used"


def test_a_preset_fills_in_the_form_and_saves_nothing(ada: Any) -> None:
    page = ada.get(f"{PAGE}?retry=background&bulkhead=small&sla=llm").content.decode()
    assert 'name="protection.retry.attempts" value="5"' in page
    assert 'name="protection.bulkhead.max_concurrent" value="20"' in page
    assert 'name="protection.sla_ms" value="30000"' in page
    assert row().version == 1
    assert ada.get(f"{PAGE}?retry=unknown").status_code == 200


def test_only_admins_have_the_form(log_in: Any) -> None:
    assert "Settings" not in log_in("olga").get("/breakers/payments-api").content.decode()
    assert log_in("olga").get(PAGE).status_code == 403
    client = log_in("ada")
    assert f'href="{PAGE}"' in client.get("/breakers/payments-api").content.decode()
    assert client.get("/breakers/nobody/settings").status_code == 404


def test_every_control_belongs_to_a_value_of_the_edit(production: str) -> None:
    values = values_of(row(), {})
    found = groups(values, {}, row())
    names = {control.name for group in found for control in (*group.controls, *group.more)}
    names |= {group.switch.name for group in found if group.switch}
    assert names == set(values)
    assert typed_settings(values, row()).timeout_ms == row().timeout_ms


NEW_PAGE = "/dependencies/new"
SENTENCE = "50 calls at once per pod; more wait 5 s"


def test_the_form_of_a_new_dependency_suggests_a_protection(ada: Any) -> None:
    page = text_of(ada.get(NEW_PAGE).content.decode())
    assert f"Bulkhead {SENTENCE}" in page
    assert f"Bulkhead: {SENTENCE}" in page
    assert "Retries 1 retry, after 500 ms" in page
    assert "Local rate off" in page


def test_the_earlier_address_of_the_form_leads_to_it(ada: Any) -> None:
    answer = ada.get("/edit/dependency?new")
    assert (answer.status_code, answer["Location"]) == (302, NEW_PAGE)


@pytest.mark.parametrize(
    ("kind", "size", "slots", "wait_ms"),
    [("llm", "50", 50, 3_000), ("external", "20", 20, 0), ("database", "off", None, 0)],
)
def test_a_new_dependency_gets_what_its_form_shows(
    ada: Any, kind: str, size: str, slots: int | None, wait_ms: int
) -> None:
    data = {
        "name": "ledger",
        "kind": kind,
        "timeout_ms": "4000",
        "reason": REASON,
    }
    if size == "off":
        data |= dict.fromkeys(("protection.bulkhead.on", "protection.retry.on"), "off")
        data["protection.sla_ms"] = "0"
    else:
        data["protection.bulkhead.max_concurrent"] = size
    answer = ada.post(NEW_PAGE, data)
    assert answer.status_code == 302, answer.content.decode()
    saved = Dependency.objects.get(name="ledger")
    assert saved.wait_ms == wait_ms
    if slots is None:
        assert saved.protection == {}
        return
    bulkhead = saved.protection["bulkhead"]
    assert (bulkhead["max_concurrent"], bulkhead["queue_timeout_ms"]) == (slots, 2_000)
    assert bulkhead["share_idle"] is True
    assert bulkhead["when_full"] == ["queue", "queue", "discard"]
    assert "retry" in saved.protection


def test_the_form_suggests_a_protection_until_a_person_saves_it(ada: Any) -> None:
    unprotected = {"kind": "external", "protection": "off", "fallback_note": "Order queue"}
    plan = plan_from_document({"dependencies": {"filed": unprotected}})
    apply_plan(environment="production", plan=plan, expected_revision=None, reason=REASON, actor=ADA)
    assert "Nothing protects pods from filed yet." in ada.get("/breakers/filed/settings").content.decode()
    edits.set_breaker_policy(
        environment="production", dependency="filed", breaker={}, timeout_ms=900, expected_version=None,
        reason=REASON, actor=ADA,
    )  # fmt: skip
    assert "Nothing protects pods" not in ada.get("/breakers/filed/settings").content.decode()


def test_a_wrong_size_a_wrong_kind_and_a_missing_name_are_refused_together(ada: Any) -> None:
    data = {"kind": "vendor", "protection.bulkhead.max_concurrent": "enormous", "reason": REASON}
    answer = ada.post(NEW_PAGE, data)
    assert answer.status_code == 422
    page = answer.content.decode()
    assert "Choose one of the values." in page
    assert "Enter a whole number from 1 to 10,000." in page
    assert "Enter a name, such as payments-api." in page
    assert 'value="enormous"' in page
    taken = ada.post(NEW_PAGE, {"name": "search", "kind": "llm", "reason": REASON})
    assert taken.status_code == 422
    assert 'id="f-name_error">A dependency with this name already exists.' in taken.content.decode()
    wrong = ada.post(NEW_PAGE, {"name": "no/slash", "kind": "llm", "reason": REASON}).content.decode()
    assert 'id="f-name_error">Use 1 to 64 letters' in wrong


def test_one_save_sets_the_name_the_owner_and_every_part(ada: Any) -> None:
    revision = environment_of("production").revision
    data = {
        "name": "ledger",
        "kind": "external",
        "drawn_for": "external",
        "owner": "billing",
        "breaker.open_ms": "45000",
        "timeout_ms": "8000",
        "protection.bulkhead.max_concurrent": "30",
        "protection.retry.attempts": "3",
        "protection.retry.floor_milli": "0.5",
        "reason": REASON,
    }
    answer = ada.post(NEW_PAGE, data)
    assert answer.status_code == 302
    assert answer["Location"] == f"/breakers/ledger?saved={revision + 1}"
    assert environment_of("production").revision == revision + 1
    saved = Dependency.objects.get(name="ledger")
    assert (saved.kind, saved.owner, saved.open_ms, saved.timeout_ms) == (
        "external",
        "billing",
        45_000,
        8_000,
    )
    retry = saved.protection["retry"]
    assert (saved.protection["bulkhead"]["max_concurrent"], retry["attempts"]) == (30, 3)
    assert retry["floor_milli"] == 500
    assert "Undo" in ada.get(answer["Location"]).content.decode()


def test_another_kind_fills_in_what_was_not_typed(ada: Any) -> None:
    sent = values_of(new_row("external"), {}) | {"drawn_for": "external", "kind": "llm", "timeout_ms": "8000"}
    page = ada.post(f"{NEW_PAGE}/settings", sent).content.decode()
    assert 'name="drawn_for" value="llm"' in page
    assert 'name="breaker.slow_ms" value="30000"' in page
    assert 'name="timeout_ms" value="8000"' in page
    assert not Dependency.objects.filter(kind="llm").exists()


def test_a_new_dependency_is_scheduled(ada: Any) -> None:
    starts = f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%dT%H:%M}"
    data = {"name": "ledger", "kind": "llm", "reason": REASON, "starts": starts}
    assert ada.post(NEW_PAGE, data).status_code == 302
    Schedule.objects.update(due_at=datetime.now(UTC))
    run_due()
    made = Schedule.objects.get()
    assert made.state == "applied", made.error
    assert Dependency.objects.get(name="ledger").protection["bulkhead"]["max_concurrent"] == 50


def test_a_part_that_is_off_loses_no_typed_value_silently(ada: Any) -> None:
    changes = typed(protection__retry__on="off", protection__retry__attempts="5")
    answer = ada.post(PAGE, changes)
    assert answer.status_code == 422
    assert "This part is off, and \u201cAttempts\u201d was changed." in answer.content.decode()
    assert row().version == 1


def test_a_part_that_another_person_changed_meanwhile_is_a_conflict(ada: Any) -> None:
    """It read "This part is off, and Attempts was changed" of a part in which nothing was typed."""
    drawn = typed(protection__retry__on="off")
    changed = typed(protection__retry__on="on", protection__retry__attempts="5")
    assert ada.post(PAGE, changed).status_code == 302
    answer = ada.post(PAGE, drawn)
    assert answer.status_code == 409
    assert "This part is off" not in answer.content.decode()


def test_each_of_three_values_has_its_own_error(ada: Any) -> None:
    page = ada.post(PAGE, typed(protection__timeouts_ms__standard="9" * 30)).content.decode()
    assert 'id="f-protection-timeouts_ms-standard_error">Enter a whole number from 0 to' in page
    assert "f-protection-timeouts_ms-critical_error" not in page


def test_settings_show_their_unit_and_default(ada: Any) -> None:
    page = text_of(ada.get(PAGE).content.decode())
    assert "default 60,000 ms" in page
    assert "0 to 10; default 1 per second" in page
    assert "Bulkhead now: 50 calls at once per pod; more wait 5 s" in page
    assert "Local rate now: off" in page


def test_the_settings_of_a_dependency_without_protection_suggest_it_once(ada: Any) -> None:
    """The API or a file made it, and no user has saved its settings."""
    Dependency.objects.filter(name="payments-api").update(protection={})
    page = " ".join(ada.get(PAGE).content.decode().split())
    assert "Nothing protects pods from payments-api yet." in page
    assert page.count(SENTENCE) == 1
    assert 'Bulkhead</h2><span class="meta">now: off' in page
    assert 'name="protection.bulkhead.share_idle"' in page
    assert row().protection == {}
    assert (
        ada.post(PAGE, typed(protection__bulkhead__on="off", protection__retry__on="off")).status_code == 302
    )
    page = ada.get(PAGE).content.decode()
    assert "Nothing protects pods" not in page
    assert SENTENCE not in page
