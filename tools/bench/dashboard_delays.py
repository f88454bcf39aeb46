"""How long it takes from a trip to pixels, and from the click of an operator until every pod refuses.

Real processes: Redis, Postgres, control plane, three pods that call, and Chromium. A trip counts from the
moment that Redis noted; pixels are there two frames after the card. An override counts from the click on its
button to the last call that any pod admitted. Run it as ``python tools/bench/dashboard_delays.py``.
"""

import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

import redis
from control_plane.stand import Bars, within

from fuseboard.contract import keys
from tests.chromium import running_chromium
from tests.faults.field import field
from tests.faults.world import ENVIRONMENT
from tests.waiting import wait_until
from tools.demo.scenario import TUNING

ROUNDS, CALLS_PER_S = 10, 50
FAILING, HELD = "fragile", "held"
#: What a busy machine gets for one step.
PATIENCE_S = 90.0
#: Without an admission for this long, all pods refuse.
QUIET_S = 1.0
#: For the whole script; an idle machine needs a fifth of it.
MAX_S = 900
CLICKED = """
document.addEventListener('click', () => sessionStorage.setItem('clicked', Date.now()), {capture: true})
"""
WATCH = """(() => {
    window.drawn = 0;
    const look = () => {
        if (window.drawn || !document.querySelector('article#br-%s.st-open')) return;
        window.drawn = -1;
        requestAnimationFrame(() => requestAnimationFrame(() => { window.drawn = Date.now() }));
    };
    new MutationObserver(look).observe(document.body, {subtree: true, childList: true, attributes: true});
})()"""


def until(page, script, what):
    return wait_until(
        lambda: page.evaluate(script), what, within_s=PATIENCE_S, every_s=0.05,
        pause=lambda pause_s: page.wait_for_timeout(1000 * pause_s),
    )  # fmt: skip


def admitted_at(world, target):
    """When a pod admitted a call of it last, in seconds."""
    return max((at for pod in world.pods for at, what, _ in pod.history() if what == target), default=0) / 1e6


def trips(world):
    with redis.Redis.from_url(world.valkey.url, decode_responses=True) as limits:
        entries = limits.xrevrange(keys.transitions(ENVIRONMENT, FAILING))
    return [int(one["at_us"]) / 1e3 for _, one in entries if one["from"] == "closed" and one["to"] == "open"]


def to_pixels(world, page):
    """Milliseconds from the trip to its card."""
    page.goto("/")
    until(page, f"!document.querySelector('article#br-{FAILING}')", "a closed breaker")
    page.evaluate(WATCH % FAILING)
    before = len(trips(world))
    for pod in world.pods:
        pod.do("fail", dependencies=[FAILING])
    drawn = until(page, "Math.max(0, window.drawn)", "the card of the breaker")
    for pod in world.pods:
        pod.do("fail", dependencies=[])
    found = trips(world)
    # A trip that this page did not draw, because it closed and opened again, is not the one.
    return drawn - found[len(found) - before - 1]


def to_refusals(world, page):
    """Milliseconds from the click until no pod admits a call."""
    wait_until(
        lambda: time.time() - admitted_at(world, f"d:{HELD}") < QUIET_S, "admitted calls", within_s=PATIENCE_S
    )
    page.goto(f"/breakers/{HELD}")
    page.click("label:has(input[name=act][value=forced_open])")
    page.click("label:has(input[name=lasts][value='15'])")
    page.fill("#override [name=reason]", "a benchmark")
    until(page, "document.querySelector('#preview button')?.innerText.includes('15')", "the preview")
    page.evaluate(CLICKED)
    page.click("#preview button")
    until(
        page,
        "document.querySelector('#hero').innerText.toLowerCase().includes('forced open')",
        "the override",
    )
    clicked = float(page.evaluate("sessionStorage.getItem('clicked')"))
    last = wait_until(
        lambda: admitted_at(world, f"d:{HELD}"), "no admitted call", within_s=PATIENCE_S, every_s=0.1,
        accept=lambda at: time.time() - at > QUIET_S,
    )  # fmt: skip
    page.goto(f"/breakers/{HELD}?act=automatic")
    page.fill("#override [name=reason]", "the end of a benchmark")
    page.click("#preview button")
    return last * 1000 - clicked


def main():
    within(MAX_S)
    bars = Bars()
    with field(short=True) as world, running_chromium() as chromium:
        world.processes.begin("web")
        world.processes.wait_until_ready(["web"])
        world.edit("set_tuning", tuning=TUNING)
        world.load([f"d:{HELD}", f"d:{FAILING}"], CALLS_PER_S)
        context = chromium.new_context(base_url=world.processes.by_name["web"].url)
        context.set_default_timeout(1000 * PATIENCE_S)
        page = context.new_page()
        page.goto("/login")
        page.fill("#id_username", "admin")
        page.fill("#id_password", world.password)
        page.click("button[type=submit]")
        page.wait_for_selector("header.bar")
        for name, measure in (
            ("trip_to_pixels", to_pixels),
            ("override_click_to_all_pods_refuse", to_refusals),
        ):
            took = sorted(measure(world, page) for _ in range(ROUNDS))
            bars.figure(f"dashboard_{name}_p50", statistics.median(took), "ms")
            bars.figure(f"dashboard_{name}_p95", took[-1 - ROUNDS // 20], "ms")
    return bars.status


if __name__ == "__main__":
    sys.exit(main())
