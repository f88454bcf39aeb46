"""What gateways keep of failed calls, and what pages read of them."""

from typing import Any

import pytest

from controlplane.gateway.postgres.flush import Flusher
from controlplane.gateway.servers import failed_calls
from controlplane.gateway.servers.failed_calls import FailedCalls
from fuseboard.contract.failures import DependencyFailures, FailedCall
from fuseboard.contract.words import Outcome
from tests.controlplane.gateway.manual_gateway import NOON, TurnedClock, beat, ready_gateway

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def failures(*numbers: int, total: int | None = None, kind: str = "HTTP 503", **call: Any) -> Any:
    return (
        DependencyFailures(
            dependency="llm",
            kinds={kind: max(numbers, default=0) if total is None else total},
            last=tuple(FailedCall(number=number, kind=kind, **call) for number in numbers),
        ),
    )


def document(kept: FailedCalls) -> dict[str, Any]:
    return dict(kept.due(float("inf")))["llm"]


def test_each_call_is_kept_once_although_heartbeats_repeat_it() -> None:
    kept, last = FailedCalls(), beat(up_ms=1_000)
    for numbers in ((1, 2), (1, 2, 3), (1, 2, 3), (2, 3, 4)):
        now = beat(up_ms=1_000, failures=failures(*numbers, trace=TRACE))
        kept.record(last, now, NOON, first=last.failures == ())
        last = now
    found = document(kept)
    assert sorted(call[3] for call in found["calls"]) == [1, 2, 3, 4]
    assert {call[6] for call in found["calls"]} == {TRACE}
    assert found["kinds"] == [[int(NOON), {"HTTP 503": 4}]]
    kept.record(last, last, NOON, first=False)
    assert kept.due(float("inf")) == []


def test_calls_of_a_pod_that_is_heard_late_are_displayed_but_not_counted() -> None:
    """After a restart of a gateway, nobody knows which of them were counted before."""
    kept = FailedCalls()
    first = beat(failures=failures(99, 100))
    kept.record(first, first, NOON, first=True)
    assert document(kept)["kinds"] == []
    kept.record(first, beat(failures=failures(100, 101)), NOON, first=False)
    found = document(kept)
    assert found["kinds"] == [[int(NOON), {"HTTP 503": 1}]]
    assert [call[3] for call in found["calls"]] == [99, 100, 101]


def test_a_list_that_was_cut_does_not_count_old_calls_again() -> None:
    kept = FailedCalls()
    cut = beat(cut=1)
    kept.record(cut, beat(failures=failures(500)), NOON, first=False)
    assert document(kept)["kinds"] == []


def test_what_pods_can_grow_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_calls, "MAX_DEPENDENCIES", 3)
    kept, empty = FailedCalls(), beat()
    for number in range(200):
        one = failures(number + 1, kind=f"kind{number}", total=1)
        kept.record(empty, beat(f"pod-{number}", failures=one), NOON + 300 * number, first=False)
    for number in range(5):
        other = DependencyFailures(dependency=f"d{number}", kinds={"timeout": 1})
        kept.record(empty, beat(failures=(other,)), NOON, first=False)
    found = document(kept)
    assert len(found["calls"]) == failed_calls.MAX_CALLS
    assert len(found["kinds"]) == failed_calls.STEPS
    assert kept.left_out == 3
    crowded = FailedCalls()
    for number in range(100):
        one = failures(1, kind=f"kind{number}", total=1)
        crowded.record(empty, beat(f"pod-{number}", failures=one), NOON, first=False)
    (step,) = document(crowded)["kinds"]
    assert len(step[1]) <= failed_calls.MAX_KINDS + 1
    assert sum(step[1].values()) == 100


def test_a_message_in_place_of_a_kind_is_not_kept() -> None:
    kept = FailedCalls()
    bad = failures(1, kind="<b>key sk-123 is wrong</b>", trace="../../etc/passwd")
    kept.record(beat(up_ms=1), beat(up_ms=1, failures=bad), NOON, first=False)
    found = document(kept)
    assert found["calls"][0][4:] == ["failure", "failure", ""]
    assert found["kinds"] == [[int(NOON), {"failure": 1}]]


def test_a_row_is_written_at_most_every_two_seconds_and_again_if_postgres_refused() -> None:
    kept, empty = FailedCalls(), beat()
    kept.record(empty, beat(failures=failures(1)), NOON, first=False)
    assert [name for name, _ in kept.due(10.0)] == ["llm"]
    kept.record(empty, beat(failures=failures(2)), NOON, first=False)
    assert kept.due(11.0) == []
    assert [name for name, _ in kept.due(12.0)] == ["llm"]
    kept.put_back(["llm"])
    assert [name for name, _ in kept.due(14.0)] == ["llm"]


@pytest.mark.usefixtures("token", "thread_connections")
async def test_two_gateways_write_them_and_a_page_reads_them_together(database: Any) -> None:
    from asgiref.sync import sync_to_async

    from controlplane.fleet.failed_calls import recent_failures

    clock = TurnedClock()
    slow = {"kind": "slow", "outcome": Outcome.SLOW}
    for number, name in enumerate(("g1", "g2")):
        gateway = ready_gateway(clock, gateway=name)
        fleet = gateway.fleet("production")
        fleet.absorb(beat(f"pod-{name}", up_ms=5_000))
        fleet.absorb(beat(f"pod-{name}", failures=failures(1, 2, ago_ms=1_000 * number, trace=TRACE)))
        # It has moved from one gateway to the other.
        fleet.absorb(beat("moved", up_ms=5_000, failures=failures(1, **slow)))
        flusher = Flusher(gateway.fleets, gateway.settings, gateway.counts, clock)
        await flusher.write(with_figures=True)
        await flusher._postgres.disconnect()
    found = await sync_to_async(recent_failures)("production", "llm", clock.wall())
    assert sorted({call.pod for call in found.calls}) == ["moved", "pod-g1", "pod-g2"]
    assert sum(call.pod == "moved" for call in found.calls) == 1
    assert dict(found.kinds) == {"HTTP 503": 4, "slow": 2}
    assert found.total == 6
    assert found.since == pytest.approx(clock.wall())
    assert (await sync_to_async(recent_failures)("production", "other", clock.wall())).calls == ()
