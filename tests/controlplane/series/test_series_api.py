"""Figures over time through the API: ranges, gaps, marks, and who may read them."""

from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from django.utils import timezone

from controlplane.series import reading, sealing
from controlplane.series.kinds import DEPENDENCY, FLEET, SPAN_S
from tests.controlplane.calling import API
from tests.controlplane.series.test_series_sealing import measure, row, thing, writer


@pytest.fixture
def hour() -> datetime:
    """The start of the hour before the last one."""
    return timezone.now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=2)


def asked(call: Any, **parameters: str) -> Any:
    answer = call("viewer", "GET", f"{API}/series?{urlencode(parameters)}")
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_hours_of_no_tenant_are_refused(production: str, call: Any) -> None:
    answer = call("viewer", "GET", f"{API}/series?kind=tenant_hour&fields=asked")
    assert answer.status_code == 422, answer.content
    assert "Name the tenant" in answer.content.decode()


def times(start: datetime, end: datetime) -> dict[str, str]:
    return {"since": start.isoformat(), "until": end.isoformat()}


def test_a_range_has_its_step_and_its_gaps(production: str, call: Any, hour: datetime) -> None:
    g1, llm = writer(), thing(DEPENDENCY, "llm")
    measure(g1, 0, DEPENDENCY, {llm: row(DEPENDENCY, 7, failures=2)}, hour=hour, heard=1, known=3)
    measure(g1, 2, DEPENDENCY, {}, hour=hour)
    parameters = {"kind": "dependency", "name": "llm", "fields": "ok,failures"}
    fine = asked(call, **parameters, **times(hour, hour + timedelta(seconds=40)))
    start = int(hour.timestamp())
    assert fine == {
        "start": start,
        "step_s": 10,
        "known_s": [10, 0, 10, 0],
        "fields": {"ok": [7, None, 0, None], "failures": [2, None, 0, None]},
        "first_at": int(thing_first_at()),
        "partial": [{"start": start, "end": start + 10, "heard": 1, "known": 3}],
        "newest": start + 30,
        "made_up_until": None,
    }
    for seal in (False, True):
        if seal:
            sealing.seal(timezone.now() + timedelta(hours=1))
        minutes = asked(call, **parameters, **times(hour - timedelta(hours=20), hour + timedelta(hours=1)))
        assert minutes["step_s"] == 60
        place = 20 * 60
        assert (minutes["known_s"][place], minutes["fields"]["ok"][place]) == (20, 7)
        assert minutes["fields"]["ok"][place + 1] is None
        days = asked(call, **parameters, **times(hour - timedelta(days=20), hour + timedelta(hours=1)))
        assert (days["step_s"], days["known_s"][-1], days["fields"]["ok"][-1]) == (3600, 20, 7)


def thing_first_at() -> float:
    from controlplane.series.models import Entity

    return Entity.objects.get(name="llm").first_at.timestamp()


def test_a_long_range_has_a_bounded_number_of_points(production: str, call: Any, hour: datetime) -> None:
    g1, fleet = writer(), thing(FLEET, first_at=hour - timedelta(days=30))
    for span in range(0, 360, 30):
        measure(g1, span, FLEET, {fleet: row(FLEET, 5)}, hour=hour)
    sealing.seal(timezone.now() + timedelta(hours=1))
    for days in (7, 400):
        answer = asked(
            call,
            kind="fleet",
            fields="requests",
            **times(hour + timedelta(hours=1, days=-days), hour + timedelta(hours=1)),
        )
        values = answer["fields"]["requests"]
        assert len(values) <= reading.MAX_POINTS
        assert sum(value or 0 for value in values) == 12 * 5
        assert sum(answer["known_s"]) == 12 * SPAN_S


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("kind=fleet&fields=nothing", "fields"),
        ("kind=fleet&fields=" + ",".join(["requests"] + [f"f{n}" for n in range(16)]), "fields"),
        ("kind=fleet&fields=requests&since=2026-05-04T00:00:00Z&until=2026-05-03T00:00:00Z", "since"),
        ("kind=fleet&fields=requests&since=2024-05-04T00:00:00Z&until=2026-05-03T00:00:00Z", "since"),
    ],
)
def test_a_wrong_range_or_field_is_named(production: str, call: Any, query: str, field: str) -> None:
    answer = call("viewer", "GET", f"{API}/series?{query}")
    assert answer.status_code == 422
    assert field in str(answer.json()["errors"])


def test_what_was_never_measured_is_unknown_and_not_an_error(production: str, call: Any) -> None:
    answer = asked(call, kind="tenant", name="unseen", fields="asked")
    assert answer["first_at"] is None
    assert set(answer["fields"]["asked"]) == {None}


