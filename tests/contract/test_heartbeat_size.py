"""What is left out of a heartbeat that is too long, and in which order."""

import pytest
from msgspec.structs import replace

from fuseboard.contract.heartbeat_size import ALWAYS_WANTED, cut_to, keep_breakers
from fuseboard.contract.load import CallLoad
from fuseboard.contract.primitives import MAX_NAMED, HeldLock, Primitives
from fuseboard.contract.refusal_samples import RefusalSample
from fuseboard.contract.sync import (
    BreakerView,
    Counters,
    DependencyCounters,
    RuleCounters,
    SeenLimit,
    SyncRequest,
    TenantCounters,
    encode,
)
from fuseboard.contract.words import BreakerState, OverrideMode, Reason
from fuseboard.reporting.heartbeat import FIELDS_BYTES

RULES = tuple(RuleCounters(rule=f"rule-{number}", asked=1) for number in range(20))
FULL = SyncRequest(
    environment="production",
    service="shop",
    server="web-1",
    boot="12345678",
    sequence=1,
    agent_version="0",
    breakers=tuple(BreakerView(dependency=f"dependency-{number}") for number in range(100)),
    counters=Counters(
        requests=1000,
        dependencies=tuple(
            DependencyCounters(dependency=f"dependency-{n}", ok=1, latency=(0, 0, 1)) for n in range(100)
        ),
        tenants=tuple(TenantCounters(tenant=f"tenant-{n}", allowed=1, rules=RULES) for n in range(50)),
        rules=RULES,
    ),
    want=tuple(f"wanted-{number}" for number in range(100)),
    protection=tuple(CallLoad(dependency=f"dependency-{n}", first_calls=1) for n in range(100)),
    refusals=tuple(RefusalSample(rule=f"rule-{n}", reason=Reason.QUOTA) for n in range(32)),
    seen=tuple(SeenLimit(dependency=f"dependency-{n}", limit="minute", said=600) for n in range(50)),
    primitives=Primitives(
        holding=9, held=tuple(HeldLock(name=f"lock-{n}", held_ms=1_000) for n in range(MAX_NAMED))
    ),
)


def sizes(request: SyncRequest) -> tuple[int, ...]:
    """In the order in which they are cut."""
    counters = request.counters
    return (
        len(request.refusals),
        len(request.seen),
        len(request.primitives.held) if request.primitives is not None else 0,
        sum(len(tenant.rules) for tenant in counters.tenants),
        sum(bool(one.latency) for one in counters.dependencies),
        len(request.protection),
        len(counters.tenants),
        len(counters.rules),
        max(0, len(request.want) - ALWAYS_WANTED),
        len(counters.dependencies),
        len(request.breakers),
        min(ALWAYS_WANTED, len(request.want)),
    )


def test_a_short_one_is_left_as_it_is():
    assert cut_to(FULL, 10**6, encode) == (FULL, encode(FULL))


@pytest.mark.parametrize("most", [*range(400, 8000, 150), *range(8000, 60_000, 2500)])
def test_it_fits_and_what_matters_least_is_cut_first(most: int):
    cut, body = cut_to(FULL, most, encode)
    assert len(body) <= most
    assert body == encode(cut)
    left, whole = sizes(cut), sizes(FULL)
    assert cut.cut == sum(whole) - sum(left)
    assert (cut.boot, cut.counters.requests, cut.primitives.holding) == (FULL.boot, 1000, 9)
    touched = [part for part, (now, before) in enumerate(zip(left, whole, strict=True)) if now < before]
    # Everything before the last part that was touched is gone.
    assert all(left[part] == 0 for part in touched[:-1])
    assert touched == list(range(len(touched)))


def test_it_cuts_no_more_than_it_must():
    whole = len(encode(FULL))
    cut, body = cut_to(FULL, whole - 1, encode)
    assert len(body) > 0.8 * whole
    assert cut.cut > 0


def test_breakers_that_say_something_are_kept():
    opened = BreakerView(dependency="z-open", state=BreakerState.OPEN)
    overridden = BreakerView(dependency="z-overridden", override=OverrideMode.DISABLED)
    kept = keep_breakers(replace(FULL, breakers=(*FULL.breakers, opened, overridden)), 5)
    assert kept.breakers == (opened, overridden, *FULL.breakers[:3])


def test_a_pod_with_many_dependencies_still_asks_for_tenants():
    """None was asked for in any heartbeat: without Redis, such a pod kept the default tier for all."""
    names = [f"dependency-number-{number}" for number in range(500)]
    many = replace(
        FULL,
        protection=(),
        refusals=(),
        breakers=tuple(BreakerView(dependency=name) for name in names),
        counters=Counters(dependencies=tuple(DependencyCounters(dependency=n, ok=1) for n in names)),
    )
    assert len(encode(many)) > FIELDS_BYTES
    cut, body = cut_to(many, FIELDS_BYTES, encode)
    assert cut.want == many.want[:ALWAYS_WANTED]
    assert len(body) <= FIELDS_BYTES
    assert cut.breakers


def test_long_names_of_wanted_tenants_do_not_push_out_breakers():
    long = replace(FULL, want=tuple(f"{number:0>200}" for number in range(100)))
    cut, _ = cut_to(long, 8_000, encode)
    assert cut.want == long.want[:20]
    assert cut.breakers
