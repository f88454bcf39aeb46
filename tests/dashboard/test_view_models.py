"""Pure functions from facts to what a page displays; no database, no clock."""

import zlib
from dataclasses import replace

import pytest
from django.template.loader import get_template
from django.test import RequestFactory

from controlplane.alerts.state.evaluate import FirstSeen
from controlplane.fleet.live import DependencyFigures, FleetFigures, StoreFigures, TenantFigures
from controlplane.status.facts import (
    BreakerSeen,
    Change,
    Dependency,
    Facts,
    Override,
    ScheduledChange,
    Server,
    Transition,
)
from dashboard import plots
from dashboard.live import drawing
from dashboard.live.charts import of_fleet
from dashboard.live.drawing import TICK_BYTES, SentFragments, announcement
from dashboard.live.history import History, mark
from dashboard.live.overview import build
from dashboard.live.pages import page_of
from dashboard.live.tiles import refused_limit, usual_p99_ms
from dashboard.live.timeline import segments
from dashboard.live.topics import PAGES, Topic
from tests.dashboard.live_page import LivePage

NOW = 1_795_144_367.0


def server(name, view=None, **fields):
    breakers = {"payments-api": view} if view is not None else {}
    return Server(name=name, last_seen=NOW, revision=7, epoch=1, breakers=breakers, **fields)


def facts(*servers, override=None, now=NOW, **fields):
    dependency = Dependency(name="payments-api", fallback="Order queue", override=override)
    fields["figures"] = replace(fields.get("figures", FleetFigures()), gateways=1)
    return Facts(
        now=now,
        as_of=now,
        epoch=1,
        revision=7,
        servers=servers,
        dependencies=fields.pop("dependencies", (dependency,)),
        **fields,
    )


def picture(some_facts, history=None):
    return build(some_facts, history or History(), FirstSeen())


def draw(topic, live, history, sent, **extra):
    return drawing.draw(page_of(topic, live, history), sent, **extra)


def whole(drawn):
    """The page that a new socket gets, as markup."""
    return LivePage().take(drawn.whole)


CLOSED = BreakerSeen(state="closed", generation=3, calls=40, failures=1)
OPEN = BreakerSeen(state="open", generation=4, since=NOW - 20, until=NOW + 40, calls=40, failures=31)


def test_the_newest_generation_is_the_state_of_the_fleet():
    live = picture(facts(server("a", CLOSED), server("b", OPEN), server("c", CLOSED)))
    breaker = live.breakers[0]
    assert (breaker.face.word, breaker.agree, breaker.live) == ("Open", 1, 3)
    assert breaker.disagreeing == [("closed", 2)]
    assert [s.verb for s in live.verdict.sentences] == ["open"]
    assert live.title == "payments-api open"
    assert live.worst_kind == "open"


def test_without_redis_the_fleet_is_what_most_pods_report():
    alone = [replace(view, local=True) for view in (OPEN, OPEN, CLOSED)]
    live = picture(facts(*(server(f"s{i}", view, mode="local") for i, view in enumerate(alone))))
    assert live.breakers[0].face.word == "Open"
    assert live.alerts[0].key == "local"
    assert live.alerts[0].severity == "critical"
    assert live.alerts[0].runbook == "redis-unreachable"
    assert [row.limits for row in live.fleet.rows] == ["without Redis"] * 3


def test_an_override_in_force_is_violet_and_counts_confirmations():
    held = Override(
        mode="forced_open", reason="CHG-1", actor="olga", expires_at=NOW + 60, made_at=NOW, revision=7
    )
    confirmed = BreakerSeen(state="open", generation=5, override="forced_open")
    breaker = picture(facts(server("a", confirmed), server("b", CLOSED), override=held)).breakers[0]
    assert (breaker.face.word, breaker.css, breaker.agree) == ("Forced open", "st-forced", 1)
    assert breaker.until == NOW + 60


