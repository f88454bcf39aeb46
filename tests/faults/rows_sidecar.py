"""A sidecar that is killed or frozen, that has no Redis or no gateway, or whose tokens are replaced."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis as client

from tests.faults.beside import (
    CLIENT_S,
    UNGUARDED,
    Beside,
    Call,
    beside,
    shared,
    times_of,
)
from tests.faults.field import Broken, Field
from tests.faults.matrix import row
from tests.faults.rows_breaker import permits, stored
from tests.faults.world import ENVIRONMENT, LIMIT, PROBES, WINDOW_S, WINDOW_US
from tools.demo.windows import surely_in_one_window

#: More than the strict limit allows, for each pod.
_GREED = 60.0
#: The slots of a limit, and the seconds after which Redis frees one that nobody gives back.
SLOTS, SLOT_S = 4, 5
#: Calls of the application without a sidecar.
_CALLS = 30


@contextmanager
def _slots(field: Field, *sidecars: Beside) -> Iterator[None]:
    """``open-road`` has a concurrency limit, which the sidecars know."""
    named = {"dependency": "open-road", "name": "slots", "expected_version": None}
    field.edit("set_vendor_limit", algorithm="concurrency", limit=SLOTS, window_s=SLOT_S, **named)
    try:
        shared(field, *sidecars)
        yield
    finally:
        field.edit("remove_vendor_limit", **named)


def _take_slots(one: Beside) -> list[Call]:
    """Calls under way in all slots. Raises ``Broken`` unless the next one is refused."""
    taken = [one.call("open-road") for _ in range(SLOTS)]
    _all("the calls in the slots", "allowed", taken)
    _all("the call without a slot", "concurrency", [one.call("open-road")])
    return taken


def _wait_for_slots(field: Field, one: Beside) -> list[Call]:
    """Each slot is taken as soon as it is free."""
    taken: list[Call] = []

    def has_all() -> bool:
        call = one.call("open-road")
        if call.how == "allowed":
            taken.append(call)
        return len(taken) == SLOTS

    field.until("the application has all slots", has_all, 4 * SLOT_S)
    return taken


def _all(what: str, expected: str, calls: Iterable[Call]) -> None:
    found = Counter(call.how for call in calls)
    if set(found) != {expected}:
        raise Broken(f"{what} should be {expected}: {dict(found)}")


def _go_on_without(one: Beside) -> str:
    """The application asks a sidecar that does not answer, and goes on. Raises ``Broken`` if it does not."""
    calls = [one.call("open-road", timeout_s=CLIENT_S) for _ in range(_CALLS)]
    _all("calls without an answer of the sidecar", UNGUARDED, calls)
    longest_ms = 1000 * max(call.waited_s for call in calls)
    return f"{len(calls)} calls went on without it, the longest after {longest_ms:.0f} ms"


def _take_probes(field: Field, one: Beside, limits: "client.Redis") -> list[Call]:
    """The breaker of ``fragile`` is half-open, and the application makes all its probes."""
    for pod in field.pods:
        pod.do("fail", dependencies=["fragile"])
    field.load(["d:fragile"], 40)
    field.until("it is open", lambda: stored(limits)[0] == "open", 10)
    field.load([], 0)
    for pod in field.pods:
        pod.do("fail", dependencies=[])
    probes: list[Call] = []

    def has_all() -> bool:
        call = one.call("fragile")
        if call.how == "allowed":
            probes.append(call)
        return len(probes) == PROBES

    field.until("the application has all probes", has_all, 20)
    if permits(limits) != PROBES:
        raise Broken(f"Redis has {permits(limits)} probes, the application {len(probes)}")
    return probes


def _close(field: Field, one: Beside, limits: "client.Redis") -> None:
    """Probes come back, and succeed."""

    def closed() -> bool:
        one.guarded("fragile")
        return stored(limits)[0] == "closed"

    field.until("the breaker to close", closed, 20)


@row("67", "sidecar-killed", short=True)
def killed(field: Field) -> str:
    """Calls go on without it; its permits are unknown to the next one, and their slots and probes free."""
    with (
        beside(field, "killed-sidecar") as (one,),
        _slots(field, one),
        client.Redis.from_url(field.valkey.url, decode_responses=True) as limits,
    ):
        probes = _take_probes(field, one, limits)
        slots = _take_slots(one)
        one.kill()
        began = time.monotonic()
        alone = _go_on_without(one)
        one.begin()
        answer = one.report(*slots, *probes)
        _close(field, one, limits)
        closed_s = time.monotonic() - began
        again = _wait_for_slots(field, one)
        free_s = time.monotonic() - began
        # All of them, and no more.
        _all("the call without a slot", "concurrency", [one.call("open-road")])
        one.report(*again)
    if (answer["accepted"], set(answer["unknown"])) != (0, {call.permit for call in [*slots, *probes]}):
        raise Broken(f"permits of before: {answer}")
    return (
        f"{alone}; started again: {len(answer['unknown'])} permits of before are unknown; after the kill,"
        f" the breaker closes in {closed_s:.1f} s, and all {SLOTS} slots are free in {free_s:.1f} s"
    )


@row("68", "sidecar-frozen")
def frozen(field: Field) -> str:
    """Calls go on after the timeout of the client; what waited in its sockets keeps no slot."""
    with beside(field, "frozen-sidecar") as (one,), _slots(field, one):
        slots = _take_slots(one)
        one.report(*slots)
        issued = one.figure("permits_issued_total")
        field.load(["d:strict"], _GREED)
        since = field.begin_anew()
        time.sleep(WINDOW_S)
        one.freeze()
        alone = _go_on_without(one)
        one.go_on()
        began = time.monotonic()
        # The next answer comes after those of all that waited before.
        first = one.guarded("strict")
        decided = [first, *(one.guarded("strict") for _ in range(2 * _CALLS))]
        late = one.figure("permits_issued_total") - issued - sum(call.how == "allowed" for call in decided)
        field.until("no permit is open", lambda: one.figure("permits") == 0, 10)
        free_s = time.monotonic() - began
        one.report(*_take_slots(one))
        worst = surely_in_one_window(times_of(field, "d:strict", since, decided), WINDOW_US)
    if UNGUARDED in {call.how for call in decided} or worst > LIMIT:
        raise Broken(f"afterwards: {Counter(call.how for call in decided)}; worst window {worst}/{LIMIT}")
    return (
        f"{alone}; thawed, it admits {late:.0f} of them too late, no permit is open after {free_s:.1f} s,"
        f" and all {SLOTS} slots are free; worst window {worst}/{LIMIT}"
    )


@row("69", "sidecars-without-redis")
def without_redis(field: Field) -> str:
    """Sidecars have the share of a pod each: with the pods, never more than the limit."""
    names = ("lonely-sidecar-1", "lonely-sidecar-2")
    with beside(field, *names) as both:
        everybody = len(field.pods) + len(both)
        # A process divides shares from its first request on.
        shared(field, *both)
        field.until("pods know of the sidecars", lambda: min(_fleet(field)) >= everybody, 60)
        field.load(["d:shares"], _GREED)
        since = field.begin_anew()
        calls = _greedy(both, WINDOW_S)
        field.kill()
        field.all_in("local", within_s=10)
        calls += _greedy(both, WINDOW_S)
        switched = time.time_ns() // 1000
        alone = _greedy(both, 3 * WINDOW_S)
        back = time.time_ns() // 1000
        calls += alone
        field.valkey.start()
        field.all_in("shared")
        again_s = shared(field, *both)
        late = _greedy(both, 2 * WINDOW_S)
        times = times_of(field, "d:shares", since, calls)
        at_switch = surely_in_one_window(times, WINDOW_US)
        inside = [one for one in times_of(field, "d:shares", switched, alone) if one[1] <= back]
        worst = surely_in_one_window(inside, WINDOW_US)
    modes = {call.decision.get("mode") for call in alone}
    spent = sum(call.how == "allowed" for call in alone)
    said = (
        f"{len(both)} sidecars and {len(field.pods)} pods: worst window around the switch {at_switch},"
        f" alone {worst}, limit {LIMIT}; the sidecars made {spent} of {len(alone)} calls alone, and shared"
        f" again {again_s:.1f} s after the pods"
    )
    if worst > LIMIT or at_switch > 2 * LIMIT or modes != {"local"} or not spent:
        raise Broken(f"{said}; modes {modes}")
    _none_unguarded([*calls, *late])
    return said


def _fleet(field: Field) -> list[int]:
    return [pod.state()["live_servers"] for pod in field.pods]


def _greedy(sidecars: list[Beside], for_s: float) -> list[Call]:
    """Applications that call as often as they can, one after the other."""
    calls, until = [], time.monotonic() + for_s
    while time.monotonic() < until:
        calls += [one.guarded("shares") for one in sidecars]
    return calls


def _none_unguarded(calls: Iterable[Call]) -> None:
    lost = sum(call.how == UNGUARDED for call in calls)
    if lost:
        raise Broken(f"{lost} calls had no decision")


@row("70", "sidecar-without-gateway")
def without_gateway(field: Field) -> str:
    """It keeps deciding, and starts again from its disk: with Redis, and with nothing at all."""
    with beside(field, "cut-off-sidecar") as (one,), ExitStack() as stack:
        shared(field, one)
        revision = one.guarded("strict").decision["revision"]
        stack.callback(one.to_gateway.heal)
        one.to_gateway.refuse = True
        one.to_gateway.reset_all()
        calls = [one.guarded("open-road") for _ in range(_CALLS)]
        found = []
        for word, redis_too in (("with Redis", False), ("without Redis", True)):
            one.kill()
            if redis_too:
                stack.callback(one.to_redis.heal)
                one.to_redis.refuse = True
                one.to_redis.reset_all()
            one.begin()
            first = one.guarded("shares")
            if not redis_too:
                shared_s = shared(field, one)
            again = [first, *(one.guarded("shares") for _ in range(LIMIT))]
            revisions = {call.decision.get("revision") for call in again}
            allowed = sum(call.how == "allowed" for call in again)
            times = [(call.asked_us, call.answered_us) for call in again if call.how == "allowed"]
            worst = surely_in_one_window(times, WINDOW_US)
            found.append(f"{word} {allowed} of {len(again)} calls allowed, worst window {worst}/{LIMIT}")
            if revisions != {revision} or worst > LIMIT or not allowed:
                raise Broken(f"revisions {revisions}, before {revision}; {found}")
            _none_unguarded(again)
        stack.close()
        back_s = shared(field, one)
    _all("calls without a gateway", "allowed", calls)
    return (
        f"{len(calls)} calls without it, all decided; started from disk with revision {revision}:"
        f" {', '.join(found)}; Redis decided again {shared_s:.1f} s after the first start,"
        f" {back_s:.1f} s after everything was back"
    )


@row("71", "sidecar-tokens-rotated")
def tokens_rotated(field: Field) -> str:
    """The token of the application and that of the agent are replaced: the old ones are refused, the new ones
    taken, and no permit is lost.
    """
    with beside(field, "rotated-sidecar") as (one,):
        first, second = (field.director.ask({"do": "environment", "name": ENVIRONMENT}) for _ in range(2))
        shared(field, one)
        open_calls = [one.call("open-road") for _ in range(_CALLS)]
        _replace(one.token_file, "second")
        refused = [one.post("/v1/calls", {"dependency": "open-road"})[0] for _ in range(_CALLS)]
        alone = [one.guarded("open-road") for _ in range(_CALLS)]
        one.token = "second"
        answer = one.report(*open_calls)
        taken = [one.guarded("open-road") for _ in range(_CALLS)]

        _replace(one.agent_token_file, first)
        # The sidecar falls silent only if it uses this token: the one before is valid.
        field.director.ask({"do": "revoke-token", "token": first})
        silent_s = field.until("the gateway to hear no more of it", lambda: one.name not in field.heard(), 60)
        without = [one.guarded("open-road") for _ in range(_CALLS)]
        _replace(one.agent_token_file, second)
        again_s = field.until("the gateway to hear it again", lambda: one.name in field.heard(), 60)
    if set(refused) != {401}:
        raise Broken(f"the old token was answered by {Counter(refused)}")
    _all("calls with the old token", UNGUARDED, alone)
    _all("calls with the new token", "allowed", taken)
    _all("calls while the agent has a revoked token", "allowed", without)
    if (answer["accepted"], answer["unknown"]) != (len(open_calls), []):
        raise Broken(f"reports of calls from before: {answer}")
    return (
        f"{len(refused)} of {_CALLS} requests with the old token get 401, and their calls go on; the new one"
        f" is taken at once, with {answer['accepted']} reports of calls from before; the agent:"
        f" silent {silent_s:.1f} s after its token was revoked while {len(without)} of {_CALLS} calls are"
        f" decided, heard {again_s:.1f} s after the new one"
    )


def _replace(file: Path, text: str) -> None:
    """As Kubernetes does: with another file, in one step."""
    other = file.with_name(f".{file.name}")
    other.write_text(text)
    other.replace(file)
