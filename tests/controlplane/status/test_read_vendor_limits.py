"""Limits that follow their vendor, and the pod that a vendor refuses more often than the others."""

from typing import Any

import pytest

from controlplane.fleet.stated_limits import PodSeen
from controlplane.status.read_vendor_limits import odd_pods, read_vendor_limits
from controlplane.status.watched import FollowedLimit
from tests.controlplane.suggestions.vendor_rows import report, set_limit

KEY = ("openai", "rate")


def pods(number: int = 19, **figures: Any) -> list[PodSeen]:
    return [PodSeen(f"web-{place}", **{"sent": 200, **figures}) for place in range(number)]


def odd(*reports: PodSeen) -> list[tuple[str, int]]:
    return [(one.pod, round(one.times)) for one in odd_pods({KEY: reports, ("openai", "other"): reports})]


def test_the_pod_with_the_largest_share_is_compared_with_the_others() -> None:
    liar = PodSeen("liar", sent=100, refused=100)
    assert odd(*pods(refused=20), liar) == [("liar", 10)]
    # Nothing can be compared with 0: it counts as 0.5 %.
    assert odd(*pods(), liar) == [("liar", 200)]
    (found,) = odd_pods({KEY: [*pods(refused=20), liar]})
    assert (found.share, found.others_share, found.others) == (1.0, 0.1, 19)


def test_more_refusals_than_calls_are_all_of_its_calls() -> None:
    assert odd(*pods(refused=20), PodSeen("liar", sent=20, refused=10**9)) == [("liar", 10)]


@pytest.mark.parametrize(
    "reports",
    [
        [PodSeen("liar", sent=100, refused=100)],
        [*pods(1), PodSeen("liar", sent=100, refused=100)],
        [*pods(), PodSeen("liar", sent=100, refused=19)],
        [*pods(), PodSeen("liar", sent=19, refused=19)],
        [*pods(sent=19), PodSeen("liar", sent=100, refused=100)],
    ],
)
def test_too_little_names_no_pod(reports: list[PodSeen]) -> None:
    assert odd(*reports) == []


def test_a_fleet_that_is_refused_alike_has_no_odd_pod() -> None:
    assert odd(*pods(refused=60)) == [("web-9", 1)]


@pytest.mark.usefixtures("production")
def test_a_limit_is_followed_when_two_pods_apply_a_lower_number() -> None:
    set_limit()
    report(0, followed=300)
    found = FollowedLimit(dependency="openai", limit="rate", number=300, configured=900)
    assert read_vendor_limits("production")["followed"] == (found,)
    report(0)
    report(0, followed=300, pods=1)
    assert read_vendor_limits("production")["followed"] == ()
