"""Frames become arrays: the same whenever it happens, and as a plain computation says."""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, connections
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.series import partitions, retention, sealing
from controlplane.series.kinds import BY_NAME, DEPENDENCY, FLEET, POD, SPAN_S, TENANT, How, Kind
from controlplane.series.models import Entity, Seal, Writer
from controlplane.series.reading import read
from tests.controlplane.series.series_tables import empty, stored

HOUR = datetime(2026, 5, 4, 13, tzinfo=UTC)
SEALABLE = HOUR + timedelta(hours=1, minutes=7)
FINAL = HOUR + timedelta(hours=3, minutes=1)
STARTED = HOUR - timedelta(days=1)


def at(span: int, hour: datetime = HOUR) -> datetime:
    return hour + timedelta(seconds=SPAN_S * span)


def thing(
    kind: Kind,
    name: str = "",
    *,
    first_at: datetime = STARTED,
    sub: str = "",
    environment: str = "production",
) -> int:
    return Entity.objects.create(
        environment=environment, kind=kind.number, name=name, sub=sub, first_at=first_at, last_at=first_at
    ).id


def writer(gateway: str = "g1", *, environment: str = "production") -> int:
    return Writer.objects.create(gateway=gateway, environment=environment, started_at=STARTED).id


def measure(
    writer: int,
    span: int,
    kind: Kind,
    counted: dict[int, list[Any]],
    *,
    heard: int = 1,
    known: int = 1,
    floor: int = 0,
    hour: datetime = HOUR,
    part: int = 0,
) -> None:
    """What one gateway wrote of one span."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO series_span VALUES (%s, %s, 10000, %s, %s, %s) ON CONFLICT DO NOTHING",
            [at(span, hour), writer, heard, known, floor],
        )
        if counted:
            cursor.execute(
                "INSERT INTO series_frame VALUES (%s, %s, %s, %s, %s, %s)",
                [
                    at(span, hour),
                    writer,
                    kind.number,
                    part,
                    list(counted),
                    [v for row in counted.values() for v in row],
                ],
            )


def row(kind: Kind, value: int, **others: int) -> list[int]:
    """The first field is ``value``, others by name."""
    return [others.get(field.name, 0) if place else value for place, field in enumerate(kind.fields)]


def everything() -> dict[str, Any]:
    return {table.name: stored(table.name) for table in partitions.TABLES}


def test_an_hour_becomes_one_row_per_thing_and_gateways_are_added(transactional_db: None) -> None:
    one, two, llm = writer("g1"), writer("g2"), thing(DEPENDENCY, "llm")
    measure(one, 0, DEPENDENCY, {llm: row(DEPENDENCY, 7, failures=2)})
    measure(two, 0, DEPENDENCY, {llm: row(DEPENDENCY, 5)})
    measure(two, 2, DEPENDENCY, {})
    assert sealing.seal(SEALABLE) == 1
    v = stored("series_10s")[llm, HOUR]
    # Not measured at all is unknown; measured without a call is 0.
    assert v[:4] == [12, None, 0, None]
    assert v[360:364] == [2, None, 0, None]
    assert len(v) == 360 * DEPENDENCY.width
    minutes = stored("series_1m")[llm, HOUR]
    assert (minutes[:2], minutes[60:62], minutes[120:122]) == ([2, 0], [12, None], [2, None])
    hours = stored("series_1h")[llm, HOUR.replace(hour=0)]
    assert (hours[13], hours[24 + 13], hours[48 + 13]) == (2, 12, 2)
    assert (hours[12], hours[24 + 12]) == (None, None)


def test_unknown_is_not_zero(transactional_db: None) -> None:
    """A pod, a tenant below the list, and a thing before it was known have no value."""
    g1 = writer()
    fleet, pod, tenant = thing(FLEET), thing(POD, "pod-1"), thing(TENANT, "acme")
    late = thing(DEPENDENCY, "late", first_at=at(5))
    measure(g1, 0, POD, {pod: row(POD, 3)}, floor=4)
    measure(g1, 1, FLEET, {fleet: row(FLEET, 9)}, floor=4)
    measure(g1, 2, TENANT, {tenant: row(TENANT, 8)}, floor=4)
    measure(g1, 3, TENANT, {}, floor=0)
    measure(g1, 4, FLEET, {}, heard=0, known=3)
    measure(g1, 5, FLEET, {fleet: row(FLEET, 1)}, floor=4)
    sealing.seal(SEALABLE)
    rows = stored("series_10s")
    assert rows[pod, HOUR][:6] == [3, None, None, None, None, None]
    assert rows[fleet, HOUR][:6] == [None, 9, None, None, None, 1]
    # All tenants were listed in span 3, so it asked nothing.
    assert rows[tenant, HOUR][:6] == [None, None, 8, 0, None, None]
    assert rows[late, HOUR][:7] == [None, None, None, None, None, 0, None]


def test_gauges_are_the_highest_and_hours_of_pods_are_not_kept(transactional_db: None) -> None:
    one, two, pod = writer("g1"), writer("g2"), thing(POD, "pod-1")
    place = POD.place("pressure")
    measure(one, 0, POD, {pod: row(POD, 1, pressure=300)})
    measure(two, 0, POD, {pod: row(POD, 1, pressure=700)})
    measure(one, 1, POD, {pod: [1] * (POD.width - 3) + [None] * 3})
    sealing.seal(SEALABLE)
    assert stored("series_10s")[pod, HOUR][360 * place :][:2] == [700, None]
    assert stored("series_1m")[pod, HOUR][60 * (place + 1)] == 700
    assert stored("series_1h") == {}


FRAMES = st.lists(
    st.tuples(
        st.sampled_from([0, 1]),  # writer
        st.integers(0, 719),  # span, of two hours
        st.sampled_from(["fleet", "dependency", "pod", "tenant"]),
        st.dictionaries(st.sampled_from([0, 1]), st.integers(0, 10**6), max_size=2),
        st.sampled_from([0, 5]),  # floor
    ),
    max_size=25,
    unique_by=lambda one: one[:3],
)


def expected(frames: Any, kind: Kind, which: int, field: int) -> list[int | None]:
    """Two hours of one field, without arrays, SQL, or sealing."""
    measured = {(w, s): floor for w, s, _, _, floor in reversed(frames)}
    found: list[int | None] = []
    for span in range(720):
        floors = [floor for (_, s), floor in measured.items() if s == span]
        values = [
            counted[which] + field
            for _, s, name, counted, _ in frames
            if s == span and name == kind.name and which in counted
        ]
        if values:
            found.append(max(values) if kind.fields[field].how is How.PEAK else sum(values))
        elif not floors or kind in (FLEET, POD) or kind.fields[field].how is How.PEAK:
            found.append(None)
        elif kind is DEPENDENCY or not any(floors):
            found.append(0)
        else:
            found.append(None)
    return found


@pytest.mark.parametrize("how", ["in time", "late", "twice", "in two processes"])
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=FRAMES)
def test_sealing_is_what_a_plain_computation_says(transactional_db: None, how: str, frames: Any) -> None:
    empty()
    writers = [writer("g1"), writer("g2")]
    names = {"fleet": ["", ""]}
    ids = {
        kind.name: [
            thing(kind, name) for name in names.get(kind.name, ["a", "b"])[: 1 if kind is FLEET else 2]
        ]
        for kind in (FLEET, DEPENDENCY, POD, TENANT)
    }
    frames = [
        (w, s, name, {k: v for k, v in counted.items() if name != "fleet" or k == 0}, floor)
        for w, s, name, counted, floor in frames
    ]
    for w, span, name, counted, floor in frames:
        kind = BY_NAME[name]
        values = {ids[name][which]: [n + f for f in range(kind.width)] for which, n in counted.items()}
        measure(writers[w], span, kind, values, floor=floor)
    hours = [HOUR, HOUR + timedelta(hours=1)]
    unsealed = _answers(hours)
    _seal(how)
    measured_hours = {span // 360 for _, span, _, counted, _ in frames if counted}
    rows = stored("series_10s")
    for kind in (FLEET, DEPENDENCY, POD, TENANT):
        for which, number in enumerate(ids[kind.name]):
            for field in (0, 1, kind.width - 1):
                for hour in measured_hours:
                    plain = expected(frames, kind, which, field)[360 * hour : 360 * hour + 360]
                    v = rows.get((number, hours[hour]))
                    if v is None:
                        assert not kind.complete
                        assert not any(plain)
                    else:
                        assert v[360 * field : 360 * field + 360] == plain
    # A chart does not change when its hours are sealed, except where no hour of frames was there to seal.
    if measured_hours == {0, 1}:
        assert _answers(hours) == unsealed


def _answers(hours: list[datetime]) -> list[Any]:
    found = []
    for kind in (FLEET, DEPENDENCY, POD, TENANT):
        for entity in Entity.objects.filter(kind=kind.number).order_by("id"):
            for length in (2, 9):
                answer = read(
                    "production",
                    kind,
                    entity.name,
                    fields=[field.name for field in kind.fields[:3]],
                    start=hours[0],
                    end=hours[0] + timedelta(hours=length),
                    now=HOUR + timedelta(hours=9),
                )
                found.append(answer)
    return found


def _seal(how: str) -> None:
    in_time = HOUR + timedelta(hours=2, minutes=7)
    if how == "late":
        sealing.seal(HOUR + timedelta(days=1, hours=12))
    elif how == "in two processes":
        threads = [threading.Thread(target=_seal_in_thread) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        # One of them may have found the other at it.
        sealing.seal(HOUR + timedelta(hours=9))
    else:
        sealing.seal(in_time)
        if how == "twice":
            first = everything()
            sealing.seal(HOUR + timedelta(hours=9))
            assert everything() == first
            sealing.seal(HOUR + timedelta(hours=9, minutes=1))
            assert everything() == first


def _seal_in_thread() -> None:
    try:
        sealing.seal(HOUR + timedelta(hours=9))
    finally:
        connections.close_all()


def test_a_late_frame_is_added_before_the_hour_is_final_and_dropped_after(transactional_db: None) -> None:
    g1, llm = writer(), thing(DEPENDENCY, "llm")
    measure(g1, 0, DEPENDENCY, {llm: row(DEPENDENCY, 7)})
    assert sealing.seal(SEALABLE) == 1
    assert sealing.seal(SEALABLE + timedelta(minutes=1)) == 0
    measure(g1, 1, DEPENDENCY, {llm: row(DEPENDENCY, 2)})
    assert sealing.seal(FINAL) == 2  # and the hour after it, in which nothing was measured
    assert stored("series_10s")[llm, HOUR][:3] == [7, 2, None]
    measure(g1, 2, DEPENDENCY, {llm: row(DEPENDENCY, 5)})
    assert sealing.seal(FINAL + timedelta(minutes=1)) == 0
    assert stored("series_10s")[llm, HOUR][:3] == [7, 2, None]
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM series_frame")
        assert cursor.fetchone() == (0,)


def test_hours_of_a_day_are_in_one_row(transactional_db: None) -> None:
    g1, llm = writer(), thing(DEPENDENCY, "llm")
    for hours in range(3):
        hour = HOUR + timedelta(hours=hours)
        measure(g1, 0, DEPENDENCY, {llm: row(DEPENDENCY, hours + 1)}, hour=hour)
        sealing.seal(hour + timedelta(hours=1, minutes=7))
    ((_, v),) = stored("series_1h").items()
    assert v[24 + 13 : 24 + 16] == [1, 2, 3]


def test_sealing_2_000_things_computes_nothing_in_a_transaction(transactional_db: None) -> None:
    """A busy worker was idle in its transaction for too long, and the hour was never sealed."""
    g1 = writer()
    ids = [thing.id for thing in Entity.objects.bulk_create(_pods(2_000))]
    for span in (0, 359):
        for part in range(0, 2_000, 250):
            measure(g1, span, POD, {one: row(POD, one) for one in ids[part : part + 250]}, part=part)
    partitions.ensure(HOUR)
    statements: list[tuple[str, int, bool]] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        words = " ".join(sql.split()[:3])
        statements.append((words, len(params) if many else 1, connection.in_atomic_block))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        assert sealing.seal(SEALABLE) == 1
    inside = [(words, rows) for words, rows, within in statements if within]
    # A transaction writes rows that are computed, and reads nothing.
    written = [(words, rows) for words, rows in inside if "series_10s" in words or "series_1m" in words]
    assert {words for words, _ in written} == {"INSERT INTO series_10s", "INSERT INTO series_1m"}
    assert {rows for _, rows in written} == {sealing.PER_WRITE}
    assert not [words for words, _ in inside if words.startswith("SELECT") and "series_seal" not in words]
    # 12 reads of frames for 500 things, a few statements for 100 things, and a few for the hour.
    assert len(statements) < 250
    assert len(stored("series_10s")) == 2_000
    assert stored("series_10s")[ids[-1], HOUR][:2] == [ids[-1], None]
    assert stored("series_10s")[ids[-1], HOUR][359] == ids[-1]


def _pods(count: int) -> list[Entity]:
    return [
        Entity(
            environment="production",
            kind=POD.number,
            name=f"pod-{number}",
            first_at=STARTED,
            last_at=STARTED,
        )
        for number in range(count)
    ]


def test_an_hour_that_was_sealed_in_part_is_read_from_frames_and_sealed_again(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a worker is killed between two transactions."""
    monkeypatch.setattr(sealing, "PER_WRITE", 1)
    g1, one, two = writer(), thing(DEPENDENCY, "one"), thing(DEPENDENCY, "two")
    measure(g1, 0, DEPENDENCY, {one: row(DEPENDENCY, 7), two: row(DEPENDENCY, 8)})
    before = _answers([HOUR])
    real, calls = sealing.write_rows, []

    def killed(table: Any, at_: datetime, rows: Any) -> None:
        calls.append(table)
        if len(calls) > 4:
            raise InterruptedError
        real(table, at_, rows)

    monkeypatch.setattr(sealing, "write_rows", killed)
    with pytest.raises(InterruptedError):
        sealing.seal(FINAL)
    assert list(stored("series_10s")) == [(one, HOUR)]
    assert not Seal.objects.exists()
    assert _answers([HOUR]) == before
    monkeypatch.setattr(sealing, "write_rows", real)
    assert sealing.seal(FINAL) == 2
    assert {key: v[:1] for key, v in stored("series_10s").items() if key[1] == HOUR} == {
        (one, HOUR): [7],
        (two, HOUR): [8],
    }


