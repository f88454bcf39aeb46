"""Rates of one pod's calls, from the totals of its heartbeats."""

from typing import Any

import msgspec

from controlplane.gateway.servers.calls import SPARSE_POINT_BYTES, CallTrack, slot_key
from fuseboard.contract.load import CallLoad, TierLoad


def report(first: int, *, name: str = "llm", **fields: Any) -> tuple[CallLoad, ...]:
    return (CallLoad(dependency=name, first_calls=first, **fields),)


def test_a_dependency_that_a_pod_only_now_calls_has_rates_at_once() -> None:
    """Its first report is its start, although the pod reported others before."""
    track = CallTrack()
    slots = (TierLoad(limit=4, active=0, queued=0, entered=50, full=0, timed_out=0),) * 3
    track.add(0.0, report(100, name="other"))
    track.add(10.0, report(200, name="other"))
    track.add(20.0, report(300, name="other") + report(0, fallbacks=5))
    assert ("fallbacks", "llm") not in track.counts(), "one report says nothing about a rate"
    track.add(30.0, report(400, name="other") + report(0, fallbacks=25, tiers=slots))
    found = track.counts()
    assert found["first_calls", "other"] == 10_000
    assert ("fallbacks", "llm") not in found, "its slots are new, and nothing says since when they count"
    entered = tuple(msgspec.structs.replace(tier, entered=90) for tier in slots)
    track.add(40.0, report(500, name="other") + report(0, fallbacks=45, tiers=entered))
    found = track.counts()
    assert found["first_calls", "other"] == 10_000
    assert found["fallbacks", "llm"] == 2_000
    assert found["slots_entered", slot_key("llm", "critical")] == 4_000


def test_slots_that_start_again_have_rates_after_two_reports() -> None:
    """A changed bulkhead counts from 0. The older points are left out rather than waited for."""
    track = CallTrack()
    for at, entered in ((0.0, 900), (10.0, 1_000), (20.0, 10), (30.0, 30)):
        slots = (TierLoad(limit=4, active=0, queued=0, entered=entered, full=0, timed_out=0),) * 3
        track.add(at, report(0, tiers=slots))
    assert track.counts()["slots_entered", slot_key("llm", "critical")] == 2_000


def test_in_a_full_environment_two_points_are_kept_and_rates_go_on() -> None:
    track = CallTrack()
    for turn in range(20):
        track.add(5.0 * turn, report(50 * turn), most=SPARSE_POINT_BYTES)
        assert len(track._points) <= 2
        if turn:
            assert track.counts()["first_calls", "llm"] == 10_000
