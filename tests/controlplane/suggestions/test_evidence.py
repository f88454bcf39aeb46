"""What the reports of pods suggest for one limit of a vendor."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from controlplane.fleet.stated_limits import PodSeen
from controlplane.policies.models import VendorLimit
from controlplane.suggestions.evidence import suggested

NOW = datetime(2026, 5, 4, 13, 10, tzinfo=UTC)
NINE = datetime(2026, 5, 4, 9, 12, tzinfo=UTC).timestamp()
LIMIT = VendorLimit(name="rate", measure="calls", algorithm="sliding_window", limit=900, window_s=60)


def pods(number: int = 20, **figures: Any) -> list[PodSeen]:
    return [PodSeen(f"web-{place}", since=NINE + place, **figures) for place in range(number)]


def found(reports: list[PodSeen], limit: VendorLimit = LIMIT) -> dict[str, tuple[int, str]]:
    return {str(one.kind): (one.number, one.evidence) for one in suggested(limit, reports, NOW)}


def test_a_lower_number_of_the_vendor_is_suggested_with_counts() -> None:
    assert found(pods(said=600, answers=615)) == {
        "limit": (
            600,
            "In 12,300 answers to 20 pods since 09:12 UTC the vendor said 600 calls per min."
            " Configured: 900 calls per min.",
        )
    }


def test_the_same_number_suggests_nothing() -> None:
    assert found(pods(said=900, answers=615, sent=100, blocked=50)) == {}


def test_a_higher_number_is_suggested_only_while_our_limit_refuses_calls() -> None:
    assert found(pods(said=1_200, answers=615)) == {}
    number, words = found(pods(said=1_200, answers=615, blocked=3))["too_low"]
    assert number == 1_200
    assert words.endswith(
        "From 13:00 to 13:10 UTC limits of ours refused 60 calls of 20 pods."
        " You use at most 75 % of what you may."
    )


def test_refusals_without_a_number_are_named() -> None:
    number, words = found(pods(4, sent=1_300, refused=85))["refused"]
    assert number == 7
    assert words == (
        "From 13:00 to 13:10 UTC the vendor refused 340 of 5,200 calls (6.5 %) of 4 pods,"
        " and stated no lower limit."
    )


def test_what_others_use_is_named() -> None:
    number, words = found(pods(4, said=900, answers=50, others=600))["others"]
    assert number == 27
    assert words == (
        "From 13:00 to 13:10 UTC others used 2,400 of the 9,000 calls that this limit allows (26.7 %):"
        " the vendor had that much less left than our counter, in answers to 4 pods."
    )


@pytest.mark.parametrize(
    "reports",
    [
        pods(2, said=600, answers=9),
        pods(1, said=600, answers=1_000),
        pods(2, sent=1_000, refused=9, others=9),
        pods(20, sent=1_000, refused=9),  # 0.9 %
        pods(20, others=20),  # 4 %
    ],
)
def test_too_little_is_no_evidence(reports: list[PodSeen]) -> None:
    assert found(reports) == {}


def test_one_pod_alone_suggests_nothing_whatever_it_reports() -> None:
    liar = PodSeen(
        "liar",
        said=1,
        answers=10**6,
        since=NINE,
        left=0,
        sent=10**6,
        refused=10**6,
        blocked=10**6,
        others=10**9,
    )
    assert found([liar]) == {}
    # Among others that see nothing unusual.
    assert found([*pods(said=900, answers=615, sent=100), liar]) == {}
    # Its figures count at most as much as those of the second one.
    others = replace(liar, said=900)
    assert found([*pods(said=900, answers=50, sent=100, refused=0, others=1), others]) == {}


def test_one_pod_alone_neither_invents_nor_hides_refusals_of_others() -> None:
    honest = pods(4, sent=1_300, refused=85, others=600)
    usual = found(honest)
    liar = PodSeen("liar", sent=2**53, refused=2**53, others=2**53)
    number, words = found([*honest, liar])["refused"]
    # Its calls count twice, and its refusals as many as those of one other pod.
    assert (number, "425 of 7,800 calls (5.4 %) of 5 pods" in words) == (5, True), words
    assert found([*honest, liar])["others"][0] <= 2 * usual["others"][0]
    silent = replace(liar, refused=0)
    assert found([*honest, silent])["refused"][0] == 4


def test_pods_that_report_more_refusals_than_calls_were_refused_each_call() -> None:
    number, words = found(pods(30, sent=10, refused=2**53))["refused"]
    assert number == 100
    assert "refused 300 of 300 calls (100 %) of 30 pods" in words


def test_the_oldest_age_that_one_pod_reports_is_not_believed() -> None:
    honest = pods(said=600, answers=615)
    assert "since 09:12 UTC" in found([*honest, replace(honest[0], pod="liar", since=1.0)])["limit"][1]


@pytest.mark.parametrize("algorithm", ["concurrency", "fixed_window"])
def test_limits_that_do_not_refill_keep_their_own_books(algorithm: str) -> None:
    limit = VendorLimit(name="rate", measure="calls", algorithm=algorithm, limit=900, window_s=60)
    assert found(pods(said=600, answers=615), limit) == {}


def test_slots_get_one_suggestion_when_the_vendor_refuses_calls() -> None:
    limit = VendorLimit(name="at-once", measure="calls", algorithm="concurrency", limit=20, window_s=60)
    seen = found(pods(2, said=600, answers=615, others=10**6, sent=500, refused=20), limit)
    assert list(seen) == ["refused"]
    number, words = seen["refused"]
    assert number == 4
    assert words.endswith("refused 40 of 1,000 calls (4 %) of 2 pods, and stated no lower limit.")


def test_slots_that_follow_the_vendor_are_suggested_as_they_are() -> None:
    limit = VendorLimit(name="at-once", measure="calls", algorithm="concurrency", limit=20, window_s=60)
    seen = found(pods(2, followed=14, sent=500, refused=20), limit)
    words = (
        "From 13:00 to 13:10 UTC the vendor refused 40 of 1,000 calls (4 %). Pods follow it, and apply 14"
        " calls at once. Configured: 20."
    )
    assert seen == {"slots": (14, words)}
    # Nearly as configured; own machines, which refuse nothing; one of several pods.
    assert list(found(pods(2, followed=19, sent=500, refused=20), limit)) == ["refused"]
    assert found(pods(2, followed=14, sent=500, refused=9), limit) == {}
    one = [*pods(1, followed=2, sent=500, refused=20), *(replace(pods(2)[1], sent=500, refused=20),)]
    assert list(found(one, limit)) == ["refused"]
    # A rate has the vendor's own number.
    assert list(found(pods(2, followed=600, sent=500, refused=20))) == ["refused"]


def test_a_shadow_gets_no_suggestion() -> None:
    limit = VendorLimit(
        name="rate", measure="calls", algorithm="sliding_window", limit=900, window_s=60, shadow=True
    )
    assert found(pods(said=600, answers=615), limit) == {}
