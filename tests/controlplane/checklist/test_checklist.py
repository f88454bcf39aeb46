"""The checklist: each line follows what is configured and reported."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from controlplane.alerts.models import Route
from controlplane.api.http.deprecated import deprecated
from controlplane.checklist.checklist import checklist
from controlplane.checklist.lines import Verdict
from controlplane.checklist.read_state import used_old_names
from controlplane.editing import edits
from controlplane.fleet.models import RedisNode, Server
from controlplane.policies.models import Dependency, Environment
from controlplane.series import partitions
from controlplane.series.kinds import DEPENDENCY, FLEET
from controlplane.series.sealing import write_rows
from controlplane.series.totals import totals
from controlplane.status.read_watched import forget
from tests.controlplane.calling import API
from tests.controlplane.checklist.checklist_rows import (
    STATED,
    measured,
    put_poor_rows,
    put_rich_rows,
    today,
)
from tests.controlplane.ledger.ledger_rows import put_hour
from tests.controlplane.series.test_series_sealing import thing
from tests.dashboard.fleet_rows import put_server
from tests.people import ADA

DOCS = Path(__file__).resolve().parents[3] / "docs"
WHY: dict[str, Any] = {"environment": "production", "reason": "for a test", "actor": ADA}


@pytest.fixture
def poor(production: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_poor_rows(production, monkeypatch)


@pytest.fixture
def rich(production: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_rich_rows(production, monkeypatch)


def verdicts() -> dict[str, str]:
    return {line.key: line.verdict.value for line in checklist("production").lines}


#: Lines that depend on nothing that the control plane knows.
BY_PEOPLE = {
    "backups": "confirm",
    "breaker-fallback-independent": "confirm",
    "bulkhead-answer": "unchecked",
    "bulkhead-tiers": "confirm",
    "call-order": "unchecked",
    "cascade": "confirm",
    "documents": "confirm",
    "isolation": "confirm",
    "leaks": "confirm",
    "load-test": "confirm",
    "model-chain": "confirm",
    "model-context": "confirm",
    "model-default": "confirm",
    "model-output": "confirm",
    "model-shrink": "confirm",
    "retry-classification": "confirm",
}


def test_every_line_that_a_program_can_answer_is_ok_where_all_is_right(rich: None) -> None:
    found = verdicts()
    assert {key: verdict for key, verdict in found.items() if verdict != "ok"} == BY_PEOPLE


def test_every_line_that_a_program_can_answer_is_not_ok_where_all_is_wrong(poor: None) -> None:
    found = verdicts()
    # There are dependencies, a model that is called, live pods, no mute, and no limit that follows.
    fine = {key for key, verdict in found.items() if verdict == "ok"}
    ours = {"model-primary", "model-429"}
    assert fine == {"breaker-each-dependency", "pod-live", "alert-mutes", "limit-followed"} | ours
    assert found["breaker-fallback"] == found["limit-callers"] == found["agent-tokens"] == "missing"
    assert found["limit-unregistered"] == found["model-rate"] == found["alert-evaluated"] == "missing"
    # Nothing of another process is known.
    assert found["watchdog"] == "unchecked"


def test_used_old_names_of_the_api_are_counted_by_name(poor: None) -> None:
    @deprecated("POST /old")
    def operation() -> None:
        pass

    assert "POST /old" not in used_old_names()
    operation()
    operation()
    assert used_old_names()["POST /old"] == 2
    line = next(line for line in checklist("production").lines if line.key == "old-names")
    assert (line.verdict, line.found) == ("attention", "POST /breakers/{dependency}/hold (2 uses)")


def test_attempts_are_compared_with_the_slowest_route(rich: None) -> None:
    # Two attempts of 30 s each and a wait of 0.5 s.
    for sla_ms, verdict in ((60_500, "ok"), (60_499, "attention")):
        routes = [{"pattern": "GET /*", "sla_ms": 500}, {"pattern": "POST /*", "sla_ms": sla_ms}]
        Environment.objects.filter(pk="production").update(protection={"routes": routes})
        assert verdicts()["retry-time"] == verdict


def test_a_limit_that_is_higher_than_the_vendor_states_needs_attention(rich: None) -> None:
    def line() -> Any:
        return next(line for line in checklist("production").lines if line.key == "limit-stated")

    assert (line().verdict, line().found) == ("ok", "None is higher (2)")
    # One pod alone may lie, or use another key; here, one that makes no other calls, and says it twice.
    put_server("web-8", seen=[STATED[1]])
    Server.objects.filter(name="web-1").update(seen=[STATED[1]])
    low = ["openai", "rate", 300, 0, 10, 1.0]
    put_server("web-2", seen=[low, low])
    assert (line().verdict, line().found) == ("ok", "None is higher (1)")
    # Two pods differ.
    Server.objects.filter(name="web-1").update(seen=STATED)
    assert (line().verdict, line().found) == ("ok", "None is higher (1)")
    put_server("web-3", seen=[low, ["openai", "removed", 1, 1, 10, 1.0]])
    assert (line().verdict, line().found) == (
        "attention",
        "1 of 2 are higher than the vendor allows: openai/rate is 500, the vendor states 300",
    )
    # So few answers are no evidence.
    for name in ("web-2", "web-3"):
        put_server(name, seen=[["openai", "rate", 300, 0, 9, 1.0]])
    assert (line().verdict, line().found) == ("ok", "None is higher (1)")
    Server.objects.exclude(name="web-9").update(state="gone")
    assert line().verdict == "unchecked"


def test_a_followed_limit_below_half_of_the_configured_one_needs_attention(rich: None) -> None:
    def line() -> Any:
        return next(line for line in checklist("production").lines if line.key == "limit-followed")

    assert (line().verdict, line().found) == ("ok", "No limit follows its vendor.")
    Environment.objects.update(tuning={"vendor_floor_percent": 10})
    # A pod alone may lie.
    put_server("web-2", seen=[["openai", "rate", 0, 250], ["openai", "removed", 0, 1]])
    assert line().found == "Down to 10 % is allowed; 0 lowered now."
    put_server("web-3", seen=[["openai", "rate", 0, 250]])
    assert (line().verdict, line().found) == ("ok", "Down to 10 % is allowed; 1 lowered now.")
    for name in ("web-2", "web-3"):
        put_server(name, seen=[["openai", "rate", 0, 249]])
    assert (line().verdict, line().found) == (
        "attention",
        "below half of what is configured: openai/rate is 249 of 500",
    )


def test_a_busy_server_of_redis_needs_attention(rich: None) -> None:
    def line() -> Any:
        return next(line for line in checklist("production").lines if line.key == "redis-capacity")

    assert (line().verdict, line().found) == ("ok", "10.0.0.1:6379: 20 % of 100,000 commands/s")
    RedisNode.objects.update(ops_per_s=60_000, cpu_share=0.6)
    assert line().verdict == "attention"
    RedisNode.objects.update(cpu_share=0.01)
    assert line().verdict == "unchecked"


def test_nothing_that_was_not_measured_counts_as_passed(production: str) -> None:
    found = verdicts()
    unknown = {"breaker-window", "bulkhead-full", "limit-refused", "limit-unknown-tenants", "traces"}
    assert {found[key] for key in unknown} == {"unchecked"}
    assert found["pod-live"] == found["breaker-reported"] == "unchecked"
    Dependency.objects.all().delete()
    assert verdicts()["breaker-each-dependency"] == "missing"
    assert verdicts()["breaker-thresholds"] == "unchecked"


def test_a_line_names_what_is_wrong_and_what_to_do(poor: None) -> None:
    lines = {line.key: line for line in checklist("production").lines}
    assert lines["breaker-window"].found.startswith("1 of 1 have on average fewer calls in a window")
    assert lines["breaker-overrides"].found == "1 of 2 cannot open: openai is disabled"
    assert lines["limit-refused"].found == "10 % of 1,000 requests"
    assert "openai" in lines["bulkhead-full"].found
    assert lines["pod-versions"].found == "1 of 3 do not run 0.2.0, which most do: web-1 (0.1.0)"
    assert lines["alert-open"].found == "openai is open"
    assert all(line.do for line in lines.values() if line.verdict is not Verdict.OK)


def test_every_line_links_to_a_heading_of_the_documentation(poor: None) -> None:
    for line in checklist("production").lines:
        path, _, anchor = line.doc.partition("#")
        text = (DOCS.parent / path).read_text()
        slugs = {
            re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        }
        assert not anchor or anchor in slugs, line.doc


def test_another_environment_changes_nothing(rich: None) -> None:
    before = verdicts()
    common = {"environment": "staging", "reason": "for a test", "actor": ADA}
    edits.create_dependency(dependency="bare", kind="external", **common)
    put_server("web-9", environment="staging", mode="local")
    Route.objects.create(environment="staging", name="default", steps=[[0, []]])
    assert verdicts() == before
    found = {line.key: line for line in checklist("staging").lines}
    assert found["breaker-fallback"].found == "1 of 1 have no fallback note: bare"
    assert found["agent-tokens"].verdict == "missing"


def test_totals_add_whole_days_and_know_what_was_measured(production: str) -> None:
    measured(DEPENDENCY, "openai", day=today() - timedelta(days=1), ok=7, failures=2)
    short: list[int | None] = [None] * 24 * 2
    short[0], short[24] = 360, 5
    number = thing(DEPENDENCY, "older", first_at=today())
    # The database may have been made yesterday.
    partitions.ensure(today())
    write_rows(partitions.SPANS_1H, today(), [(number, short)])
    found = totals(
        production, DEPENDENCY, ("ok", "failures"), start=today() - timedelta(days=1), end=timezone.now()
    )
    by_name = {one.name: one for one in found}
    assert by_name["openai"].values == (7, 2)
    assert by_name["openai"].per_s(0) == pytest.approx(7 / 3600)
    # A row of an earlier release has no part for the field.
    assert (by_name["older"].values, by_name["older"].known_s) == ((5, None), 3600)
    with pytest.raises(ValueError, match="Only counts"):
        totals(production, FLEET, ("pods_local",), start=today(), end=timezone.now())


def test_the_api_answers_the_same_lines(call: Any, poor: None) -> None:
    answer = call("viewer", "GET", f"{API}/checklist")
    assert answer.status_code == 200
    document = answer.json()
    assert {line["key"]: line["verdict"] for line in document["lines"]} == verdicts()
    assert sum(document["counts"].values()) == len(document["lines"])
    assert document["revision"] == Environment.objects.get(pk="production").revision


def test_there_are_thirteen_lines_about_models(production: str) -> None:
    assert sum(key.startswith("model-") for key in verdicts()) == 13


def test_money_is_answered_by_prices_and_budgets(rich: None) -> None:
    def line(key: str) -> tuple[Verdict, str]:
        return next((one.verdict, one.found) for one in checklist("production").lines if one.key == key)

    assert line("model-price") == (Verdict.OK, "All have a price (1)")
    assert line("model-budget") == (Verdict.OK, "2 of them stop or degrade calls")
    day: dict[str, Any] = {"amount": 5_000_000, "period": "day", "expected_version": None, **WHY}
    edits.set_budget(budget="pro-day", tier="pro", at_100="warn", **day)
    assert line("model-cost")[1] == "3 budgets, 3 with a warning"
    assert line("model-budget") == (Verdict.ATTENTION, "pro-day only warn when spent")
    edits.set_model(model="unpriced", expected_version=0, **WHY)
    assert line("model-price") == (Verdict.ATTENTION, "1 of 2 have no price now: unpriced")
    put_hour(timezone.now(), model="gpt-9", unpriced=3)
    forget()
    assert line("model-price") == (Verdict.MISSING, "Calls without a price within two hours: gpt-9")


def test_a_limit_of_tokens_that_counts_nothing_needs_attention(rich: None):
    assert verdicts()["model-tokens"] == "ok"
    put_server("web-77", uncharged=[["openai", "tokens"]])
    line = next(line for line in checklist("production").lines if line.key == "model-tokens")
    assert (line.verdict, line.found) == (
        Verdict.ATTENTION,
        "calls of openai state no tokens, so the limit counts nothing",
    )
    Server.objects.filter(name="web-77").update(state="gone")
    assert verdicts()["model-tokens"] == "ok"
