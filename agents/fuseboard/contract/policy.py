"""The configuration that a pod decides by.

It has two parts, so that of 100,000 tenants a pod pays only for those it serves: one ``Policy``
document per environment (tiers, dependencies, overrides, tuning), and one ``TenantRecord`` per tenant,
fetched on first use. Both belong to one ``ConfigHead``.

Unknown fields are ignored, so an older agent can read a newer document. With an unknown word of an
enumeration the whole document is refused, and the last good one still applies.
"""

from hashlib import sha256
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from fuseboard.contract.addresses import IPV6_PREFIX, NARROWEST_PREFIX, WIDEST_PREFIX
from fuseboard.contract.budgets import Account, Budget, Budgets
from fuseboard.contract.descriptors import MAX_DOMAINS, DescriptorDomain, problems_of_all
from fuseboard.contract.limits import (
    EVERY_SERVICE,
    Count,
    Milliseconds,
    Percent,
    PolicyError,
    Positive,
    check_limits,
    is_time_zone,
    refuse_duplicates,
)

# Applications that ask by a limit of their own import it from here.
from fuseboard.contract.limits import Limit as Limit
from fuseboard.contract.models import MAX_MODELS, Model, names_of
from fuseboard.contract.protection import (
    CallProtection,
    MillisOrNone,
    PodProtection,
    ProtectionError,
    check_call_protection,
    check_pod_protection,
)
from fuseboard.contract.words import OverrideMode, Slug, Subject, is_slug

#: The longest wait that the configuration can set. A caller can ask for a longer one.
MAX_WAIT_MS = 60_000
#: The most that calls may take longer than their lowest time before limits of slots fall, in percent.
MAX_LATENCY_RISE = 1_000
#: A thread that asks its agent waits a second longer than the decision may take.
MAX_STORE_WAIT_MS = 500
WaitMs = Annotated[int, Meta(ge=0, le=MAX_WAIT_MS)]


#: Levels above a tenant, such as organisation and team above a user.
MAX_PARENTS = 2