def test_an_unchanged_range_is_answered_304(production: str, call: Any, hour: datetime) -> None:
    path = f"{API}/series?" + urlencode(
        {"kind": "fleet", "fields": "requests", **times(hour, hour + timedelta(minutes=5))}
    )
    first = call("viewer", "GET", path)
    again = call("viewer", "GET", path, **{"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_marks_are_the_newest_and_count_the_others(
    production: str, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from controlplane.breakers.models import Transition
    from controlplane.fleet.models import Event
    from controlplane.policies.models import Dependency
    from controlplane.series import marks

    llm = Dependency.objects.filter(environment=production).first()
    if llm is None:
        call(
            "admin",
            "POST",
            f"{API}/dependencies",
            {"name": "llm", "kind": "external", "reason": "for a test"},
        )
        llm = Dependency.objects.get(environment=production)
    now = timezone.now()
    for number in range(3):
        Transition.objects.create(
            dependency=llm,
            generation=number + 1,
            at=now - timedelta(minutes=10 - number),
            from_state="closed",
            to_state="open",
            cause="ratio",
            actor="ada" if number else "",
        )
    Event.objects.create(
        environment=production, server="pod-1", boot="boot-0001", at=now - timedelta(minutes=1), kind="joined"
    )
    monkeypatch.setattr(marks, "MAX_MARKS", 2)
    path = f"{API}/series/marks?kind=dependency&name={quote(llm.name)}"
    found = call("viewer", "GET", path).json()
    kinds = [mark["kind"] for mark in found["marks"]]
    assert (len(kinds), found["earlier"] >= 1) == (2, True)
    assert "override" in kinds or "change" in kinds
    [period] = found["open_periods"]
    assert abs(period["start"] - (now - timedelta(minutes=10)).timestamp()) < 1
    assert (period["end"] - period["start"] >= 600, period["forced"]) == (True, False)
    pod = call("viewer", "GET", f"{API}/series/marks?kind=pod&name=pod-1").json()
    assert pod["open_periods"] == []
    assert [(mark["kind"], mark["text"]) for mark in pod["marks"]] == [("pod", "pod-1: joined")]


def test_a_series_is_a_file_with_empty_cells_where_it_is_unknown(
    production: str, call: Any, hour: datetime
) -> None:
    g1, llm = writer(), thing(DEPENDENCY, "llm")
    measure(g1, 0, DEPENDENCY, {llm: row(DEPENDENCY, 7, failures=2)}, hour=hour)
    parameters = {"kind": "dependency", "name": "llm", "fields": "ok,failures", "format": "csv"}
    query = urlencode({**parameters, **times(hour, hour + timedelta(seconds=20))})
    answer = call("viewer", "GET", f"{API}/series?{query}")
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    begin = [f"{hour + timedelta(seconds=offset):%Y-%m-%dT%H:%M:%SZ}" for offset in (0, 10)]
    assert answer.content.decode().splitlines() == [
        "at,known_s,ok,failures",
        f"{begin[0]},10,7,2",
        f"{begin[1]},0,,",
    ]


def test_open_periods_are_from_the_trip_to_the_closing_and_apart_from_forced_ones(
    production: str, call: Any
) -> None:
    """Each transition was a line over the data, and a breaker that flapped painted black pillars."""
    from controlplane.breakers.models import Transition
    from controlplane.policies.models import Dependency

    values = {"name": "vendor", "kind": "external", "reason": "for a test"}
    call("admin", "POST", f"{API}/dependencies", values)
    vendor = Dependency.objects.get(environment=production, name="vendor")
    now = timezone.now().replace(microsecond=0)
    moves = (
        (90, "closed", "open", "ratio"),  # before the range: open when it begins
        (50, "open", "closed", "probes_passed"),
        (40, "closed", "open", "consecutive"),
        (38, "open", "half_open", "open_time_over"),
        (37, "half_open", "open", "probe_failed"),
        (30, "open", "half_open", "open_time_over"),
        (29, "half_open", "closed", "probes_passed"),
        (20, "closed", "open", "forced_open"),
        (15, "open", "open", "forced_open"),
        (10, "open", "half_open", "open_time_over"),
        (9, "half_open", "closed", "probes_passed"),
        (2, "closed", "open", "ratio"),
    )
    for generation, (ago, before, after, cause) in enumerate(moves, 1):
        Transition.objects.create(
            dependency=vendor,
            generation=generation,
            at=now - timedelta(minutes=ago),
            from_state=before,
            to_state=after,
            cause=cause,
        )
    since, until = (quote((now - timedelta(minutes=ago)).isoformat()) for ago in (60, 0))
    path = f"{API}/series/marks?kind=dependency&name=vendor&since={since}&until={until}"
    found = call("viewer", "GET", path).json()["open_periods"]
    ago = [
        (round((now.timestamp() - one["start"]) / 60), round((now.timestamp() - one["end"]) / 60))
        for one in found
    ]
    assert list(zip(ago, [one["forced"] for one in found], strict=True)) == [
        ((60, 50), False),
        ((40, 29), False),
        ((20, 10), True),
        ((10, 9), False),
        ((2, 0), False),
    ]