def test_an_expired_override_is_not_displayed():
    over = Override(
        mode="forced_open", reason="x", actor="olga", expires_at=NOW - 1, made_at=NOW - 9, revision=7
    )
    assert picture(facts(server("a", CLOSED), override=over)).breakers[0].face.word == "Closed"


def test_the_worst_breaker_comes_first_and_a_quiet_fleet_says_so():
    names = ("calm", "broken")
    dependencies = tuple(Dependency(name=name) for name in names)
    one = Server(name="a", last_seen=NOW, revision=7, epoch=1, breakers={"calm": CLOSED, "broken": OPEN})
    live = picture(facts(one, dependencies=dependencies))
    assert [b.name for b in live.breakers] == ["broken", "calm"]
    calm = picture(facts(server("a", CLOSED)))
    assert calm.verdict.sentences == ()
    assert calm.verdict.calm == "All healthy."
    assert calm.verdict.breakers == "payments-api is closed."
    assert calm.alerts == ()
    assert calm.title == ""


def test_lag_counts_from_the_oldest_revision_a_pod_misses():
    behind = Server(name="b", last_seen=NOW, epoch=1, revision=4)
    revisions = ((4, NOW - 90), (5, NOW - 46), (6, NOW - 20), (7, NOW - 3))
    live = picture(facts(server("a"), behind, revisions=revisions))
    assert live.fleet.worst_lag_s == 46
    assert live.fleet.worst_lag_server == "b"
    assert [row.kind for row in live.fleet.rows] == ["lag", "shared"]
    assert (live.fleet.applied, live.fleet.live) == (1, 2)


def test_a_pod_that_rejected_its_configuration_comes_first():
    bad = Server(name="z", last_seen=NOW, epoch=1, revision=7, config_status="rejected", config_error="limit")
    live = picture(facts(server("a", mode="local"), bad))
    assert [row.kind for row in live.fleet.rows] == ["rejected", "local"]


def test_refused_tenants_add_up_to_the_total():
    tenants = [TenantFigures(f"t{i}", 10.0, 9.0 - i) for i in range(8)]
    live = picture(facts(figures=FleetFigures(requests_per_s=80, refused_per_s=44, tenants=tenants)))
    assert [row.name for row in live.tenants] == ["t0", "t1", "t2", "t3", "t4"]
    assert live.others is not None
    assert live.others.name == "3 others"
    assert sum(row.refused for row in live.tenants) + live.others.refused == 44


def test_slow_redis_and_too_many_refusals_are_alerts_with_runbooks():
    figures = FleetFigures(requests_per_s=100, refused_per_s=5, store=StoreFigures(p99_us=7_000))
    keys = {c.key: c.runbook for c in picture(facts(figures=figures)).alerts}
    assert keys == {"429": "too-many-429s", "p99": "redis-slow"}


def test_the_tile_of_refusals_has_the_threshold_of_the_rule():
    figures = FleetFigures(requests_per_s=100, refused_per_s=0.8, store=StoreFigures())
    changed = {"429": {"warning": 0.01}, "p99": {"warning": 0.5}}
    [usual, chosen] = [
        next(tile for tile in live.tiles if tile.key == "refused")
        for live in (picture(facts(figures=figures)), picture(facts(figures=figures, alert_rules=changed)))
    ]
    assert (usual.over, chosen.over) == (True, False)
    assert usual.foot.endswith("alert above 0.5 %")
    assert chosen.foot.endswith("alert above 1 %")
    assert usual_p99_ms(facts(alert_rules=changed)) == facts().store_deadline_ms / 2


