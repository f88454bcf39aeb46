"""Vendors and pods as processes, real clients. ``make experiments`` plays a quarter of an hour (T32)."""

import pytest

from tools.experiments.vendor_processes import in_processes


def test_the_books_of_vendors_and_of_pods_agree() -> None:
    """Three seconds: what a vendor has answered is what the clients of both formats got."""
    run = in_processes(["minute", "slots"], seconds=3, pods=4, processes=1)
    assert run.errors == []
    for kind, found in run.by_kind.items():
        assert found.agrees, (kind, found)
        assert found.ok, kind


@pytest.mark.slow
def test_a_fleet_of_processes_follows_a_vendor_that_halves_its_limit() -> None:
    """Cases L9, L10 and L12 in a minute and a half: it halves at 30 s, and doubles at 60 s.

    That of fixed minutes has no room left in the minute in which it halves, and no call hears of it.
    """
    run = in_processes(["minute", "second", "slots"], seconds=90)
    assert run.errors == []
    for kind, most in {"minute": 300, "second": 300, "slots": 15}.items():
        assert min(number for _, number in run.by_kind[kind].followed) <= most, kind
    assert run.by_kind["minute"].refused_share <= 0.05
