"""Network faults between a pod and Redis."""

import time

from tests.faults.ends import Pod
from tests.faults.field import Broken, Field
from tests.faults.matrix import row
from tests.faults.seen import WORK, Callers, Ledger
from tests.faults.world import LIMIT


@row("4", "latency", quiet=True)
def latency(field: Field) -> str:
    """Pods at different distances: the near one keeps sharing, the others switch to local in time."""
    distances = {field.pods[0]: 0.003, field.pods[1]: 0.03, field.pods[2]: 0.5}
    ledger = Ledger(field)
    field.load(WORK, 100)
    field.begin_anew()
    began = time.monotonic()
    for pod, each_way_s in distances.items():
        pod.to_redis.latency_s, pod.to_redis.jitter_s = each_way_s, each_way_s / 3
    far = field.pods[1:]
    field.until("far pods decide alone", lambda: all("local" in _modes(pod) for pod in far), within_s=15)
    time.sleep(3)
    seen = Callers(field)
    near = _modes(field.pods[0])
    now = time.monotonic()
    lag = field.network.lag.between(began, now) / (now - began)
    field.load([], 0)
    time.sleep(1.5)  # what is still in flight arrives
    field.network.heal()
    field.all_in("shared")
    seen.none_over_50_ms()
    # If the proxy had no CPU time for so long, the network was not near.
    if near and lag < 0.05:
        raise Broken(
            f"the near pod changed its mode: {near}; the network lagged {100 * lag:.0f} % of the time"
        )
    lost = ledger.lost()
    if abs(lost) > 3:
        raise Broken(f"{lost} calls more charged than granted, although every late answer arrived")
    return f"6 ms shared, 60 and 1000 ms local: {seen}; {lost} of it charged in vain"


def _modes(pod: Pod) -> list[str]:
    return [mode for _, mode in pod.figures()["modes"]]


@row("5", "drip")
def drip(field: Field) -> str:
    """One byte per 3 ms: every read succeeds, and the answer never completes."""
    field.load(WORK, 100)
    field.begin_anew()
    for pod in field.pods:
        pod.to_redis.slice_bytes, pod.to_redis.gap_s = 1, 0.003
    took_s = field.all_in("local", within_s=10)
    time.sleep(1)
    seen = Callers(field)
    seen.none_over_50_ms()
    return f"{seen}; local after {took_s:.1f} s"


@row("6", "replies-lost")
def replies_lost(field: Field) -> str:
    """Scripts run and their answers are lost: charged once per question, never twice."""
    return _one_way(field, "hold_down")


@row("7", "requests-lost")
def requests_lost(field: Field) -> str:
    """Questions arrive after their deadline: they charge nothing."""
    return _one_way(field, "hold_up")


def _one_way(field: Field, which: str) -> str:
    ledger = Ledger(field)
    field.load(WORK, 100)
    field.begin_anew()
    timeouts = sum(pod.state()["timeouts"] for pod in field.pods)
    for pod in field.pods:
        setattr(pod.to_redis, which, True)
    took_s = field.all_in("local", within_s=10)
    time.sleep(1)
    seen = Callers(field)
    field.load([], 0)
    asked = sum(pod.state()["timeouts"] for pod in field.pods) - timeouts
    field.network.heal()
    field.all_in("shared")
    seen.none_over_50_ms()
    lost = ledger.lost()
    most = asked if which == "hold_down" else 0
    if not 0 <= lost <= most:
        raise Broken(f"{lost} calls charged that nobody was granted, at most {most} may be")
    return f"{seen}; local after {took_s:.1f} s; {lost} calls charged for {asked} questions without an answer"