def test_a_rule_that_is_off_draws_no_threshold():
    figures = FleetFigures(requests_per_s=100, refused_per_s=3, store=StoreFigures(p99_us=3_000))
    off = facts(figures=figures, alert_rules={"429": {"enabled": False}, "p99": {"enabled": False}})
    found = {tile.key: tile for tile in picture(off).tiles}
    assert (found["refused"].foot, found["refused"].over) == ("3 % of 100/s", False)
    assert 'class="lim"' not in found["refused"].spark
    assert (found["p99"].foot, found["p99"].over) == (f"budget {off.store_deadline_ms:g} ms", False)
    assert (refused_limit(off), usual_p99_ms(off)) == (None, None)
    [chart] = (chart for chart in of_fleet(refused_limit(off)) if chart.id == "chart-refused")
    assert (chart.limit, chart.limit_label) == (None, "")


def test_a_fleet_without_calls_is_not_called_cut_off_from_redis():
    live = picture(facts(server("a", CLOSED)))
    [tile] = (tile for tile in live.tiles if tile.key == "p99")
    assert (tile.value, tile.foot) == ("no data", "no recent calls to Redis")
    assert live.fleet.shared == 1


def test_a_tile_without_a_figure_is_not_the_loudest_one():
    """ "No calls", which is normal, was written as large as the figures, and a 0 was amber."""
    found = {tile.key: tile for tile in picture(facts(server("a", CLOSED))).tiles}
    assert (found["p99"].quiet, found["refused"].quiet) == (True, False)
    live, topic = picture(facts(server("a", CLOSED))), Topic(page="overview", role="viewer")
    drawn = draw(topic, live, History(), SentFragments(), rev=1, announce="")
    assert '<span class="v quiet">' in whole(drawn)
    locally = picture(facts(server("a", CLOSED), figures=FleetFigures(decided_locally_per_s=3.0)))
    [local] = (tile for tile in locally.tiles if tile.key == "local")
    assert (local.value, local.over) == ("0", False)


def test_an_alert_keeps_the_moment_it_was_first_seen():
    seen = FirstSeen()
    figures = FleetFigures(store=StoreFigures(p99_us=7_000))
    patient = picture(facts(server("a", CLOSED), figures=figures, store_deadline_us=50_000))
    assert [one.key for one in patient.alerts] == []
    assert [one.foot for one in patient.tiles if one.key == "p99"] == ["budget 50 ms"]
    build(facts(figures=figures), History(), seen)
    later = build(facts(figures=figures, now=NOW + 30), History(), seen)
    assert later.alerts[0].since == NOW
    assert build(facts(now=NOW + 31), History(), seen).alerts == ()
    again = build(facts(figures=figures, now=NOW + 40), History(), seen)
    assert again.alerts[0].since == NOW + 40, "it was forgotten in between"


def test_a_p99_that_nothing_measures_is_a_gap_not_a_response_time_of_zero():
    history = History()
    for second in range(30):
        store = StoreFigures(p99_us=900 if second < 15 else None)
        some = facts(now=NOW + second, figures=FleetFigures(store=store, gateways=1))
        build(some, history, FirstSeen())
    assert {value for value in history.points("p99") if value is not None} == {0.9}
    assert history.points("p99")[-1] is None


def test_history_is_drawn_in_even_steps_and_marks_calls():
    history = History()
    for second in range(90):
        figures = FleetFigures(dependencies={"payments-api": DependencyFigures(calls_per_s=5.0)})
        history.add(facts(now=NOW + second, figures=figures), {"refused": float(second)})
    points = history.points("refused")
    assert history.step_s == 3
    assert len(points) in (30, 31)
    assert points == sorted(points)
    assert history.marks("payments-api", count=5) == "ooooo"


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ((0, 0, 0, 0), " "),
        ((9, 0, 0, 0), "o"),
        ((9, 3, 0, 0), "b"),
        ((9, 0, 4, 0), "s"),
        ((0.1, 0.1, 0, 8), "c"),
    ],
)
def test_a_second_of_calls_is_one_mark(second, expected):
    assert mark(*second) == expected