class Tier(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A named class of tenants, with the quotas of tenants that have none of their own."""

    name: Slug
    quotas: tuple[Limit, ...] = ()
    #: 0 to 100. Under overload, the lowest is shed first.
    priority: Annotated[int, Meta(ge=0, le=100)] = 50
    #: A request of its tenants waits for a refusal that ends within this time, unless the caller says how
    #: long to wait.
    wait_ms: WaitMs = 0
    #: Each of its tenants has these, unless it has one of the same name.
    budgets: Budgets = ()


class TenantRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rules of one tenant that a pod must know."""

    tier: Slug
    suspended: bool = False
    #: Quotas that replace those of the tier with the same name.
    quotas: tuple[Limit, ...] = ()
    #: The tenants it belongs to, topmost first, such as an organisation and a team. Its requests are charged
    #: to their quotas too.
    parents: Annotated[tuple[Subject, ...], Meta(max_length=MAX_PARENTS)] = ()
    #: Budgets that replace those of the tier with the same name.
    budgets: Budgets = ()


class BreakerPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a dependency's breaker trips, and how it recovers."""

    #: Trip after this many failures since the last success; 0 turns the condition off.
    consecutive_failures: Count = 5
    #: Trip when this share of the calls in the window failed, given ``minimum_calls``.
    failure_percent: Percent = 50
    #: Trip when this share of the calls in the window was slower than ``slow_ms``.
    slow_percent: Percent = 100
    slow_ms: Milliseconds = 10_000
    minimum_calls: Positive = 20
    #: The window of the two ratios, in seconds.
    window_s: Annotated[int, Meta(ge=1, le=600)] = 30
    #: How long it stays open the first time. Doubles with every failed recovery, up to the maximum.
    open_ms: Milliseconds = 60_000
    open_max_ms: Milliseconds = 600_000
    #: Half-open permits that may exist at once.
    probes: Annotated[int, Meta(ge=1, le=100)] = 3
    #: A permit that is not reported within this time is free again.
    probe_lease_ms: Milliseconds = 30_000
    #: Successful probes that close it.
    successes_to_close: Annotated[int, Meta(ge=1, le=100)] = 2
    #: After closing, let traffic grow from a tenth to all over this time; 0 for at once.
    slow_start_ms: Annotated[int, Meta(ge=0, le=600_000)] = 0
    #: Pods that must have seen failures before the fleet's breaker trips, when as many had calls.
    minimum_servers: Annotated[int, Meta(ge=1, le=100)] = 2
    #: Judge both ratios by about this many of the newest calls in the window: its newest seconds that have at
    #: least so many. 0 for all calls in the window.
    window_calls: Count = 0


class Override(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A human's temporary setting of a breaker, as pods see it."""

    mode: OverrideMode
    #: The revision that made it. A newer one replaces an older one.
    revision: int
    #: When it ends, in store time (microseconds since the epoch).
    expires_at_us: int
    reason: str
    actor: str


class Dependency(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something called over the network."""

    name: Slug
    vendor_limits: tuple[Limit, ...] = ()
    breaker: BreakerPolicy = msgspec.field(default_factory=BreakerPolicy)
    timeout_ms: Milliseconds = 30_000
    #: A call waits for a refusal that ends within this time, unless the caller says how long to wait.
    wait_ms: WaitMs = 0
    #: Bounds of a stream, instead of the timeout: the longest time until the first part, and between two
    #: parts. 0 is no bound. With one of them, the length of a stream is no longer bounded.
    first_part_ms: MillisOrNone = 0
    between_parts_ms: MillisOrNone = 0
    #: A call waits this long for Redis before its pod decides alone; 0 for the deadline of the fleet.
    store_wait_ms: Annotated[int, Meta(ge=0, le=MAX_STORE_WAIT_MS)] = 0
    #: Limits of calls at once fall while calls take longer than their lowest time by more than this percent;
    #: 0 for never. Only where limits of vendors follow, see ``Tuning.vendor_floor_percent``.
    latency_rise_percent: Annotated[int, Meta(ge=0, le=MAX_LATENCY_RISE)] = 0
    #: The protection of each pod from it; absent for none.
    protection: CallProtection | None = None
    override: Override | None = None
    #: The revision of the last reset by a human. A pod that sees it rise forgets what it remembered.
    reset_revision: int = 0
    budgets: Budgets = ()


class Tuning(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How agents use the store and the control plane, and whom they count: one place for the whole fleet."""

    #: A decision waits this long for Redis, plus scheduling.
    store_deadline_us: Annotated[int, Meta(ge=500, le=50_000)] = 5_000
    #: Failures (refused, reset, error) within ``failure_window_ms`` that switch a pod to local mode.
    store_failures: Annotated[int, Meta(ge=1, le=1000)] = 3
    failure_window_ms: Milliseconds = 5_000
    #: Missed deadlines within ``timeout_window_ms`` that do the same.
    store_timeouts: Annotated[int, Meta(ge=1, le=10_000)] = 100
    timeout_window_ms: Milliseconds = 10_000
    #: How often a pod in local mode probes Redis (jittered by 20 percent).
    probe_interval_ms: Milliseconds = 10_000
    #: How long the shared part grows from 10 to 100 percent after Redis came back.
    ramp_ms: Milliseconds = 30_000
    #: Outcomes are reported after this time at the latest.
    report_interval_ms: Milliseconds = 100
    #: The part of ``reserved`` limits that pods spend without Redis, divided into reserved shares.
    reserved_percent: Annotated[int, Meta(ge=0, le=100)] = 10
    #: How long a pod may spend its reserved share after the heartbeat that renewed it.
    share_lease_ms: Annotated[int, Meta(ge=100, le=86_400_000)] = 900_000
    #: How long a reserved share rests before another pod gets it. ``reserved`` limits that remember calls for
    #: longer have no such part.
    share_rest_ms: Annotated[int, Meta(ge=1, le=86_400_000)] = 60_000
    #: Decisions without Redis that are not reported yet: the most limits one pod counts, and the size of a
    #: file of its journal.
    journal_keys: Annotated[int, Meta(ge=1, le=50_000)] = 50_000
    journal_bytes: Annotated[int, Meta(ge=4_096, le=8 * 1024 * 1024)] = 8 * 1024 * 1024
    #: Limits by address count IPv6 clients by the network of this length. 128 counts each address.
    ipv6_prefix: Annotated[int, Meta(ge=WIDEST_PREFIX, le=NARROWEST_PREFIX)] = IPV6_PREFIX
    #: How long after a request was sent its answer is believed about what the vendor has left; 0 for never.
    remaining_for_ms: Annotated[int, Meta(ge=0, le=60_000)] = 10_000
    #: Limits of vendors follow what the vendor really allows, from this percent of the limit up to all of it;
    #: 0 for never.
    vendor_floor_percent: Annotated[int, Meta(ge=0, le=100)] = 0


class Policy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything except the tenants, for one environment."""

    environment: Slug
    #: The tier of tenants that are not registered.
    default_tier: Slug
    #: Limits of requests without a tenant, by address or key: ``per`` must name one.
    subject_limits: tuple[Limit, ...] = ()
    #: Limits of all requests to a service, with and without a tenant: all callers share one counter.
    service_limits: tuple[Limit, ...] = ()
    tiers: tuple[Tier, ...]
    dependencies: tuple[Dependency, ...] = ()
    tuning: Tuning = msgspec.field(default_factory=Tuning)
    #: The protection of each pod; absent for none.
    protection: PodProtection | None = None
    #: The accounts at vendors.
    accounts: tuple[Account, ...] = ()
    #: The models whose calls have a price, or a dependency other than that of their host.
    models: Annotated[tuple[Model, ...], Meta(max_length=MAX_MODELS)] = ()
    #: The rules for what Envoy sends, one for each domain.
    descriptors: Annotated[tuple[DescriptorDomain, ...], Meta(max_length=MAX_DOMAINS)] = ()


class ConfigHead(Struct, frozen=True, kw_only=True, order=True):
    """The identity of a configuration: a higher epoch is newer, then a higher revision.

    The epoch rises when a database is restored, so that a lower revision can win once.
    """

    epoch: int
    revision: int
    #: ``hash_of`` the bytes of the policy.
    hash: str


_encoder = msgspec.json.Encoder(order="deterministic")
_policy_decoder = msgspec.json.Decoder(Policy)
_tenant_decoder = msgspec.json.Decoder(TenantRecord)


def encode_policy(policy: Policy) -> bytes:
    """The only encoding of a policy: the same policy always gives the same bytes."""
    return _encoder.encode(policy)


def decode_policy(document: bytes | msgspec.Raw) -> Policy:
    """Parse and check a policy whole.

    Raises ``msgspec.DecodeError`` or ``PolicyError``; never returns half a policy.
    """
    policy = _policy_decoder.decode(document)
    refuse_duplicates("tiers", [tier.name for tier in policy.tiers])
    refuse_duplicates("dependencies", [dependency.name for dependency in policy.dependencies])
    if policy.default_tier not in {tier.name for tier in policy.tiers}:
        raise PolicyError(f"default_tier: there is no tier {policy.default_tier!r}")
    for tier in policy.tiers:
        check_limits(f"tiers.{tier.name}.quotas", tier.quotas)
        _check_budgets(f"tiers.{tier.name}.budgets", tier.budgets)
    check_limits("subject_limits", policy.subject_limits)
    for limit in policy.subject_limits:
        if not limit.per:
            raise PolicyError(f"subject_limits.{limit.name}.per: say what to count by")
    check_limits("service_limits", policy.service_limits)
    for limit in policy.service_limits:
        if limit.per:
            raise PolicyError(f"service_limits.{limit.name}.per: all callers share one counter; leave it out")
        if limit.service != EVERY_SERVICE and not is_slug(limit.service):
            raise PolicyError(f"service_limits.{limit.name}.service: name a service, or * for every service")
    for dependency in policy.dependencies:
        check_limits(f"dependencies.{dependency.name}.vendor_limits", dependency.vendor_limits)
        _check_budgets(f"dependencies.{dependency.name}.budgets", dependency.budgets)
    _check_accounts(policy.accounts)
    _check_protection(policy)
    refuse_duplicates("models", list(names_of(policy.models)))
    refuse_duplicates("descriptors", [domain.domain for domain in policy.descriptors])
    for where, problem in problems_of_all(policy.descriptors):
        raise PolicyError(f"descriptors{where}: {problem}")
    return policy


def encode_tenant(record: TenantRecord) -> bytes:
    return _encoder.encode(record)


def decode_tenant(document: bytes | msgspec.Raw) -> TenantRecord:
    record = _tenant_decoder.decode(document)
    check_limits("quotas", record.quotas)
    _check_budgets("budgets", record.budgets)
    refuse_duplicates("parents", list(record.parents))
    return record


def hash_of(document: bytes) -> str:
    """SHA-256 of the bytes of a policy, the first 16 hexadecimal digits."""
    return sha256(document).hexdigest()[:16]


def _check_budgets(where: str, budgets: tuple[Budget, ...]) -> None:
    refuse_duplicates(where, [budget.name for budget in budgets])
    for budget in budgets:
        if budget.measure == "calls":
            raise PolicyError(f"{where}.{budget.name}.measure: a limit counts calls, a budget another cost")
        if not is_time_zone(budget.time_zone):
            raise PolicyError(f"{where}.{budget.name}.time_zone: {budget.time_zone!r} is not known here")


def _check_accounts(accounts: tuple[Account, ...]) -> None:
    refuse_duplicates("accounts", [account.name for account in accounts])
    refuse_duplicates("accounts.pools", [pool for account in accounts for pool in account.pools])
    for account in accounts:
        _check_budgets(f"accounts.{account.name}.budgets", account.budgets)


def _check_protection(policy: Policy) -> None:
    try:
        if policy.protection is not None:
            check_pod_protection("protection", policy.protection)
        for dependency in policy.dependencies:
            if dependency.protection is not None:
                check_call_protection(f"dependencies.{dependency.name}.protection", dependency.protection)
    except ProtectionError as error:
        raise PolicyError(str(error)) from None
