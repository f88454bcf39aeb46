"""Vendors that halve and raise their limit, beside others on the key: what a fleet that follows gets."""

from collections.abc import Callable

import pytest
import redis

from tests.agents.models.learner import Learner
from tests.agents.scripts import Store
from tools.experiments.following import BUCKET, FLOOR_PERCENT, SLIDING
from tools.experiments.vendor_fleet import OFFERED_PER_S, PER_MINUTE, Bucket, FixedMinute, Fleet, Vendor, play

#: The vendor halves its limit, and doubles it again; others take 20 %, and 40 % in the middle of each part.
HALVED_S, DOUBLED_S, SECONDS = 300.0, 600.0, 900.0


def allowed(at: float) -> float:
    return PER_MINUTE / 2 if HALVED_S <= at < DOUBLED_S else PER_MINUTE


def others_per_s(at: float) -> float:
    return (0.4 if 100 <= at % 300 < 200 else 0.2) * allowed(at) / 60


VENDORS: dict[str, Callable[[], Vendor]] = {
    "bucket of 60 s": lambda: Bucket(allowed),
    "fixed minute": lambda: FixedMinute(allowed),
}


@pytest.mark.slow
@pytest.mark.parametrize("vendor", VENDORS)
def test_a_vendor_that_states_its_limit_refuses_few_calls_and_little_is_left(
    limits: redis.Redis, vendor: str
) -> None:
    """Cases L9 and L11: 429s and goodput with headers, and the 429s in two minutes after the halving."""
    learner = Learner(limits, ceiling=PER_MINUTE, lowest=PER_MINUTE * FLOOR_PERCENT // 100)
    fleet = Fleet(Store(limits, [SLIDING]), SLIDING, learner=learner)
    found = play(VENDORS[vendor](), fleet, seconds=SECONDS, others_per_s=others_per_s)
    assert found.refused <= 0.01 * found.requests
    assert sum(HALVED_S <= at < HALVED_S + 120 for at in found.refusals) <= 60
    left = sum(
        min(OFFERED_PER_S, allowed(second) / 60 - others_per_s(second)) for second in range(int(SECONDS))
    )
    assert found.ok >= 0.95 * left


def few_allowed(at: float) -> float:
    """As above, but the vendor and the others change four times in 45 minutes."""
    return PER_MINUTE / 2 if 900 <= at < 1_800 else PER_MINUTE


def few_others_per_s(at: float) -> float:
    return (0.4 if 450 <= at < 1_350 else 0.2) * few_allowed(at) / 60


#: What changes, for how long, and the bars. In the second one, each change comes while the limit still comes
#: back from the one before. So it has the bars of a vendor that sends no headers.
ENFORCED_IN_EACH_SECOND = {
    "few changes": (few_allowed, few_others_per_s, 2_700, 0.02, 0.95),
    "a change every 100 s": (allowed, others_per_s, int(SECONDS), 0.03, 0.9),
}


@pytest.mark.slow
@pytest.mark.parametrize("changes", ENFORCED_IN_EACH_SECOND)
def test_a_vendor_that_enforces_its_minute_in_each_second_refuses_few_calls(
    limits: redis.Redis, changes: str
) -> None:
    """Case L10: the vendor's bucket holds one second, and so does ours."""
    allows, of_others, seconds, refused, used = ENFORCED_IN_EACH_SECOND[changes]
    learner = Learner(limits, ceiling=PER_MINUTE, lowest=PER_MINUTE * FLOOR_PERCENT // 100)
    fleet = Fleet(Store(limits, [BUCKET]), BUCKET, learner=learner)
    found = play(Bucket(allows, burst_s=1.0), fleet, seconds=seconds, others_per_s=of_others)
    assert found.refused <= refused * found.requests
    halved_s = seconds / 3
    assert sum(halved_s <= at < halved_s + 120 for at in found.refusals) <= 60
    left = sum(min(OFFERED_PER_S, allows(second) / 60 - of_others(second)) for second in range(seconds))
    assert found.ok >= used * left
