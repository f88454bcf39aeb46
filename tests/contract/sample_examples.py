"""Parts of the golden files: keys and samples of refusals, and counted durations of calls."""

from typing import Any

from msgspec.structs import replace

from fuseboard.contract.descriptor_tallies import DescriptorTally, RuleTally, UnmatchedTally
from fuseboard.contract.policy import Dependency, Policy
from fuseboard.contract.primitives import HeldLock, LockCounters, OnceCounters, Primitives
from fuseboard.contract.refusal_samples import DigestKey, RefusalSample
from fuseboard.contract.refusal_token import RefusalKey
from fuseboard.contract.seal_keys import SealKey
from fuseboard.contract.sync import (
    AllowedAlone,
    Counters,
    DependencyCounters,
    PermitCounters,
    RuleCounters,
    SeenLimit,
    SyncRequest,
    TenantCounters,
    Uncharged,
)
from fuseboard.contract.tallies import Tally, TenantTally
from fuseboard.contract.usage import UsagePart, UsageRow
from fuseboard.contract.words import Mode, Reason

REFUSAL_KEY = RefusalKey(day=20_780, id=bytes(range(4)), key=bytes(range(32)))
DIGEST_KEY = DigestKey(key=bytes(range(32)))
SEAL_KEYS = (SealKey(id=bytes(range(4)), key=bytes(range(32))), SealKey(id=b"next", key=bytes(32)))
PRIMITIVES = Primitives(
    locks=LockCounters(
        acquired=40,
        waited=3,
        taken=2,
        lost=1,
        unavailable=4,
        unreleased=1,
        long_held=2,
        waited_ms=410,
        held_ms=90_000,
    ),
    once=OnceCounters(begun=120, replayed=4, running=1, mismatched=2, lost=1, unavailable=3),
    holding=2,
    longest_ms=47_200,
    held=(HeldLock(name="nightly-report", held_ms=47_200), HeldLock(name="export", held_ms=1_100)),
)
UNSEALED = Primitives(once=OnceCounters(replayed=4, unsealed=3))
PERMITS = PermitCounters(issued=9_000, expired=40, displaced=3)
DESCRIPTORS = DescriptorTally(
    number=7,
    rules=(
        RuleTally("edge", "tenant > remote_address", 120, 9, 4),
        RuleTally("edge", "path=/v1/*", 3),
    ),
    unmatched=(
        UnmatchedTally("edge", "tenant > größe", 12, ("acme > {id}", "globex > xl")),
        UnmatchedTally("internal", "path", 1),
    ),
    left_out=5,
)
ALONE = AllowedAlone(unreported=1_200, uncounted=34, adopted=2, expired=1)
#: File -> fields of an answer, besides those that each answer has.
ANSWERS: dict[str, dict[str, Any]] = {
    "sync_response.5.json": {"refusal_key": REFUSAL_KEY},
    "sync_response.6.json": {"digest_key": DIGEST_KEY},
    "sync_response.7.json": {
        "refusal_key": REFUSAL_KEY,
        "explain_url": "https://fuseboard.example.com/explain",
    },
    "sync_response.8.json": {"seal_keys": SEAL_KEYS},
    "sync_response.usage_taken.json": {"usage_taken": 7},
}
SAMPLES = (
    RefusalSample(
        ago_ms=1_200,
        rule="requests",
        dependency="openai",
        reason=Reason.QUOTA,
        mode=Mode.LOCAL,
        tenant="acme ünd sons",
        endpoint="POST /v1/orders/{id}",
        revision=42,
        retry_after_ms=12_400,
        ip="0123456789abcdef",
        user="123456789abcdef0",
        api_key="23456789abcdef01",
        weight=21.5,
    ),
    RefusalSample(reason=Reason.SHED),
)
TRACED = (RefusalSample(reason=Reason.QUOTA, rule="requests", trace="4bf92f3577b34da6a3ce929d0e0e4736"),)
TIMED = Counters(
    dependencies=(DependencyCounters(dependency="openai", ok=9, slow=1, latency=(0, 0, 3, 5, 1, 0, 1)),)
)
SEEN = (SeenLimit(dependency="llm", limit="per-minute", said=600, followed=412),)
EVIDENCE = (
    SeenLimit(
        dependency="llm",
        limit="per-minute",
        said=600,
        answers=12_304,
        for_ms=3_600_000,
        left=0,
        sent=900,
        refused=31,
        blocked=12,
        others=2_400,
    ),
)

#: Limits of calls at once follow the time of calls, which may take twice as long as at best.
OWN_MACHINES = (Dependency(name="gpus", latency_rise_percent=100),)
PACES = (SeenLimit(dependency="gpus", limit="at-once", followed=12, took_ms=3_100, lowest_ms=2_000),)


def with_seen_limits(request: SyncRequest, policy: Policy) -> dict[str, SyncRequest | Policy]:
    """The request with what pods saw of limits of vendors, and the policy with what limits follow, by the
    name of the golden document.
    """
    return {
        "sync_request.seen.json": replace(request, seen=SEEN),
        "sync_request.evidence.json": replace(request, seen=EVIDENCE),
        "sync_request.paces.json": replace(request, seen=PACES),
        "policy.latency_rise.json": replace(policy, dependencies=OWN_MACHINES),
    }


UNCHARGED = (Uncharged(dependency="llm", measure="tokens"),)
TALLY = Tally(number=7, tenants=(TenantTally("acme", 120, 3), TenantTally("acme ünd sons", 1)), partial=True)
USAGE = (
    UsagePart(
        number=7,
        ago_s=16,
        rows=(
            UsageRow(
                "gpt-5.2",
                "openai",
                "acme ünd sons",
                3,
                900,
                4_000,
                120,
                450,
                7_425,
                1,
                900,
                2,
                1_800,
                0,
                9_120,
            ),
            UsageRow("", "", "", 1, 20),
        ),
    ),
    UsagePart(number=8, ago_s=0, rows=(UsageRow("m", "llm", "", 1, unpriced=1, saved_micro_usd=-3),)),
)
LEASED = Counters(
    requests=9_000,
    tenants=(
        TenantCounters(tenant="acme", allowed=9_000, rules=(RuleCounters(rule="requests", leased=8_800),)),
    ),
    rules=(RuleCounters(rule="requests", asked=9_000, leased=8_800),),
)
