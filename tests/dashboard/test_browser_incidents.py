"""S1 of the browser review, with real processes: agents in pods, Redis, control plane, and a browser.

Nothing is put into the database here: what a page says is what the processes did. Every test waits for
conditions only, and leaves a fleet without a fault.
"""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing import is_live
from fleet_screen import ALERTS, FAILING, HEADLINE, PATIENCE_S, VERDICT, Screen

from tests.dashboard.live_page import unpacked
from tests.faults.field import Field
from tests.waiting import wait_until

pytestmark = pytest.mark.browser

LIVE_PAGES = ("/", "/breakers", f"/breakers/{FAILING}", "/servers", "/servers/pod-1", "/tenant?key=acme")
OTHER_PAGES = ("/audit", "/tenants", "/drills", "/requests", "/schedules", "/revisions")


def test_a_new_visitor_never_gets_an_old_drawing(screen: Screen) -> None:
    """S1.1: the first message of a page brought a drawing from minutes before."""
    sockets: list[Any] = []
    drawn: dict[Any, list[float]] = {}

    def listen(socket: Any) -> None:
        sockets.append(socket)
        stamps = drawn.setdefault(socket, [])
        socket.on(
            "framereceived",
            lambda frame: stamps.extend(
                float(at) for at in re.findall(r'data-now="([0-9.]+)"', unpacked(frame)["html"]["tick"])
            ),
        )

    screen.page.on("websocket", listen)
    for _ in range(3):
        # Its last visitor leaves, and the page before the next visit has another topic.
        screen.open("/breakers")
        screen.open("/servers")
        left = time.time()
        wait_until(lambda left=left: time.time() > left + 2.5, "an old drawing")  # type: ignore[misc]
        asked = time.time()
        screen.open("/breakers")
        first = next(drawn[one] for one in reversed(sockets) if "page=breakers" in one.url)
        wait_until(lambda first=first: first, "a drawing", pause=_pause(screen))  # type: ignore[misc]
        assert min(first) > asked - 2, "it was older than 2 s when the page asked for it"


def test_a_drawing_older_than_two_seconds_is_never_called_live(screen: Screen) -> None:
    """S1.1: a web process that stands still, as one on a machine without memory."""
    screen.open("/")
    # What the label says itself, at every change of its text.
    screen.page.evaluate(
        "(window.oldest = 0, new MutationObserver(() => {"
        " const said = document.querySelector('#live').textContent.match(/^Live.*updated ([0-9.]+)/s);"
        " if (said) window.oldest = Math.max(window.oldest, said[1]); }"
        ").observe(document.querySelector('#live'), {subtree: true, childList: true, characterData: true}))"
    )
    web = screen.fleet.processes.by_name["web"].popen
    assert web is not None
    os.killpg(web.pid, signal.SIGSTOP)
    try:
        screen.until("document.querySelector('#live b').textContent === 'Reconnecting'")
        shown = screen.page.get_attribute("#tick", "data-now")
        at = time.strftime("%H:%M:%S", time.gmtime(float(shown)))
        assert at in screen.read("#live")
        assert screen.page.is_visible("#stale")
    finally:
        os.killpg(web.pid, signal.SIGCONT)
    is_live(screen.page)
    screen.until("document.querySelector('#stale').hidden")
    assert screen.page.evaluate("window.oldest") < 2


def test_a_killed_pod_is_in_the_headline_and_stays_counted(screen: Screen) -> None:
    """S1.2: "2 of 2 servers share limits. All dependencies are closed" with one of three pods dead."""
    screen.open("/")
    screen.says(VERDICT, "3 of 3 pods use shared limits")
    pod = screen.fleet.pods[2]
    pod.kill()
    try:
        screen.says(HEADLINE, "pod-3 is silent")
        screen.says(VERDICT, "2 of 3 pods use shared limits", "Limits are approximate")
        assert "All healthy" not in screen.read("#verdict")
        assert "limits are exact" not in screen.read("#kpis").lower()
    finally:
        pod.restart()
        pod.load(["t:acme", "d:open-road", f"d:{FAILING}"], 30)
    screen.until(f"!{HEADLINE}.includes('silent')")
    screen.says(VERDICT, "3 of 3 pods use shared limits")