@row("8", "reset-storm")
def reset_storm(field: Field) -> str:
    """RST every 50 ms: no reconnect storm, and no answer reaches the wrong caller."""
    ledger = Ledger(field)
    field.load(WORK, 60)
    field.begin_anew()
    before = sum(pod.to_redis.accepted for pod in field.pods)
    lasts_s = 6.0
    until = time.monotonic() + lasts_s
    while time.monotonic() < until:
        for pod in field.pods:
            pod.to_redis.reset_all()
        time.sleep(0.05)
    connections = (sum(pod.to_redis.accepted for pod in field.pods) - before) / len(field.pods) / lasts_s
    seen = Callers(field)
    field.load([], 0)
    field.all_in("shared")
    seen.none_over_50_ms()
    if connections > 25:
        raise Broken(f"{connections:.0f} connections per second and pod")
    lost = ledger.lost()
    if not 0 <= lost <= lasts_s * 20 * len(field.pods):
        raise Broken(f"{lost} calls charged that nobody was granted")
    return f"{lasts_s:g} s: {seen}; {connections:.1f} connections/s per pod, {lost} calls charged in vain"


@row("9", "partition")
def partition(field: Field) -> str:
    """One of three pods is cut off: the others do not notice, and together they keep the limit."""
    alone, *others = field.pods
    # A pod with fewer than ten questions per second notices nothing, and a busy machine slows them down.
    field.load(["d:reserved", "d:strict", "t:acme", "t:acme", "t:acme"], 150)
    time.sleep(2)
    since = field.begin_anew()
    alone.to_redis.cut()
    field.all_in("local", alone, within_s=40)
    time.sleep(6)
    seen = Callers(field)
    moved = {pod.name: _modes(pod) for pod in others if _modes(pod)}
    field.network.heal()
    field.all_in("shared")
    time.sleep(2)
    seen.none_over_50_ms()
    if moved:
        raise Broken(f"pods that reach Redis changed their mode: {moved}")
    return f"{seen}; {bounded(field, since)}"


@row("10", "flapping")
def flapping(field: Field) -> str:
    """Cut off for a second, back for a second: in no window more than the limit."""
    field.load(["d:reserved", "d:strict", "t:acme", "t:acme", "t:acme"], 170)
    time.sleep(1)
    since = field.begin_anew()
    rounds = 3 if field.short else 8
    for _ in range(rounds):
        for pod in field.pods:
            pod.to_redis.cut()
        time.sleep(1)
        field.network.heal()
        time.sleep(1)
    seen = Callers(field)
    field.all_in("shared")
    time.sleep(2)
    seen.none_over_50_ms()
    changes = max(seen.changes)
    if changes > 3 * rounds:
        raise Broken(f"{changes} changes of mode in {rounds} rounds")
    return f"{rounds} rounds: {seen}; {changes} changes of mode; {bounded(field, since)}"


def bounded(field: Field, since_us: int) -> str:
    """The worst windows of the two limits that must never be exceeded. Raises ``Broken``."""
    worst = {name: field.worst(f"d:{name}", since_us) for name in ("strict", "reserved")}
    over = {name: calls for name, calls in worst.items() if calls > LIMIT}
    if over:
        raise Broken(f"more than {LIMIT} in one window: {over}")
    if not all(worst.values()):
        raise Broken(f"nothing was admitted at all: {worst}")
    return "worst window " + ", ".join(f"{name} {calls}/{LIMIT}" for name, calls in worst.items())


@row("47", "name-server")
def name_server(field: Field) -> str:
    """Names that take forever to resolve, or are unknown: no decision waits for them."""
    found = []
    for what in ("dns-hangs", "dns-unknown"):
        pod = field.pods[0]
        pod.load(WORK, 60)
        field.all_in("shared", pod)
        pod.figures(begin_anew=True)
        pod.do("inject", fault=what, seconds=3.0)
        pod.to_redis.reset_all()
        time.sleep(2)
        figures = pod.figures()
        pod.do("inject", fault=what, on=False)
        field.all_in("shared", pod)
        if figures["errors"] or figures["over_50_ms"]:
            raise Broken(f"{what}: errors {figures['errors']}, {figures['over_50_ms']} calls over 50 ms")
        found.append(f"{what}: {figures['calls']} calls, slowest {1000 * figures['slowest_s']:.0f} ms net")
    return "; ".join(found)