def test_segments_follow_transitions_and_overrides_cover_them():
    moves = (
        Transition(dependency="d", at=80, before="half_open", after="closed", cause="recovered"),
        Transition(dependency="d", at=70, before="open", after="half_open", cause="elapsed"),
        Transition(dependency="d", at=50, before="closed", after="open", cause="ratio"),
    )
    found = segments(moves, "closed", None, 0, 100)
    assert [(s.kind, s.start, s.end) for s in found] == [
        ("closed", 0, 50),
        ("open", 50, 70),
        ("half", 70, 80),
        ("closed", 80, 100),
    ]
    held = Override(mode="forced_open", reason="r", actor="a", made_at=85, expires_at=95, revision=1)
    painted = segments(moves, "closed", None, 0, 100, [held])
    assert [(s.kind, s.start, s.end) for s in painted][-3:] == [
        ("closed", 80, 85),
        ("forced", 85, 95),
        ("closed", 95, 100),
    ]


def test_only_changes_are_drawn_again_and_no_reader_is_named():
    history, sent, topic = History(), SentFragments(), Topic(page="overview", role="operator")
    first = draw(topic, picture(facts(server("a", OPEN)), history), history, sent, rev=1, announce="")
    shown = LivePage()
    assert first.changed is None
    assert 'id="br-payments-api"' in shown.take(first.whole)
    assert "csrfmiddlewaretoken" not in whole(first)
    calm = draw(topic, picture(facts(server("a", OPEN)), history), history, sent, rev=2, announce="")
    assert shown.take(calm.changed).count("<hx-partial") == 1, "only the tick"
    moved = BreakerSeen(state="open", generation=4, since=NOW - 20, until=NOW + 40, calls=40, failures=33)
    again = draw(topic, picture(facts(server("a", moved)), history), history, sent, rev=3, announce="")
    changed = shown.take(again.changed)
    assert "[id='br-payments-api']" in changed
    assert "[id='cards']" not in changed, "an item is sent alone while the list stays"


def test_viewers_get_no_override_button():
    history, live = History(), picture(facts(server("a", OPEN)))
    for role, shown in (("viewer", False), ("operator", True), ("admin", True)):
        drawn = draw(Topic(page="overview", role=role), live, history, SentFragments(), rev=1, announce="")
        assert ("Force open&hellip;" in whole(drawn)) is shown


def test_transitions_are_announced_and_figures_are_not():
    before, after = picture(facts(server("a", CLOSED))), picture(facts(server("a", OPEN)))
    assert announcement(before, after) == "payments-api is open"
    assert announcement(after, after) == ""
    assert announcement(None, after) == ""


def test_names_from_outside_are_escaped_everywhere():
    bad = "<b>&\"'"
    change = Change(at=NOW, actor=bad, human=True, action=bad, target=bad, reason=bad, after={bad: bad})
    figures = FleetFigures(requests_per_s=5, tenants=[TenantFigures(bad, 3.0, 1.0)])
    one = Server(name="a", zone=bad, mode="local", mode_cause=bad, last_seen=NOW, epoch=1, revision=7)
    live = picture(facts(one, changes=(change,), figures=figures))
    for page in sorted(PAGES - {"breaker_history", "tenant"}):
        drawn = draw(Topic(page=page, role="admin"), live, History(), SentFragments(), rev=1, announce="")
        assert '<b>&"' not in whole(drawn)


def test_the_map_of_a_large_fleet_marks_the_pods_that_are_not_shared():
    """1,000 marks with names as Kubernetes makes them were more than a tick may send."""
    kinds = ["shared"] * 470 + ["local"] * 30
    pods = [(f"{number:032x}", kind, kind) for number, kind in enumerate(kinds)]
    drawn = plots.fleet([("north", pods), ("<south>", pods + pods[-40:])])
    assert "north: 470 of 500 shared" in drawn
    assert "&lt;south&gt;: 480 of 540 shared, 30 not drawn" in drawn
    assert drawn.count("s-local") == plots.MAX_OTHERS
    assert len(zlib.compress(drawn.encode())) < TICK_BYTES / 4
    assert "not drawn" not in plots.fleet([("north", pods[:200])])


