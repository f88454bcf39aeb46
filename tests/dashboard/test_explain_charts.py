"""The charts beside an explained refusal, and the way from it to the editor of the quota."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from browsing import becomes
from django.utils import timezone

from controlplane.refusals.models import RefusalSample
from controlplane.series.kinds import RULE, SPAN_S
from dashboard.live.refusal_charts import range_around
from tests.controlplane.series.test_series_sealing import measure, row, thing, writer
from tests.dashboard.refused_samples import FIRST, put_samples

pytestmark = pytest.mark.django_db(transaction=True)

SAID = "document.querySelector('#chart-rule .chart-say').textContent"


def seed(at: datetime, *, unknown: range = range(6, 18)) -> None:
    """12 requests per 10 s of the quota from 5 minutes before to 3 minutes after, with an unknown time."""
    start = datetime.fromtimestamp(int(at.timestamp()) // SPAN_S * SPAN_S - 300, tz=at.tzinfo)
    g1 = writer()
    own, everyone = (thing(RULE, name, sub="requests", first_at=start) for name in ("acme-retail", ""))
    for span in range(48):
        if span not in unknown:
            counted = {own: row(RULE, 12, refused=4), everyone: row(RULE, 40, refused=4)}
            measure(g1, span, RULE, counted, hour=start)


@pytest.fixture
def refused(production: str) -> datetime:
    at = timezone.now() - timedelta(minutes=10)
    put_samples()
    RefusalSample.objects.filter(pk=FIRST).update(at=at)
    seed(at)
    return at


def test_admins_get_to_the_field_of_the_quota_and_others_do_not(log_in: Any, refused: datetime) -> None:
    shown = log_in("ada").get(f"/explain/{FIRST}").content.decode()
    assert 'href="/edit/tier?key=pro&amp;at=limit.requests.limit"' in shown
    assert "Edit this quota" in shown
    editor = log_in("ada").get("/edit/tier?key=pro").content.decode()
    assert 'id="f-limit-requests-limit"' in editor
    shown = log_in("vera").get(f"/explain/{FIRST}").content.decode()
    assert "Edit this quota" not in shown
    assert "Open this rule" in shown


def test_the_charts_are_of_the_rule_and_its_limit(log_in: Any, refused: datetime) -> None:
    shown = log_in("vera").get(f"/explain/{FIRST}").content.decode()
    assert "kind=rule&amp;name=acme-retail&amp;rule=requests" in shown
    assert "kind=rule&amp;rule=requests" in shown
    assert "&quot;limit_label&quot;: &quot;then " in shown
    since, until = range_around(refused, timezone.now())
    assert f'data-home-since="{since}" data-home-until="{until}"' in shown


def test_the_line_of_a_pod_without_redis_is_its_share(log_in: Any, refused: datetime) -> None:
    """The chart showed 2 requests/s below a line at 8, and the page said that the quota was spent."""
    RefusalSample.objects.filter(pk=FIRST).update(mode="local")
    shown = log_in("vera").get(f"/explain/{FIRST}").content.decode()
    assert "&quot;limit_label&quot;: &quot;about this pod&#x27;s local share then&quot;" in shown
    assert "&quot;limit_label&quot;: &quot;then " not in shown


def test_the_range_of_an_old_refusal_has_points_that_are_still_stored() -> None:
    now = timezone.now()
    for age, length in (
        (timedelta(minutes=1), timedelta(minutes=10)),
        (timedelta(days=2), timedelta(hours=8)),
        (timedelta(days=20), timedelta(days=10)),
    ):
        since, until = range_around(now - age, now)
        assert until - since == length.total_seconds()


@pytest.mark.browser
def test_the_chart_shows_the_time_around_the_refusal_and_marks_it(sign_in: Any, refused: datetime) -> None:
    page = sign_in("vera")
    page.goto(f"/explain/{FIRST}")
    becomes(page, "document.querySelector('#chart-rule canvas') !== null")
    becomes(page, f"{SAID}.includes('this refusal at {refused:%H:%M:%S}')")
    said = page.evaluate(SAID)
    assert "asked: highest 1.2/s" in said
    assert "refused: highest 0.4/s" in said
    # 2 minutes in the middle, and those after the last span.
    assert "unknown for " in said
    plot = "#chart-rule .chart-plot"
    page.focus(plot)
    page.keyboard.press("End")
    page.keyboard.press("[")
    becomes(page, f"document.querySelector('{plot}').getAttribute('aria-valuetext').includes('this refusal')")
    words = page.get_attribute(plot, "aria-valuetext")
    assert words.startswith(f"{refused:%H:%M}")
    page.keyboard.press("Home")
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    assert "unknown: not measured" in page.get_attribute(plot, "aria-valuetext")
    # The address is not that of one refusal only: another token is explained on the same page.
    before = page.url
    page.click("[data-zoom=in]")
    becomes(page, "!document.querySelector('[data-zoom=back]').disabled")
    assert page.url == before
    page.click("text=Back to the refusal")
    becomes(page, "document.querySelector('[data-zoom=back]').disabled")