def test_a_slow_redis_is_in_the_headline_and_limits_are_not_exact(screen: Screen) -> None:
    """S1.2 and S1.3: "Limits are exact" while Redis was over its deadline and pods decided alone."""
    screen.open("/")
    for pod in screen.fleet.pods:
        # Both ways together are about the deadline of 50 ms: some answers come too late.
        pod.to_redis.latency_s, pod.to_redis.jitter_s = 0.024, 0.01
    try:
        # On a busy machine, pods give Redis up.
        screen.until(
            f"/Redis p99 is [0-9.]+ ms, over its deadline|use[s]? local limits/.test({HEADLINE})"
            f" && {VERDICT}.includes('Limits are approximate')"
        )
        screen.page.goto("/servers")
        is_live(screen.page)
        screen.until(
            "/some local|without Redis|ramping up/.test(document.querySelector('#rows').innerText)"
            " && !document.querySelector('#verdict').innerText.includes('exact')"
        )
        rows = screen.read("#rows")
        assert "exact" not in rows, rows
    finally:
        for pod in screen.fleet.pods:
            pod.to_redis.heal()
    screen.open("/")
    screen.says(VERDICT, "3 of 3 pods use shared limits")


def test_a_drill_is_in_the_headline(screen: Screen) -> None:
    """S1.2: a drill did not appear on the overview."""
    screen.open("/")
    drill = screen.fleet.director.ask({"do": "drill", "minutes": 5, "servers": ["pod-2"]})
    try:
        screen.says(HEADLINE, "pod-2 is in a drill")
        screen.says(VERDICT, "2 of 3 pods use shared limits", "pod-2 decides locally")
        screen.says("document.querySelector('#events').innerText", "pod-2 began a drill")
    finally:
        screen.fleet.director.ask({"do": "end-drill", "drill": drill})
    screen.until(f"!{HEADLINE}.includes('drill')")


def test_a_trip_by_consecutive_failures_says_so_beside_a_plan(screen: Screen) -> None:
    """S1.4 and S1.5: it displayed "2/33, opens at 50 %", and the plan dated the incident."""
    plan = {"tenants": {"penny": {"tier": "free"}}}
    screen.fleet.director.ask({"do": "schedule", "minutes": 20, "document": plan})
    screen.open("/")
    screen.says(ALERTS, "Scheduled change")
    # A condition that an earlier test has left would date the headline.
    screen.until("!document.querySelector('#verdict [data-since]')")
    planned = time.time()
    screen.pods_fail(FAILING)
    try:
        screen.says(HEADLINE, f"{FAILING} is open")
        screen.says(ALERTS, "failures in a row, opens at 5")
        trip = _trip(screen)
        why = f"{trip['consecutive']} failures in a row, opens at 5"
        screen.says(f"document.querySelector('#br-{FAILING}').innerText", why)
        screen.says(ALERTS, why[0].upper() + why[1:])
        # The incident is dated by the trip, neither by the plan nor by the last probe.
        since = float(screen.page.get_attribute("#verdict [data-since]", "data-since"))
        assert since > planned - 1
        screen.open(f"/breakers/{FAILING}")
        screen.says("document.querySelector('#hero').innerText", "failed probe")
        screen.says("document.querySelector('#hero').innerText", why)
        begun = float(screen.page.get_attribute("#hero [data-since]", "data-since"))
        assert abs(begun - _moment(trip)) < 1.5
        assert begun < _moment(screen.transitions()[0]), "a probe has failed since"
        screen.says("document.querySelector('#facts').innerText", "Consecutive failures when it opened")
        screen.open(f"/breakers/{FAILING}/history")
        screen.says("document.querySelector('#transitions').innerText", why)
    finally:
        screen.pods_fail()
    screen.open("/")
    screen.until(f"!{HEADLINE}.includes('{FAILING} is')")
    assert "Scheduled change" in screen.read("#conditions")