@pytest.mark.django_db
def test_every_fragment_of_every_page_carries_the_id_it_is_sent_to():
    import re

    live = picture(facts(server("a", OPEN), server("b", CLOSED, mode="local")))
    for page in ("overview", "breakers", "breaker", "breaker_history", "servers", "audit"):
        key = "payments-api" if page in ("breaker", "breaker_history") else ""
        topic = Topic(page=page, role="admin", key=key)
        drawn = whole(draw(topic, live, History(), SentFragments(), rev=1, announce=""))
        for target, body in re.findall(
            r"hx-target=\"\[id='([^']+)'\]\"[^>]*>(.*?)</hx-partial>", drawn, re.DOTALL
        ):
            assert re.match(rf"<\w+[^>]*\bid=\"{re.escape(target)}\"", body), target


def test_the_503_page_needs_no_store():
    page = get_template("503.html")
    assert "Postgres" in page.render({})
    asked = RequestFactory().get("/"), RequestFactory().post("/")
    read, sent = (page.render({"request": request}) for request in asked)
    # Postgres can fail after it has stored the change.
    assert "It is not known whether your change was made" in sent
    assert "was made" not in read
    assert "othing was changed" not in read + sent


def test_moments_and_dotted_names_are_readable():
    from dashboard.templatetags.dashboard_tags import breakable
    from dashboard.words.change_words import column_words
    from dashboard.words.labels import difference

    due = {"due_at": "2026-11-21T10:00:00+00:00"}
    assert difference(None, due) == ("", "due 21 Nov 2026 10:00 UTC")
    ends = {"expires_at": "2026-11-20T20:45:14.736415+01:00"}
    assert column_words("expires_at", ends) == "20 Nov 2026 19:45 UTC"
    assert breakable("quotas.requests.limit") == "quotas.<wbr>requests.<wbr>limit"
    assert breakable("a.<b>") == "a.<wbr>&lt;b&gt;"


def test_a_full_bar_is_the_limit_and_a_mark_shows_it_above():
    """The limit was at 80 % of the bar, so that 0.2 of 8 and 18 of 120 looked alike."""
    from dashboard.templatetags.dashboard_tags import use_bar

    for use, limit, drawn in (
        (2, 8, 'class="bar-fg" x="0" width="25"'),
        (8, 8, 'class="bar-fg" x="0" width="100"'),
        (10, 8, 'class="bar-st" x="0" width="100"'),
    ):
        assert drawn in use_bar(use, limit)
        assert ('class="mk"' in use_bar(use, limit)) is (use > limit)
    assert 'd="M80 -1v' in use_bar(10, 8)


def test_fields_that_the_text_of_a_change_leaves_out_are_named():
    from dashboard.words.labels import left_off

    before = {"quotas.requests.limit": 30, "quotas.requests.burst": 30, "quotas.requests.endpoints": []}
    after = {
        "quotas.requests.limit": 45,
        "quotas.requests.burst": 45,
        "quotas.requests.endpoints": ["GET /a"],
    }
    assert left_off(before, after) == ["requests endpoints: none to GET /a"]
    settings = {"breaker.open_ms": 1, "breaker.consecutive_failures": 2, "breaker.half_open_calls": 3}
    raised = {field: value + 1 for field, value in settings.items()}
    assert len(left_off(settings, raised)) == 1
    assert left_off({}, after) == [], "a new thing is one change"
    quota = {"quotas.requests.limit": 5, "quotas.requests.burst": 5, "quotas.requests.window_s": 1}
    was = quota | {"quotas.requests.failure_policy": "fail_open", "protection.retry.floor_milli": 1_000}
    now = {"quotas.requests.limit": 6, "quotas.requests.burst": 6, "quotas.requests.window_s": 60}
    now |= {"quotas.requests.failure_policy": "fail_closed", "protection.retry.floor_milli": 2_500}
    assert left_off(was, now) == [
        "requests without Redis: allow to refuse",
        "retry floor: 1/s to 2.5/s",
    ]
    added = before | {
        "quotas.exports.limit": 5,
        "quotas.exports.window_s": 60,
        "quotas.exports.per": ["user"],
    }
    assert left_off(before, added) == [], "so is a new limit"
    assert left_off({"revision": 6, "a": 1}, {"tenant.created": 1200, "a": 2}) == [], (
        "and a plan has its counts"
    )


