"""A call to a dependency: its override, its breaker and its limits."""

import msgspec

from fuseboard.admission.decisions import DecisionBuilder, Refusal
from fuseboard.batching.question import COOLING_DOWN, FORCED_OPEN, OPEN, SLOW_START, Answer
from fuseboard.breaker.fleet_breaker import Gate
from fuseboard.cli.explain.dry_run import Peeker
from fuseboard.cli.explain.explanation import ExplainedBreaker, ExplainedOverride, Explanation
from fuseboard.cli.explain.verdict import UNUSED, decide, explanation
from fuseboard.cli.found_configuration import Known
from fuseboard.contract import keys
from fuseboard.contract.breaker_state import parse_breaker, parse_override
from fuseboard.contract.policy import Dependency, Limit
from fuseboard.contract.words import Mode, OverrideMode, Reason
from fuseboard.decision import Decision
from fuseboard.store import Store
from fuseboard.subject import NOBODY, Costs

_REASONS = {
    OPEN: Reason.BREAKER_OPEN,
    SLOW_START: Reason.BREAKER_OPEN,
    FORCED_OPEN: Reason.FORCED_OPEN,
    COOLING_DOWN: Reason.COOLING_DOWN,
}


async def explain_call(
    known: Known,
    peeker: Peeker,
    store: Store,
    answers: DecisionBuilder,
    dependency: str,
    tenant: str,
    costs: Costs,
) -> Explanation:
    registered = known.snapshot.dependency(dependency)
    found = registered or Dependency(name=dependency)
    rules = known.snapshot.quotas_of(tenant) if tenant else None
    gate = peeker.gate(found)
    demand = gate.demand(costs, tenant, rules)
    usable = peeker.health.mode is not Mode.LOCAL
    texts = await _texts(store, known.environment, dependency) if usable else {}
    now_us = known.clock.now_us()
    override = _override(found, texts.get("override"), now_us)
    unused = keys.vendor_limit(known.environment, dependency, UNUSED)
    answer = await peeker.peek(gate, demand, unused) if usable else None
    decision = _decide(known, answers, gate, tenant, costs, answer, override)
    limits: tuple[Limit, ...] = found.vendor_limits
    if rules is not None:
        limits += tuple(quota.limit for quota in rules.of(tenant) if quota.limit.dependency == dependency)
    facts = [
        f"dependency     {'registered' if registered else 'not registered: the default breaker guards it'}"
    ]
    if tenant:
        facts.append(f"on behalf of   tenant {tenant!r}")
    plain = explanation(
        known,
        peeker,
        f"a call to {dependency!r}",
        tuple(facts),
        limits,
        demand,
        decision,
        NOBODY,
        costs,
        dependency=dependency,
    )
    breaker = _breaker(found, texts, now_us) if usable else None
    return msgspec.structs.replace(plain, breaker=breaker, override=override)


def _decide(
    known: Known,
    answers: DecisionBuilder,
    gate: Gate,
    tenant: str,
    costs: Costs,
    answer: Answer | None,
    override: ExplainedOverride | None,
) -> Decision:
    demand = gate.demand(costs, tenant, known.snapshot.quotas_of(tenant) if tenant else None)
    if override is not None and override.mode == OverrideMode.FORCED_OPEN:
        refusal = Refusal(Reason.FORCED_OPEN, gate.name, override.ends_in_s)
        return answers.refuse(known.snapshot, refusal, dependency=gate.name)
    if answer is not None and answer.blocked < 0:
        reason = _REASONS.get(answer.verdict, Reason.PROBE_BUSY)
        refusal = Refusal(reason, gate.name, answer.wait_us / 1_000_000)
        return answers.refuse(known.snapshot, refusal, dependency=gate.name)
    return decide(known, answers, demand, answer, usual=Reason.VENDOR_LIMIT, dependency=gate.name)


async def _texts(store: Store, environment: str, dependency: str) -> dict[str, bytes]:
    named = {
        "override": keys.override,
        "breaker": keys.breaker,
        "cooldown": keys.cooldown,
        "outcomes": keys.outcomes,
    }
    found = {}
    for name, key in named.items():
        # MGET: a key of another type reads as missing.
        reply = await store.call("MGET", key(environment, dependency))
        if isinstance(reply, list) and isinstance(reply[0], bytes):
            found[name] = reply[0]
    return found


def _override(dependency: Dependency, text: bytes | None, now_us: int) -> ExplainedOverride | None:
    """The newer of the two: the key in Redis, and the policy, which alone knows who and why."""
    stored = parse_override(text.decode(errors="replace")) if text else None
    held = dependency.override
    if stored is not None and (held is None or stored.revision >= held.revision):
        if stored.expires_at_us <= now_us:
            return None
        ours = held is not None and held.revision == stored.revision
        return ExplainedOverride(
            mode=stored.mode,
            reason=held.reason if ours and held else "the policy does not say yet",
            actor=held.actor if ours and held else "unknown",
            ends_in_s=(stored.expires_at_us - now_us) / 1_000_000,
        )
    if held is None or held.expires_at_us <= now_us:
        return None
    return ExplainedOverride(
        mode=held.mode,
        reason=held.reason,
        actor=held.actor,
        ends_in_s=(held.expires_at_us - now_us) / 1_000_000,
    )


def _breaker(dependency: Dependency, texts: dict[str, bytes], now_us: int) -> ExplainedBreaker:
    cooldown = texts.get("cooldown", b"")
    cooling_s = max(0.0, (int(cooldown) - now_us) / 1_000_000) if cooldown.isdigit() else 0.0
    window_s = dependency.breaker.window_s
    calls, failures, slow, consecutive = _outcomes(texts.get("outcomes"), window_s, now_us)
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
        window_s=window_s,
        calls=calls,
        failures=failures,
        slow=slow,
        consecutive_failures=consecutive,
        cooling_down_s=cooling_s,
    )


def _outcomes(packed: bytes | None, window_s: int, now_us: int) -> tuple[int, int, int, int]:
    """Calls, failures and slow calls within the window, and failures in a row; see ``report.lua``."""
    try:
        ring = msgspec.msgpack.decode(packed or b"", type=list[float])
    except msgspec.DecodeError:
        return 0, 0, 0, 0
    if len(ring) != 2 + 3 * window_s:
        return 0, 0, 0, 0
    newest, consecutive = int(ring[0]), int(ring[1])
    sums = [0, 0, 0]
    for second in range(max(now_us // 1_000_000, newest) - window_s + 1, newest + 1):
        for part in range(3):
            sums[part] += int(ring[second % window_s * 3 + 2 + part])
    return sums[0], sums[1], sums[2], consecutive