def test_an_outage_of_redis_leaves_a_trace_and_its_time_is_unknown(screen: Screen) -> None:
    """S1.6 and S1.7: no line said that pods lost Redis, and the timeline drew the last state."""
    screen.open("/")
    # On a busy machine, pods may have given Redis up in a test before.
    earlier = json.dumps(screen.page.locator("#events li").all_inner_texts())
    screen.page.evaluate("window.watched = true")
    screen.fleet.kill()
    screen.pods_fail(FAILING)
    try:
        screen.says(HEADLINE, "Every pod uses local limits")
        for words in ("3 pods lost Redis and use local limits", f"own breaker of {FAILING}"):
            screen.until(
                "[...document.querySelectorAll('#events li')].map(line => line.innerText)"
                f".some(text => text.includes({words!r}) && !{earlier}.includes(text))"
            )
        assert "exact" not in screen.read("#verdict")
        assert screen.page.evaluate("window.watched"), "the page was loaded again during the outage"
        screen.open(f"/breakers/{FAILING}")
        states = "document.querySelector('#timeline svg').getAttribute('aria-label')"
        screen.until(f"/unknown from [0-9:]+ to [0-9:]+$/.test({states})")
        screen.open(f"/breakers/{FAILING}/history")
        screen.says("document.querySelector('#own').innerText", "own breaker")
    finally:
        screen.fleet.valkey.start()
        screen.pods_fail()
    screen.open("/")
    screen.says("document.querySelector('#events').innerText", "Redis again")
    screen.says(VERDICT, "3 of 3 pods use shared limits")
    screen.until(f"!{HEADLINE}.includes('{FAILING} is')")
    screen.open(f"/breakers/{FAILING}")
    # Known again, and the outage stays unknown.
    screen.until(f"/unknown from [0-9:]+ to [0-9:]+, .*closed from [0-9:]+ to [0-9:]+$/.test({states})")


def test_a_page_without_a_gateway_says_since_when_it_has_no_data(screen: Screen) -> None:
    """It said "All 3 pods use shared limits" beside 0 requests/s, 0 errors/s and retries that are "off"."""
    screen.open("/")
    screen.says(VERDICT, "3 of 3 pods use shared limits")
    gateway = screen.fleet.processes.by_name["gateway"].popen
    assert gateway is not None
    gateway.send_signal(signal.SIGSTOP)
    try:
        screen.says(HEADLINE, "No gateway is reporting")
        first = screen.read("#verdict h1 > span")
        _has_no_data(screen, "#refused", "#calls", "#tenants", "#quotas", "#slots", "#retries", "#fleet")
        assert "pods use shared limits" not in screen.read("#verdict")
        screen.open("/servers")
        screen.says(HEADLINE, first)
        _has_no_data(screen, "#protection")
        assert "shared limits" not in screen.read("#verdict")
        assert screen.read("#nav ul ul a[href='/servers']") == "Pods 3 need attention"
        for row in screen.page.locator("#rows tr").all():
            assert re.search(r"last known at \d\d:\d\d:\d\d UTC", row.inner_text())
            assert "unknown" in row.inner_text()
        for path, part in (("/breakers/open-road", "#facts"), ("/tenant?key=acme", "#use_now")):
            screen.open(path)
            screen.says(f"document.querySelector({part!r}).innerText", "no data since")
    finally:
        gateway.send_signal(signal.SIGCONT)
    screen.open("/")
    screen.says(VERDICT, "3 of 3 pods use shared limits")
    screen.until("!document.querySelector('main').innerText.includes('no data since')")


def test_a_silent_pod_looks_silent(screen: Screen) -> None:
    """Its page said "connected", "ready" and its p95 as of now, and the side bar "2 of 2"."""
    screen.open("/servers")
    screen.says(VERDICT, "3 pods use shared limits")
    row, foot = "document.querySelector('#srv-pod-2').innerText", "#nav footer"
    pod = screen.fleet.pods[1]
    pod.freeze()
    try:
        screen.says(row, "No heartbeat", "silent for", "last known at", "unknown")
        # On a busy machine, a heartbeat of another pod can be late for a moment.
        color = "getComputedStyle(document.querySelector('#srv-pod-{} .num')).color"
        # A function: the page forbids that an expression is evaluated again when it does not hold at once.
        differ = f"() => {color.format(2)} !== {color.format(1)}"
        screen.page.wait_for_function(differ, timeout=PATIENCE_S * 1000)
        screen.says(f"document.querySelector('{foot}').innerText", "3 pods, 1 silent", "on 2 of 3")
        silent = screen.page.evaluate(f"{row}.match(/silent for (?:(\\d+) min )?(\\d+) s/).slice(1)")
        assert 60 * int(silent[0] or 0) + int(silent[1]) < PATIENCE_S, "not the time of its mode"
        screen.open("/servers/pod-2")
        screen.says(VERDICT, "Silent for", "last known at", "Its mode was shared")
        assert "last known at" in screen.read("#sees")
        assert "online" not in screen.read("#identity")
    finally:
        pod.go_on()
    screen.says(VERDICT, "Mode shared since")
    screen.open("/servers")
    screen.says(VERDICT, "3 pods use shared limits")