def quota_end(tenant, quota, at):
    return ScheduledChange(
        key=f"quota {tenant}/{quota}",
        title=f"Quota {quota} of {tenant} ends",
        at=at,
        tenant=tenant,
        quota=quota,
    )


def test_an_overdue_change_is_a_critical_alert():
    soon = (
        quota_end(tenant="acme", quota="requests", at=NOW - 40),
        quota_end(tenant="c", quota="b", at=NOW + 60),
    )
    found = {c.key: c for c in picture(facts(scheduled=soon)).alerts}
    overdue = found["overdue:quota acme/requests"]
    assert (overdue.severity, overdue.text) == ("critical", "Overdue: quota requests of acme ends")
    assert overdue.runbook == "scheduled-change-failed"
    assert found["soon:quota c/b"].severity == "warning"


def test_a_changed_limit_names_its_window_and_a_plan_its_counts():
    from dashboard.words.labels import difference

    before = {"quotas.requests.limit": 500, "quotas.requests.window_s": 60, "quotas.requests.burst": 5}
    after = {"quotas.requests.limit": 60, "quotas.requests.window_s": 1, "quotas.requests.shadow": True}
    old, new = difference(before, after)
    assert old == "requests limit 500 per min, requests burst 5"
    assert new == "requests limit 60 per s, requests shadow"
    stored = {"quotas.requests.algorithm": "token_bucket", "quotas.requests.failure_policy": "fail_open"}
    assert difference(None, stored)[1] == "requests algorithm: token bucket, requests without Redis: allow"
    retries = {"protection.retry.floor_milli": 1_500}
    assert difference(None, retries)[1] == "retry floor 1.5/s"
    plan = {"tenant.created": 1200, "dependency.changed": 2, "tier.changed": 1, "prune": False, "revision": 7}
    assert difference({"revision": 6}, plan)[1] == (
        "2 dependencies changed, 1,200 tenants created, 1 tier changed"
    )


def test_long_windows_have_readable_units():
    from dashboard.templatetags.dashboard_tags import seconds

    assert [seconds(ms) for ms in (250, 90_000, 300_000, 7_200_000, 2_592_000_000)] == [
        *("250 ms", "90 s", "5 min", "2 h", "30 d"),
    ]


def test_the_strip_has_a_mark_of_every_second_although_every_second_one_was_read():
    """Rates are smoothed over 5 s, and the hub reads less often what no page shows."""
    history = History()
    rates = FleetFigures(gateways=1, dependencies={"payments-api": DependencyFigures(calls_per_s=5.0)})
    for at in (1_000.0, 1_002.0, 1_004.1, 1_006.0):
        history.add(facts(server("a", CLOSED), now=at, figures=rates), {})
    assert history.marks("payments-api") == " " * 33 + "o" * 7
    history.add(facts(server("a", CLOSED), now=1_008.0, figures=FleetFigures(gateways=1)), {})
    assert history.marks("payments-api", count=5) == "ooo  "


def test_the_strip_of_seconds_is_blank_where_nothing_was_read():
    history = History()
    rates = FleetFigures(gateways=1, dependencies={"payments-api": DependencyFigures(calls_per_s=5.0)})
    for at in (1_000.0, 1_001.0, 1_020.0, 1_021.0):
        history.add(facts(server("a", CLOSED), now=at, figures=rates), {})
    assert history.marks("payments-api", count=10) == "        oo"
    assert history.marks("payments-api").strip() == "oo" + " " * 18 + "oo"
