"""Breakers between a fleet, its probes and its operators."""

import time

import redis as client

from fuseboard.contract import keys
from fuseboard.contract.breaker_state import parse_breaker
from tests.faults.field import Broken, Field
from tests.faults.matrix import row
from tests.faults.world import ENVIRONMENT, PROBES


def stored(limits: "client.Redis") -> tuple[str, int]:
    """State and generation of the fragile dependency's breaker, as Redis has them."""
    found = parse_breaker(limits.get(keys.breaker(ENVIRONMENT, "fragile")))
    return (str(found.state), found.generation) if found else ("none", 0)


def permits(limits: "client.Redis") -> int:
    found = parse_breaker(limits.get(keys.breaker(ENVIRONMENT, "fragile")))
    return len(found.permits) if found else 0


@row("23", "frozen-prober")
def frozen_prober(field: Field) -> str:
    """A pod stops while it holds probe permits: others probe instead, and its late results are ignored."""
    prober, *others = field.pods
    for pod in field.pods:
        pod.do("fail", dependencies=["fragile"])
    field.load(["d:fragile"], 40)
    with client.Redis.from_url(field.valkey.url, decode_responses=True) as limits:
        field.until("it is open", lambda: stored(limits)[0] == "open", 10)
        for pod in others:
            pod.load([], 0)
            pod.do("fail", dependencies=[])
        prober.load(["d:fragile"], 40, vendor_s=0.6)
        field.until("the prober has all probes", lambda: permits(limits) == PROBES, 15)
        prober.freeze()
        frozen = time.monotonic()
        for pod in others:
            pod.load(["d:fragile"], 40)
        field.until("others close it", lambda: stored(limits)[0] == "closed", 20)
        closed_s = time.monotonic() - frozen
        before = stored(limits)
        prober.send_command({"do": "load", "mix": [], "rate": 0})
        prober.go_on()
        time.sleep(1.5)
        after = stored(limits)
    prober.do("fail", dependencies=[])
    if after != before:
        raise Broken(f"what the frozen pod said late moved it from {before} to {after}")
    return f"closed {closed_s:.1f} s after it froze with {PROBES} probes; its late failures changed nothing"


@row("49", "trip-races-probe", short=True)
def trip_races_probe(field: Field) -> str:
    """An operator forces it open repeatedly while it opens, probes and closes: the operator wins."""
    failing = True
    field.load(["d:fragile"], 50)
    rounds = 2 if field.short else 8
    slowest_s = 0.0
    for number in range(rounds):
        for pod in field.pods:
            pod.do("fail", dependencies=["fragile"] if failing else [])
        failing = not failing
        time.sleep(0.4 + 0.5 * (number % 4))
        field.edit("override_breaker", dependency="fragile", mode="forced_open", lasts_s=60)
        slowest_s = max(slowest_s, field.until("every pod refuses", lambda: _all_refuse(field), 5))
        time.sleep(0.2)  # an admission in flight is recorded
        since = time.time_ns() // 1000
        time.sleep(0.5)
        passed = sum(
            at >= since and what == "d:fragile" for pod in field.pods for at, what, _ in pod.history()
        )
        if passed:
            raise Broken(f"{passed} calls passed a breaker that was held open")
        field.edit("end_override", dependency="fragile")
    return f"{rounds} holds, 0 calls passed one; every pod refused after {1000 * slowest_s:.0f} ms at most"


def _all_refuse(field: Field) -> bool:
    return all(pod.ask("d:fragile")["reason"] == "forced_open" for pod in field.pods)
