"""Charts in a real browser: what is known, what is not, by pointer, by keyboard, and as a table."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from browsing import becomes
from django.utils import timezone

from controlplane.breakers.models import Transition
from controlplane.policies.models import Dependency
from controlplane.series.kinds import DEPENDENCY, FLEET, SPAN_S
from tests.controlplane.series.test_series_sealing import measure, row, thing, writer

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

FIGURE = "#chart-calls"
SAID = f"document.querySelector('{FIGURE} .chart-say').textContent"

#: The red runs of the highest row that has any, above what is drawn: in CSS pixels.
BANDS = """(() => {
  const probe = document.createElement("i");
  probe.style.color = "var(--red)";
  document.body.append(probe);
  const red = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
  const canvas = document.querySelector("#chart-failed canvas");
  const ratio = canvas.width / canvas.getBoundingClientRect().width;
  const { data, width, height } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const isRed = (x, y) => red.every((part, i) => Math.abs(data[4 * (y * width + x) + i] - part) < 12)
    && data[4 * (y * width + x) + 3] > 200;
  const runsOf = y => {
    const runs = [];
    for (let x = 0; x < width; x++) {
      if (!isRed(x, y)) continue;
      const last = runs.at(-1);
      if (last && last.end === x) last.end++; else runs.push({ start: x, end: x + 1 });
    }
    return runs;
  };
  for (let y = 0; y < height; y++) {
    const runs = runsOf(y);
    if (!runs.length) continue;
    let tall = 1;
    while (isRed(runs[0].start + 1, y + tall)) tall++;
    return runs.map(({ start, end }) => (
      { left: start / ratio, wide: (end - start) / ratio, tall: tall / ratio }));
  }
  return [];
})()"""


def seed(minutes: int = 50, *, gap: range = range(20, 30)) -> datetime:
    """20 to 39 calls per 10 s, of the last minutes, with an unknown time; the start of the first span."""
    now = int(timezone.now().timestamp()) // SPAN_S * SPAN_S
    start = datetime.fromtimestamp(now - 60 * minutes, tz=timezone.get_current_timezone())
    g1, fleet = writer(), thing(FLEET, first_at=start)
    llm = thing(DEPENDENCY, "payments-api", first_at=start)
    for span in range(6 * minutes):
        if span // 6 in gap:
            continue
        counted = {llm: row(DEPENDENCY, 20 + span % 20, failures=span % 3)}
        heard = 2 if span < 30 else 3
        measure(g1, span, DEPENDENCY, counted, hour=start, heard=heard, known=3)
        measure(
            g1, span, FLEET, {fleet: row(FLEET, 100 + span % 7, refused=3)}, hour=start, heard=heard, known=3
        )
    return start


def drawn(page: Any, figure: str = FIGURE) -> None:
    becomes(page, f"document.querySelector('{figure} canvas') !== null")
    becomes(page, f"!document.querySelector('{figure} .chart-say').textContent.startsWith('Loading')")


def test_a_chart_says_in_words_what_it_draws(production: Any, sign_in: Any) -> None:
    seed()
    page = sign_in("vera")
    page.goto("/breakers/payments-api")
    drawn(page)
    said = page.evaluate(SAID)
    assert "sent: highest 4.1/s at " in said
    assert "not known before" in said
    assert "unknown for 10 min" in said
    assert "Points of 10 s" in said
    assert page.get_attribute(f"{FIGURE} .chart-plot", "role") == "slider"
    page.goto("/")
    drawn(page, "#chart-requests")
    assert "requests: highest 10.6/s" in page.inner_text("#chart-requests .chart-say")


def test_a_breaker_that_flaps_is_a_band_for_each_open_period(production: Any, sign_in: Any) -> None:
    start = seed()
    vendor = Dependency.objects.get(environment=production, name="payments-api")
    for number, (minute, after) in enumerate(((10, "open"), (12, "closed"), (20, "open"), (21, "closed"))):
        at, before = start + timedelta(minutes=minute), "closed" if after == "open" else "open"
        Transition.objects.create(
            dependency=vendor, generation=number + 1, at=at, from_state=before, to_state=after, cause="ratio"
        )
    page = sign_in("vera")
    page.goto("/breakers/payments-api")
    drawn(page, "#chart-failed")
    said = "document.querySelector('#chart-failed .chart-say').textContent"
    becomes(page, f"{said}.includes('not closed 2 times, for 3 min')")
    assert "not closed" not in page.evaluate(SAID), "one chart is enough"
    first, second, *others = page.evaluate(BANDS)
    assert not others, "one band for each open period, and none for a transition"
    # Of 2 min and of 1 min, 10 min apart; a pixel is about 6 s.
    assert 1.6 <= first["wide"] / second["wide"] <= 2.4
    assert 4.4 <= (second["left"] - first["left"]) / first["wide"] <= 5.6
    assert first["tall"] <= 6, "thin: the line below stays readable"


def test_keys_move_through_points_and_unknown_is_said(production: Any, sign_in: Any) -> None:
    seed()
    page = sign_in("vera")
    page.goto("/breakers/payments-api")
    drawn(page)
    page.focus(f"{FIGURE} .chart-plot")
    page.keyboard.press("Home")
    becomes(page, f"{SAID}.includes('not known before')")
    words = set()
    for _ in range(11):
        page.keyboard.press("Shift+ArrowRight")
        words.add(page.get_attribute(f"{FIGURE} .chart-plot", "aria-valuetext").partition(", ")[2].split()[0])
    assert words == {"not", "unknown:", "sent"}
    assert page.get_attribute(f"{FIGURE} .chart-plot", "aria-valuenow") == "330"


def test_zoom_and_range_are_in_the_address_for_all_charts(production: Any, sign_in: Any) -> None:
    seed()
    page = sign_in("vera")
    page.goto("/breakers/payments-api")
    drawn(page)
    page.click("[data-span='21600']")
    becomes(page, "new URL(location.href).searchParams.get('span') === '21600'")
    becomes(page, f"{SAID}.includes('at')")
    page.reload()
    drawn(page)
    assert page.get_attribute("[data-span='21600']", "aria-pressed") == "true"
    page.click("[data-span='3600']")
    drawn(page)
    box = page.locator(f"{FIGURE} .u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 40, steps=4)
    page.mouse.up()
    becomes(page, "Number(new URL(location.href).searchParams.get('since')) > 0")
    since, until = page.evaluate(
        "['since', 'until'].map(name => Number(new URL(location.href).searchParams.get(name)))"
    )
    assert 600 <= until - since <= 840
    page.click("[data-zoom=out]")
    becomes(page, f"Number(new URL(location.href).searchParams.get('since')) < {since}")
    page.click("[data-zoom=back]")
    becomes(page, "new URL(location.href).searchParams.get('since') === null")


def test_a_range_can_be_typed(production: Any, sign_in: Any) -> None:
    start = seed()
    page = sign_in("vera")
    page.goto("/breakers/payments-api")
    drawn(page)
    page.click("#chart-dates summary")
    typed = "[...document.querySelectorAll('[data-dates] input')].map(field => field.value)"
    assert all(page.evaluate(typed)), "the fields have the range that is drawn"
    page.fill("[name=since]", (start + timedelta(minutes=30)).strftime("%Y-%m-%dT%H:%M"))
    page.fill("[name=until]", (start + timedelta(minutes=30)).strftime("%Y-%m-%dT%H:%M"))
    page.click("[data-dates] button")
    wrong = page.inner_text("[data-dates] .err")
    assert wrong == "Enter an end at least a minute after the start, and a start in the past."
    assert page.evaluate("document.activeElement.name") == "until"
    page.fill("[name=until]", "")
    assert page.is_hidden("[data-dates] .err")
    page.click("[data-dates] button")
    assert page.inner_text("[data-dates] .err") == "Enter a date and a time in both fields."
    page.fill("[name=until]", (start + timedelta(minutes=40)).strftime("%Y-%m-%dT%H:%M"))
    page.click("[data-dates] button")
    becomes(page, "Number(new URL(location.href).searchParams.get('since')) > 0")
    since, until = page.evaluate(
        "['since', 'until'].map(name => Number(new URL(location.href).searchParams.get(name)))"
    )
    begins = (start + timedelta(minutes=30)).replace(second=0)
    assert (since, until) == (begins.timestamp(), begins.timestamp() + 600)
    assert page.get_attribute("#chart-dates", "open") is None
    assert " to " in page.inner_text("[data-chart-span]")


def test_the_table_has_the_same_figures(production: Any, sign_in: Any) -> None:
    seed()
    page = sign_in("vera")
    page.goto("/breakers/payments-api")
    drawn(page)
    page.click(f"{FIGURE} summary")
    page.wait_for_selector(f"{FIGURE} table")
    assert page.inner_text(f"{FIGURE} thead").strip().split("\t") == [
        "Time, UTC",
        "sent",
        "blocked",
        "over a limit",
    ]
    assert len(page.query_selector_all(f"{FIGURE} tbody tr")) <= 25
    page.click(f"{FIGURE} details button:text('Earlier')")
    becomes(page, f"document.querySelectorAll('{FIGURE} tbody tr').length === 25")
    texts = page.inner_text(f"{FIGURE} tbody")
    assert "/s" in texts


def test_a_chart_survives_live_updates_and_leaves_nothing_behind(production: Any, sign_in: Any) -> None:
    """A morph of the page around it lost the canvas; a chart that was removed stayed in memory."""
    seed()
    page = sign_in("vera")
    page.goto("/breakers/payments-api")
    drawn(page)
    page.evaluate(
        """() => {
            const panel = document.querySelector("[data-charts]"), copy = panel.cloneNode(true);
            for (const plot of copy.querySelectorAll(".chart-plot")) plot.replaceChildren();
            htmx.swap({ target: panel, text: copy.outerHTML, swap: "outerMorph", sourceElement: panel });
        }"""
    )
    becomes(page, f"document.querySelector('{FIGURE} canvas') !== null")
    page.evaluate("document.querySelector('[data-charts]').remove()")
    becomes(page, "document.querySelectorAll('canvas').length === 0")


def test_a_failed_answer_is_said_and_tried_again(production: Any, sign_in: Any) -> None:
    seed()
    page = sign_in("vera")
    page.route("**/series?*", lambda route: route.fulfill(status=403, body="{}"))
    page.goto("/breakers/payments-api")
    becomes(page, f"{SAID}.startsWith('Fuseboard answered 403. The figures are unknown.')")
    page.unroute("**/series?*")
    drawn(page)
    becomes(page, f"{SAID}.includes('highest')", seconds=60.0)


def test_history_survives_a_restart_because_no_process_keeps_it(production: Any, sign_in: Any) -> None:
    """The web process of these tests never saw what is drawn."""
    start = seed(minutes=50) - timedelta(minutes=1)
    page = sign_in("vera")
    page.goto(f"/breakers/payments-api?since={int(start.timestamp())}&until={int(start.timestamp()) + 600}")
    drawn(page)
    assert "sent: highest 4/s" in page.evaluate(SAID)
