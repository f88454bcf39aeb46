"""The page of one alert: the figure that was evaluated, its thresholds, and the turns of its state."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import Evaluation
from controlplane.alerts.rules.rule import Threshold
from controlplane.phrases import percent
from dashboard.alert_plot import plot_of
from tests.dashboard.shown import text_of
from tests.dashboard.test_alerts_page import alert

AT = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
START = AT.timestamp()
POINTS = [[START, 0.01], [START + 10, 0.16], [START + 20, 0.05], [START + 200, 0.004]]
TURNS = [
    [START, "pending"],
    [START + 10, "firing"],
    [START + 200, "recovering"],
    [START + 500, "resolved"],
]


def shown(client: Any, number: int) -> str:
    return text_of(client.get(f"/alerts/{number}").content.decode())


@pytest.mark.django_db
def test_it_displays_the_figure_its_thresholds_and_its_turns(log_in: Any, production: str) -> None:
    resolved = {"state": AlertState.RESOLVED, "resolved_at": datetime.fromtimestamp(START + 500, UTC)}
    row = alert("429", text="16 % of requests are refused", points=POINTS, turns=TURNS, **resolved)
    vera = log_in("vera")
    page = shown(vera, row.pk)
    assert "0.4 % at 03:03:20 UTC; the highest point drawn is 16 % at 03:00:10 UTC." in page
    # The title, the legend and the sentence: one rounding, and each of its moment.
    assert "The figures of the title are the last ones before 03:08:20 UTC." in page
    assert "figure, highest point 16 % at 03:00:10" in page
    assert "More than 0.5 % is a warning, more than 2 % is critical." in page
    assert "It fires after 120 s, and clears after 300 s without it." in page
    assert "03:00:10 16 % firing 03:00:10 becomes firing" in page
    assert "03:08:20 becomes resolved" in page
    assert f'href="/alerts/{row.pk}"' in vera.get("/alerts").content.decode()


@pytest.mark.django_db
def test_a_rule_without_a_figure_has_its_turns_only(log_in: Any, production: str) -> None:
    row = alert(turns=TURNS[1:2])
    page = shown(log_in("vera"), row.pk)
    assert "This rule has no figure: it is true or not." in page
    assert "03:00:10 becomes firing" in page
    assert "Alert not found" in shown(log_in("vera"), 999_999)
    other = alert("429", environment="staging")
    assert "Alert not found" in shown(log_in("vera"), other.pk)


@pytest.mark.django_db
def test_it_began_when_its_card_says(log_in: Any, production: str) -> None:
    """A warning at 03:00 that became critical at 03:05."""
    row = alert(true_since=AT, level_since=AT + timedelta(minutes=5))
    assert "since 20 Nov 03:00 UTC, critical since 03:05" in shown(log_in("vera"), row.pk)
    warns = alert("lag", severity="warning", true_since=AT, level_since=AT + timedelta(minutes=5))
    page = shown(log_in("vera"), warns.pk)
    assert "since 20 Nov 03:00 UTC." in page
    assert "03:05" not in page


@pytest.mark.django_db(transaction=True)
def test_it_is_acknowledged_and_muted_where_it_is_read(log_in: Any, production: str) -> None:
    """The page had neither button: people went back to the list."""
    row = alert()
    olga, path = log_in("olga"), f"/alerts/{row.pk}"
    page = olga.get(path).content.decode()
    assert f'name="acknowledge" value="{row.pk} critical"' in page
    assert "/alerts/mutes?rule=open&amp;dependency=payments-api&amp;minutes=30" in page
    sent = {"acknowledge": f"{row.pk} critical", "from": str(row.pk), f"note-{row.pk}": "I am on it"}
    answer = olga.post("/alerts", sent)
    assert (answer.status_code, answer["Location"]) == (302, path)
    page = olga.get(path).content.decode()
    assert "Acknowledged by olga" in text_of(page)
    assert f'name="release" value="{row.pk}"' in page
    assert 'form="take"' not in log_in("vera").get(path).content.decode()
    gone = alert("429", state=AlertState.RESOLVED, resolved_at=AT)
    assert 'form="take"' not in log_in("olga").get(f"/alerts/{gone.pk}").content.decode()
    for wrong in ("nonsense", "-1"):
        assert olga.post("/alerts", sent | {"from": wrong}).status_code == 422


def test_the_chart_has_a_line_for_each_threshold_and_a_gap_where_nothing_was_measured() -> None:
    plot = plot_of(Threshold(warning=0.005, critical=0.02), POINTS, TURNS, START + 500)
    drawing = str(plot.drawing)
    assert drawing.count('class="lim-') == 2
    assert [state for _, state in TURNS] == [
        part.partition('"')[0] for part in drawing.split('class="turn-')[1:]
    ]
    [line] = (part.partition('"')[0] for part in drawing.split('class="figure" d="')[1:])
    assert (line.count("M"), line.count("L")) == (1, 3)
    dense = [[START + 10 * step, 0.01] for step in range(20)]
    gap = plot_of(Threshold(), [*dense, [START + 900, 0.02]], [], START + 900)
    assert str(gap.drawing).count("M") == 2
    assert plot_of(Threshold(), [], [], START).sentence == "No figure of this alert is stored."


@pytest.mark.django_db
def test_the_title_of_an_alert_that_fires_says_of_when_its_figures_are(log_in: Any, production: str) -> None:
    row = alert("429", text="5.6 % of requests are refused", points=POINTS, turns=TURNS[:2])
    Evaluation.objects.update_or_create(environment=production, defaults={"at": AT + timedelta(minutes=4)})
    assert "The figures of the title are of 03:04:00 UTC." in shown(log_in("vera"), row.pk)


@pytest.mark.parametrize("share", [0.0446, 0.00335, 0.164, 0.9999])
def test_a_share_has_the_rounding_of_the_text_of_its_alert(share: float) -> None:
    plot = plot_of(Threshold(warning=0.005), [[START, share]], [], START + 500)
    assert plot.highest == (START, percent(share))
    assert plot.sentence.count(percent(share)) == 2


def test_a_second_is_not_written_in_milliseconds() -> None:
    plot = plot_of(Threshold(unit="ms", scale=1.0, warning=5.0), POINTS, TURNS, START + 500)
    assert [plot.words_of(value) for value in (250.0, 4_000.0, 1_250.0)] == ["250 ms", "4 s", "1.25 s"]