def test_what_is_too_old_is_dropped_with_its_partition(transactional_db: None, settings: Any) -> None:
    settings.SERIES_KEPT_10S_H, settings.SERIES_KEPT_MINUTES_D, settings.SERIES_KEPT_HOURS_D = 24, 8, 400
    g1, llm, pod = writer(), thing(DEPENDENCY, "llm"), thing(POD, "pod-1")
    measure(g1, 0, DEPENDENCY, {llm: row(DEPENDENCY, 1)})
    measure(g1, 0, POD, {pod: row(POD, 1)})
    sealing.seal(FINAL)
    retention.forget(HOUR + timedelta(hours=30))
    assert [bool(stored(table.name)) for table in partitions.TABLES] == [True, True, True]
    assert "series_10s_20260504" in retention.forget(HOUR + timedelta(hours=36))
    assert [bool(stored(table.name)) for table in partitions.TABLES] == [False, True, True]
    dropped = retention.forget(HOUR + timedelta(days=9, hours=12))
    assert "series_1m_20260504" in dropped
    assert list(Entity.objects.values_list("name", flat=True)) == ["llm"]
    assert (Writer.objects.count(), Seal.objects.count()) == (0, 0)
    assert "series_1h_202605" in retention.forget(HOUR + timedelta(days=450))
    assert not Entity.objects.exists()


def test_sealing_goes_on_while_a_reader_holds_a_lock(transactional_db: None) -> None:
    """To attach a partition waits for no reader."""
    g1, llm = writer(), thing(DEPENDENCY, "llm")
    measure(g1, 0, DEPENDENCY, {llm: row(DEPENDENCY, 7)})
    for table in partitions.TABLES:
        name, _, _ = table.partition_of(HOUR)
        if name in partitions.names(table):
            partitions.drop(name)
    reads, done = threading.Event(), threading.Event()
    reader = threading.Thread(target=_read_until, args=(reads, done))
    reader.start()
    try:
        assert reads.wait(60)
        assert sealing.seal(SEALABLE) == 1
    finally:
        done.set()
        reader.join(60)


def _read_until(reads: threading.Event, done: threading.Event) -> None:
    from django.db import transaction

    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM series_10s, series_1m, series_1h")
            reads.set()
            done.wait(60)
    finally:
        connections.close_all()
