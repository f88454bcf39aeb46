"""What a pod reports of the limits of vendors in its heartbeats."""

import pytest

from fuseboard.admission import seen_limits
from fuseboard.admission.seen_limits import LATELY_S, SEEN_S, STEP_S, SeenLimits, Totals
from fuseboard.contract.policy import Dependency
from fuseboard.contract.sync import MAX_SEEN, SeenLimit
from tests.agents.limit_kinds import window

VENDOR = Dependency(name="vendor", vendor_limits=(window(100, 60, name="minute"),))


class Pod:
    """A pod whose time and totals the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        self.totals: Totals = (0, 0, 0, 0)
        self.paces: dict[tuple[str, str], tuple[int, int]] = {}
        self.seen = SeenLimits()
        monkeypatch.setattr(seen_limits, "monotonic", lambda: self.now)

    def report(
        self, dependency: Dependency = VENDOR, followed: dict[tuple[str, str], int] | None = None
    ) -> tuple[SeenLimit, ...]:
        return self.seen.report(
            (dependency,), followed=followed or {}, totals=lambda *_: self.totals, paces=self.paces
        )


@pytest.fixture
def pod(monkeypatch: pytest.MonkeyPatch) -> Pod:
    return Pod(monkeypatch)


def test_answers_with_one_number_are_counted_until_it_is_another(pod: Pod):
    for left in (90, 80, 70):
        pod.seen.note("vendor", {"minute": (left, 600)})
        pod.now += 2
    (seen,) = pod.report()
    assert (seen.said, seen.answers, seen.for_ms, seen.left) == (600, 3, 6_000, 70)
    pod.seen.note("vendor", {"minute": (0, 500)})
    (seen,) = pod.report()
    assert (seen.said, seen.answers, seen.for_ms, seen.left) == (500, 1, 0, 0)


def test_a_number_is_forgotten_when_it_was_not_stated_lately(pod: Pod):
    pod.seen.note("vendor", {"minute": (90, 600)})
    pod.now += SEEN_S
    assert pod.seen.number("vendor", "minute") == 600
    pod.now += 1
    assert pod.seen.number("vendor", "minute") == 0
    assert pod.report() == ()


def test_the_times_of_calls_are_those_that_the_limit_follows(pod: Pod):
    pod.paces = {("vendor", "minute"): (3_100, 2_000)}
    (seen,) = pod.report(followed={("vendor", "minute"): 70})
    assert (seen.took_ms, seen.lowest_ms) == (3_100, 2_000)


def test_what_became_of_calls_is_counted_over_ten_minutes(pod: Pod):
    assert pod.report() == ()
    for _ in range(20):
        pod.now += STEP_S
        sent, refused, blocked, others = pod.totals
        pod.totals = sent + 10, refused + 1, blocked + 2, others + 5
        (seen,) = pod.report()
    assert (seen.sent, seen.refused, seen.blocked, seen.others) == (100, 10, 20, 50)
    pod.now += LATELY_S + STEP_S
    pod.report()
    pod.now += 1
    assert pod.report() == (), "no call for ten minutes"


def test_a_limit_that_was_removed_is_forgotten(pod: Pod):
    pod.seen.note("vendor", {"minute": (90, 600)})
    pod.report(Dependency(name="vendor"))
    assert pod.report() == ()
    assert pod.seen.stated == {}


def test_a_heartbeat_has_a_bounded_number_those_with_a_number_first(pod: Pod):
    limits = tuple(window(100, 60, name=f"limit-{number}") for number in range(MAX_SEEN + 10))
    many = Dependency(name="vendor", vendor_limits=limits)
    pod.report(many)
    pod.totals = 10, 0, 0, 0
    pod.seen.note("vendor", {limits[-1].name: (90, 600)})
    found = pod.report(many, {("vendor", limits[-2].name): 50})
    assert len(found) == MAX_SEEN
    assert [one.limit for one in found[:2]] == [limits[-2].name, limits[-1].name]
