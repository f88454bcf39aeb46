"""What an admin changes of an alert rule: stored as a difference, applied to open alerts, previewed."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.alerts.lifecycle import AlertEvent, ResolvedWhy
from controlplane.alerts.models import Alert, Delivery
from controlplane.alerts.people.routing import warnings
from controlplane.alerts.people.rule_edits import RuleValues, preview_rule, rules_in_force, set_rule
from controlplane.alerts.rules.every import RULES
from controlplane.alerts.rules.rule import SEVERITIES, Threshold
from controlplane.alerts.rules.settings import settings_of
from controlplane.alerts.state.evaluate import evaluate as find
from controlplane.audit.models import Entry
from controlplane.errors import InvalidEdit, NotFound
from controlplane.fleet.live import StoreFigures
from controlplane.policies.models import Dependency, Environment
from controlplane.series.kinds import FLEET
from controlplane.status.status import status_of
from tests.controlplane.alerts.alert_facts import figures
from tests.controlplane.alerts.delivery.test_alert_deliveries import receiver
from tests.controlplane.alerts.test_alert_evaluator import ADA, evaluate, let_pass, measure
from tests.controlplane.calling import API, problem, send, token_of
from tests.controlplane.series.test_series_sealing import measure as measure_series
from tests.controlplane.series.test_series_sealing import row, thing, writer

WHY = "Bursts of imports are usual"
needs_postgres = pytest.mark.django_db(transaction=True)


def change(rule: str = "429", **values: Any) -> Any:
    return set_rule(environment="production", rule=rule, values=RuleValues(**values), reason=WHY, actor=ADA)


def stored() -> dict[str, Any]:
    return dict(Environment.objects.get(slug="production").alert_rules)


def test_a_threshold_belongs_to_a_rule_that_compares_a_figure() -> None:
    for rule in RULES:
        limits = [one for one in map(rule.threshold.of, SEVERITIES) if one is not None]
        assert bool(limits) == (rule.value is not None), rule.key
        assert all(rule.threshold.least <= one <= rule.threshold.most for one in limits), rule.key


@pytest.mark.parametrize(
    ("compare", "below", "at", "above"),
    [("more than", False, False, True), ("at least", False, True, True), ("less than", True, False, False)],
)
def test_a_threshold_is_compared_as_its_words_say(compare: Any, below: bool, at: bool, above: bool) -> None:
    threshold = Threshold(warning=0.5, compare=compare)
    assert [threshold.passed("warning", one) for one in (0.49, 0.5, 0.51)] == [below, at, above]
    assert not threshold.passed("critical", 9), "there is none"


def test_a_firing_alert_ends_at_a_part_of_its_threshold() -> None:
    """2 % are critical and 0.5 % a warning; a firing alert keeps each until 90 % of it."""

    def severity(share: float, firing: Any) -> list[str]:
        status = status_of(figures(requests_per_s=100, refused_per_s=100 * share))
        return [one.severity for one in find(status, firing={"429": firing} if firing else {})]

    assert [severity(share, None) for share in (0.019, 0.0046, 0.0044)] == [["warning"], [], []]
    assert [severity(share, "warning") for share in (0.019, 0.0046, 0.0044)] == [["warning"], ["warning"], []]
    shares = (0.019, 0.0179, 0.0046, 0.0044)
    assert [severity(share, "critical") for share in shares] == [["critical"], ["warning"], ["warning"], []]
    near = Threshold(warning=0.5, critical=0.52, clear_percent=90)
    assert [near.passed("critical", one, firing=True) for one in (0.51, 0.49)] == [True, False]
    assert near.passed("warning", 0.49, firing=True)
    count = Threshold(warning=3, whole=True)
    assert [count.passed("warning", one, firing=True) for one in (3, 4)] == [False, True]


def test_an_alert_below_its_threshold_says_where_it_ends() -> None:
    status = status_of(figures(requests_per_s=1_000, refused_per_s=4.6, store=StoreFigures(p99_us=4_600)))
    firing: dict[str, Any] = {"429": "warning", "p99": "critical"}
    refused, slow = sorted(find(status, firing=firing), key=lambda one: one.key)
    words = "More than 0.5 % is a warning, more than 2 % is critical."
    assert refused.detail.endswith(f"{words} Clears below 90 % of the threshold.")
    assert slow.headline is not None
    assert (slow.severity, slow.headline.verb) == ("critical", "4.6 ms, near its deadline")
    over = status_of(figures(requests_per_s=1_000, refused_per_s=5.1, store=StoreFigures(p99_us=5_100)))
    refused, slow = sorted(find(over, firing=firing), key=lambda one: one.key)
    assert refused.detail.endswith(words)
    assert slow.headline is not None
    assert slow.headline.verb == "5.1 ms, over its deadline"


@needs_postgres
def test_an_alert_without_traffic_ends_when_its_rule_is_disabled(production: str) -> None:
    measure(5)
    evaluate()
    let_pass(120)
    assert evaluate() == [("429", AlertEvent.FIRED)]
    measure(0.5, requests_per_s=0.9)
    assert evaluate() == []
    change(enabled=False)
    assert evaluate() == []
    let_pass(300)
    assert evaluate() == [("429", AlertEvent.RESOLVED)]
    assert Alert.objects.get(key="429").resolved_why == ResolvedWhy.CLEARED


@needs_postgres
def test_a_figure_that_moves_around_its_threshold_makes_one_alert(production: str) -> None:
    receiver(least_level=1)
    measure(0.51)
    evaluate()
    let_pass(120)
    assert evaluate() == [("429", AlertEvent.FIRED)]
    for _ in range(4):
        measure(0.46)
        assert evaluate() == []
        let_pass(600)
        assert evaluate() == [], "46 of 10,000 is above 90 % of the threshold"
        measure(0.51)
        assert evaluate() == []
    measure(0.46)
    for percent, ends in ((None, []), (95, ["429"])):
        values = RuleValues(clear_percent=percent)
        preview = preview_rule(environment=production, rule="429", values=values)
        assert ([one.key for one in preview.ends], preview.begins) == (ends, [])
    change(clear_percent=95)
    assert evaluate() == []
    let_pass(300)
    assert evaluate() == [("429", AlertEvent.RESOLVED)]
    assert evaluate() == [], "46 of 10,000 begins no alert"


def test_a_changed_threshold_decides_in_a_status() -> None:
    some = figures(requests_per_s=100, refused_per_s=1)
    facts = {"429": {"warning": 0.02, "critical": 0.05}}
    assert [one.severity for one in find(status_of(some))] == ["warning"]
    assert find(status_of(replace(some, alert_rules=facts))) == []
    worse = replace(some, alert_rules={"429": {"critical": 0.009}})
    assert [one.severity for one in find(status_of(worse))] == ["critical"]
    assert find(status_of(replace(some, alert_rules={"429": {"enabled": False}}))) == []


@needs_postgres
def test_only_differences_are_stored_and_each_change_is_an_entry_of_the_audit(production: str) -> None:
    changed = change(warning=1.0, critical=2.0, for_s=120, keep_s=600, level=2, note="  Imports at night ")
    assert stored() == {"429": {"warning": 0.01, "keep_s": 600, "level": 2, "note": "Imports at night"}}
    assert changed.changed
    assert changed.settings.threshold.words == "More than 1 % is a warning, more than 2 % is critical."
    entry = Entry.objects.get(action="alert_rule.set")
    assert (entry.target_name, entry.reason, entry.actor, entry.before) == ("429", WHY, ADA.name, {})
    assert entry.after == stored()["429"]
    assert settings_of(stored(), "429").timing.fires_after_s == 120
    others = [one for one in rules_in_force("production") if one.key != "429"]
    assert others
    assert not any(one.changed for one in others)
    change()
    assert stored() == {}, "it follows the default again"


@needs_postgres
@pytest.mark.parametrize(
    ("rule", "values", "field"),
    [
        ("429", {"warning": 101.0}, "warning"),
        ("429", {"warning": float("nan")}, "warning"),
        ("429", {"warning": 5.0}, "critical"),
        ("429", {"for_s": -1}, "for_s"),
        ("429", {"keep_s": 86_401}, "keep_s"),
        ("429", {"level": 3}, "level"),
        ("429", {"note": "x" * 501}, "note"),
        ("429", {"clear_percent": 101}, "clear_percent"),
        ("429", {"clear_percent": 9}, "clear_percent"),
        ("local", {"clear_percent": 90}, "clear_percent"),
        ("open", {"clear_percent": 90}, "clear_percent"),
        ("token", {"clear_percent": 90}, "clear_percent"),
        ("local", {"critical": 2.5}, "critical"),
        ("lag", {"warning": 5.0}, "warning"),
        ("open", {"critical": 5.0}, "critical"),
        ("token", {"warning": 3.0}, "critical"),
        ("redis-down", {"enabled": False}, "enabled"),
        ("all-local", {"for_s": 60}, "for_s"),
    ],
)
def test_wrong_values_are_named_and_change_nothing(
    production: str, rule: str, values: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidEdit) as refused:
        change(rule, **values)
    assert field in refused.value.errors
    assert stored() == {}
    with pytest.raises(NotFound):
        change("soon")


@needs_postgres
def test_a_change_judges_open_alerts_without_a_second_message(production: str) -> None:
    """5 % are refused all the time: whatever the admin changes, the alert is fired once and resolved once."""
    receiver(least_level=1)
    measure(5.0)
    evaluate()
    let_pass(120)
    assert evaluate() == [("429", AlertEvent.FIRED)]
    Delivery.objects.update(state="sent", attempts=1)
    for values in ({"for_s": 600}, {"level": 2}, {"note": "x"}):
        change(**values)
        assert evaluate() == []
        alert = Alert.objects.get()
        assert alert.state == "firing"
    change(level=2, warning=3.0, critical=6.0)
    evaluate()
    alert.refresh_from_db()
    assert (alert.level, alert.severity) == (2, "warning")
    change(enabled=False)
    assert evaluate() == []
    let_pass(300)
    assert evaluate() == [("429", AlertEvent.RESOLVED)]
    assert list(Delivery.objects.order_by("created_at").values_list("kind", flat=True)) == [
        "fired",
        "resolved",
    ]
    assert evaluate() == []


@needs_postgres
def test_a_rule_that_is_raised_to_people_needs_a_receiver(production: str) -> None:
    """Only alerts of level 2 are warnings of the page; a rule of level 1 becomes one by its new level."""
    receiver(least_level=3)
    owner = Dependency.objects.filter(environment=production).first()
    assert owner is not None
    Dependency.objects.filter(pk=owner.pk).update(owner="payments")
    said = "warning alerts of level 2 about dependencies of payments"
    of_dependencies = ("backlog-dead", "backlog-full", "backlog-untaken", "divided", "learned-low")
    for key in (*of_dependencies, "open-share", "vendor-auth"):
        change(key, level=1)
    assert not any(said in one for one in warnings(production))
    change("near", level=2)
    assert any(said in one for one in warnings(production))
    change("near", level=2, enabled=False)
    assert not any(said in one for one in warnings(production)), "it is not evaluated"


@needs_postgres
def test_a_preview_says_what_would_be_found_and_what_would_have_fired(production: str) -> None:
    measure(1.0)
    before = timezone.now()
    start = before.replace(minute=0, second=0, microsecond=0) - timedelta(hours=3)
    fleet, gateway = thing(FLEET, ""), writer("g1")
    for span in range(360):
        # 3 % refused for 10 minutes, twice, with 20 minutes of 0.3 % between.
        refused = 30 if span // 60 in (1, 4) else 3
        measure_series(gateway, span, FLEET, {fleet: row(FLEET, 1_000, refused=refused)}, hour=start)
    preview = preview_rule(environment=production, rule="429", values=RuleValues())
    assert (preview.begins, preview.ends, preview.open, preview.fired) == ([], [], [], 0)
    assert preview.would_have_fired == 2
    raised = preview_rule(environment=production, rule="429", values=RuleValues(warning=4.0, critical=5.0))
    assert (raised.would_have_fired, raised.would_have_fired_as_set) == (0, 2)
    assert [one.severity for one in raised.ends] == ["warning"]
    lowered = preview_rule(environment=production, rule="429", values=RuleValues(for_s=0, keep_s=86_400))
    assert lowered.would_have_fired == 1, "it stays one alert"
    assert preview_rule(environment=production, rule="open", values=RuleValues()).would_have_fired is None
    # Between the two times, 0.3 % were refused: below 90 % of 0.5 %, and above 90 % of 0.33 %.
    for share, fired in ((0.5, 2), (0.33, 1)):
        lower = RuleValues(warning=share)
        assert preview_rule(environment=production, rule="429", values=lower).would_have_fired == fired
    assert stored() == {}


@needs_postgres
def test_the_api_lists_changes_and_previews_rules(production: str) -> None:
    admin = token_of("admin")
    [listed] = [one for one in send(admin, "GET", f"{API}/alert-rules").json() if one["rule"] == "p99"]
    assert (listed["warning"], listed["critical"], listed["unit"]) == (20, 100, "% of the deadline")
    assert listed["clear_percent"] == 90
    body = {"warning": 40, "clear_percent": 80, "expected_version": listed["version"], "reason": WHY}
    changed = send(admin, "PUT", f"{API}/alert-rules/p99", body).json()
    assert changed == send(admin, "GET", f"{API}/alert-rules/p99").json()
    assert (changed["warning"], changed["critical"], changed["changed"]) == (40, 100, True)
    assert changed["clear_percent"] == 80
    preview = send(admin, "POST", f"{API}/alert-rules/p99/preview", {}).json()
    assert preview["would_have_fired"] == 0
    problem(send(admin, "PUT", f"{API}/alert-rules/gone", body), 404)
    problem(send(admin, "PUT", f"{API}/alert-rules/p99", body | {"warning": 101}), 422)


@needs_postgres
def test_the_api_does_not_replace_what_another_admin_saved_meanwhile(production: str) -> None:
    admin, path = token_of("admin"), f"{API}/alert-rules/p99"
    read = send(admin, "GET", path)
    tag = read.headers["ETag"]
    assert tag == f'"{read.json()["version"]}"'
    mine = {"warning": 40, "reason": WHY}
    problem(send(admin, "PUT", path, mine), 428)
    problem(send(admin, "PUT", path, mine, **{"If-Match": "*"}), 400)
    change("p99", warning=30.0, for_s=90)
    refused = problem(send(admin, "PUT", path, mine, **{"If-Match": tag}), 409)
    assert (refused["changed"], refused["changed_by"]) == ({"warning": 30, "for_s": 90}, ADA.name)
    assert stored()["p99"]["for_s"] == 90, "nothing was changed"
    now = {"If-Match": f'"{refused["current_version"]}"'}
    changed = send(admin, "PUT", path, mine, **now)
    assert (changed.status_code, changed.json()["warning"]) == (200, 40)
    assert changed.headers["ETag"] == send(admin, "GET", path).headers["ETag"] != now["If-Match"]
    change("p99")
    again = problem(send(admin, "PUT", path, mine, **{"If-Match": changed.headers["ETag"]}), 409)
    assert again["changed"] == {"warning": None}, "the default again"
    assert send(admin, "PUT", path, mine, **{"If-Match": tag}).status_code == 200, "as it was read"
