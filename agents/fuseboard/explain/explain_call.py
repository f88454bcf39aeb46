"""A call to a dependency: its override, its breaker and its limits."""

import hiredis
import msgspec
from msgspec.structs import replace

from fuseboard.contract import keys
from fuseboard.contract.breaker_state import parse_breaker, parse_override
from fuseboard.contract.policy import BreakerPolicy, Dependency, Override
from fuseboard.explain.dry_run import CONNECT_S, inspecting
from fuseboard.explain.explanation import (
    Explained,
    ExplainedBreaker,
    ExplainedOverride,
    Explanation,
    explanation,
    waiting,
)
from fuseboard.explain.found_configuration import FoundConfiguration
from fuseboard.store import Store
from fuseboard.store.store import ConnectionLostError
from fuseboard.subject import NO_SUBJECT, Costs


async def explain_call(
    found: FoundConfiguration, store: Store, dependency: str, tenant: str, costs: Costs
) -> Explanation:
    texts = await _texts(store, found.environment, dependency)
    now_us = found.clock.now_us()
    registered = found.snapshot.dependency(dependency)
    known = registered or Dependency(name=dependency)
    override = _override(known, texts.get("override") if texts else None, now_us)
    limits = known.vendor_limits
    facts = [
        f"dependency     {'registered' if registered else 'not registered: the default breaker applies'}",
        *waiting(known.wait_ms),
    ]
    if tenant:
        quotas = tuple(found.snapshot.quotas_of(tenant).of(tenant))
        # A call spends the quotas on its other costs too, as that of a guarded model client does.
        others = {measure for measure, _ in costs if measure != "calls"}
        limits += tuple(
            quota.limit
            for quota in quotas
            if quota.limit.dependency == dependency
            or (not quota.limit.dependency and quota.limit.measure in others)
        )
        facts.append(f"on behalf of   tenant {tenant!r}")
    account = found.snapshot.account_of(dependency)
    if account is not None:
        stop_s = await _stop_s(store, found.environment, account.name, now_us)
        stopped = f", stopped: its vendor does not serve it, try again in {stop_s:.0f} s" if stop_s else ""
        facts.append(f"account        {account.name}{stopped}")
    about = Explained(f"a call to {dependency!r}", tuple(facts), limits, NO_SUBJECT, costs, dependency)
    async with inspecting(_with_override(found, dependency, override), store) as inside:
        expected = await inside.call(dependency, costs, tenant)
        budgets = await inside.budgets(tenant=tenant, dependency=dependency)
        plain = explanation(found, inside, about, expected, budgets)
    return replace(
        plain,
        breaker=_breaker(known, texts, now_us) if texts is not None else None,
        override=_explained(override, now_us),
    )


def _with_override(
    found: FoundConfiguration, dependency: str, override: Override | None
) -> FoundConfiguration:
    """The configuration as pods have it once they know the newest override."""
    dependencies = tuple(
        replace(known, override=override) if known.name == dependency else known
        for known in found.policy.dependencies
    )
    return found.with_policy(replace(found.policy, dependencies=dependencies))


async def _texts(store: Store, environment: str, dependency: str) -> dict[str, bytes] | None:
    """The texts that Redis stores for the dependency; ``None`` when Redis cannot be asked."""
    named = {
        "override": keys.override,
        "breaker": keys.breaker,
        "cooldown": keys.cooldown,
        "outcomes": keys.outcomes,
    }
    found = {}
    try:
        await store.connect(CONNECT_S)
        for name, key in named.items():
            # MGET: a key of another type reads as missing.
            reply = await store.call("MGET", key(environment, dependency))
            if isinstance(reply, list) and isinstance(reply[0], bytes):
                found[name] = reply[0]
    except (OSError, TimeoutError, hiredis.ReplyError, ConnectionLostError):
        return None
    return found


async def _stop_s(store: Store, environment: str, account: str, now_us: int) -> float:
    """Seconds for which no pool of the account is called; 0 if it is served, or Redis does not answer."""
    try:
        reply = await store.call("HGET", keys.account_stop(environment, account), "until")
    except (OSError, TimeoutError, hiredis.ReplyError, ConnectionLostError):
        return 0.0
    return (
        max(0.0, (int(reply) - now_us) / 1_000_000) if isinstance(reply, bytes) and reply.isdigit() else 0.0
    )


def _override(dependency: Dependency, text: bytes | None, now_us: int) -> Override | None:
    """The newer one of Redis and the policy. Only the policy says who set it, and why."""
    stored = parse_override(text.decode(errors="replace")) if text else None
    override = dependency.override
    if stored is not None and (override is None or stored.revision > override.revision):
        override = Override(
            mode=stored.mode,
            revision=stored.revision,
            expires_at_us=stored.expires_at_us,
            reason="not in the policy yet",
            actor="unknown",
        )
    elif stored is not None and override is not None and stored.revision == override.revision:
        override = replace(override, mode=stored.mode, expires_at_us=stored.expires_at_us)
    return override if override is not None and override.expires_at_us > now_us else None


def _explained(override: Override | None, now_us: int) -> ExplainedOverride | None:
    if override is None:
        return None
    return ExplainedOverride(
        mode=override.mode,
        reason=override.reason,
        actor=override.actor,
        ends_in_s=(override.expires_at_us - now_us) / 1_000_000,
    )


def _breaker(dependency: Dependency, texts: dict[str, bytes], now_us: int) -> ExplainedBreaker:
    cooldown = texts.get("cooldown", b"")
    cooling_s = max(0.0, (int(cooldown) - now_us) / 1_000_000) if cooldown.isdigit() else 0.0
    policy = dependency.breaker
    seconds, (calls, failures, slow), consecutive = _outcomes(texts.get("outcomes"), policy, now_us)
    stored = parse_breaker(texts.get("breaker", b"").decode(errors="replace"))
    if stored is None:
        return ExplainedBreaker(state="closed", cause="never called", cooling_down_s=cooling_s)
    return ExplainedBreaker(
        state=stored.state,
        generation=stored.generation,
        cause=stored.cause,
        since_s=max(0.0, (now_us - stored.since_us) / 1_000_000),
        opens_for_s=max(0.0, (stored.until_us - now_us) / 1_000_000) if stored.state == "open" else 0.0,
        probes_under_way=sum(expires > now_us for expires in stored.permits.values()),
        window_s=seconds,
        calls=calls,
        failures=failures,
        slow=slow,
        consecutive_failures=consecutive,
        cooling_down_s=cooling_s,
    )


def _outcomes(
    packed: bytes | None, policy: BreakerPolicy, now_us: int
) -> tuple[int, tuple[int, int, int], int]:
    """The seconds that the breaker judges by; calls, failures and slow calls in them; failures in a row.

    See ``report.lua``.
    """
    window_s, sums = policy.window_s, [0, 0, 0]
    try:
        ring = msgspec.msgpack.decode(packed or b"", type=list[float])
    except msgspec.DecodeError:
        return window_s, (0, 0, 0), 0
    if len(ring) != 2 + 3 * window_s:
        return window_s, (0, 0, 0), 0
    newest, consecutive = int(ring[0]), int(ring[1])
    end = max(now_us // 1_000_000, newest)
    for second in range(newest, end - window_s, -1):
        for part in range(3):
            sums[part] += int(ring[second % window_s * 3 + 2 + part])
        if 0 < policy.window_calls <= sums[0]:
            window_s = end - second + 1
            break
    return window_s, (sums[0], sums[1], sums[2]), consecutive