def test_a_frozen_redis_names_the_dependency_that_is_refused_and_writes_numbers_in_words(
    screen: Screen,
) -> None:
    """No sentence named it, and the headline said "1e+02 % of checks fail."."""
    screen.fleet.load(["t:acme", "d:open-road", "d:strict"], 30)
    screen.open("/")
    screen.says(VERDICT, "3 of 3 pods use shared limits")
    # What the page says at each change of it.
    screen.page.evaluate(
        "(window.powers = [], new MutationObserver(() => { window.powers.push("
        "...(document.querySelector('main').innerText.match(/.*[0-9]e[+-]?[0-9]+ .*/g) || [])); }"
        ").observe(document.querySelector('main'), {subtree: true, childList: true, characterData: true}))"
    )
    screen.fleet.freeze()
    try:
        screen.says(HEADLINE, "No call to strict is allowed", "without Redis")
        screen.says(ALERTS, "No call to strict is allowed (limit contract, without Redis)")
        assert screen.page.evaluate("window.powers") == []
    finally:
        screen.fleet.thaw()
        screen.fleet.load(["t:acme", "d:open-road", f"d:{FAILING}"], 30)
    screen.until(f"!{HEADLINE}.includes('strict')")
    screen.says(VERDICT, "3 of 3 pods use shared limits")


def test_the_runbook_on_the_page_of_a_breaker_is_live(screen: Screen) -> None:
    """Five minutes after the breaker was forced open, it said "open since 23:22:26"."""
    screen.open("/breakers/open-road")
    value = "document.querySelector('#runbook [data-value=breaker_state]').innerText"
    screen.says(value, "closed")
    screen.page.evaluate("window.watched = true")
    screen.fleet.edit("override_breaker", dependency="open-road", mode="forced_open", lasts_s=120)
    try:
        screen.says(value, "forced open since")
        assert screen.page.evaluate("window.watched"), "the page was loaded again"
        assert re.search(r"values at \d\d:\d\d:\d\d UTC", screen.read("#runbook"))
    finally:
        screen.fleet.edit("end_override", dependency="open-road")
    screen.says(value, "closed")


def test_the_time_before_the_fleet_existed_is_unknown(screen: Screen) -> None:
    """S1.6: "Closed" was drawn for hours in which nothing was there."""
    screen.open("/breakers/open-road?range=24h")
    label = screen.page.get_attribute("#timeline svg", "aria-label")
    assert label.startswith("State over time. unknown from"), label


def test_live_is_said_only_where_figures_arrive(screen: Screen) -> None:
    """S1.8: the bar said "Live, updated 0.0 s ago" beside figures that stayed."""
    word = "document.querySelector('#live b').textContent"
    for path in LIVE_PAGES:
        screen.page.goto(path)
        # On a busy machine it may be delayed; then it says so.
        screen.until(f"['Live', 'Delayed'].includes({word})")
    for path in OTHER_PAGES:
        screen.open(path)
        screen.until(f"{word} === 'Loaded'")
        rev = screen.page.get_attribute("#tick", "data-rev")
        screen.until(f"document.querySelector('#tick').dataset.rev > {rev}")
        assert screen.page.evaluate(word) == "Loaded", path


def _has_no_data(screen: Screen, *parts: str) -> None:
    """Each tile, the side bar, and these parts of the page."""
    for selector in ("#nav footer", *parts):
        screen.says(f"document.querySelector({selector!r}).innerText", "no data since")
    for tile in screen.page.locator("#kpis .kpi").all():
        assert re.search(r"no data\s+since \d\d:\d\d:\d\d", tile.inner_text()), tile.inner_text()


def _pause(screen: Screen) -> Callable[[float], object]:
    """Let the page report what it received."""
    return lambda pause_s: screen.page.wait_for_timeout(1000 * pause_s)


def _trip(screen: Screen) -> dict[str, str]:
    """The newest trip, as the script in Redis wrote it."""
    return next(one for one in screen.transitions() if one["from"] == "closed" and one["to"] == "open")


def _moment(transition: dict[str, str]) -> float:
    return int(transition["at_us"]) / 1e6


def test_the_web_process_wrote_no_error(fleet: Field) -> None:
    log = (Path(fleet.folder) / "logs" / "web.log").read_text()
    assert "Traceback" not in log, log[-3000:]
