"""Vendors and pods as processes, real clients. ``make experiments`` plays a quarter of an hour (T32)."""

import pytest

from tools.experiments.vendor_processes import KINDS, in_processes


def test_the_books_of_vendors_and_of_pods_agree() -> None:
    """Three seconds: what a vendor has answered is what the clients of both formats got."""
    run = in_processes(["minute", "slots"], seconds=3, pods=4, processes=1)
    assert run.errors == []
    for kind, found in run.by_kind.items():
        assert found.requests == len(found.ok) + len(found.refused), kind
        assert found.ok, kind


@pytest.mark.slow
def test_a_fleet_of_processes_follows_a_vendor_that_halves_its_limit() -> None:
    """Cases L9 to L12 in a minute: it halves at 20 s, and doubles at 40 s."""
    run = in_processes(list(KINDS), seconds=60)
    assert run.errors == []
    for kind, found in run.by_kind.items():
        lowest = min(number for _, number in found.followed)
        # The silent one makes up for a pause of 6 s, so it has refused few calls yet.
        most = 0.95 if kind == "silent" else 0.75
        assert lowest <= most * KINDS[kind].limit.limit, kind
    for kind in ("minute", "fixed"):
        stated = run.by_kind[kind]
        assert stated.refused_share <= 0.05, kind
        assert min(number for _, number in stated.followed) >= KINDS[kind].limit.limit / 2
