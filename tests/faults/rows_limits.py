"""What each failure policy promises, through every way of losing Redis and getting it back."""

import time

import redis as client

from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm
from tests.agents.scripts import Store
from tests.agents.windows import worst_window
from tests.faults.ends import Pod
from tests.faults.field import Broken, Field
from tests.faults.matrix import row
from tests.faults.rows_network import bounded
from tests.faults.seen import Callers
from tests.faults.world import LIMIT, WINDOW_S, WINDOW_US

#: Three times what the limits allow.
_GREED = 60.0


@row("2b", "reserved-through-it-all", short=True)
def reserved(field: Field) -> str:
    """Killed, empty, ramping, frozen, ramping again: never more than the limit in any window."""
    field.load(["d:reserved", "d:strict"], _GREED)
    since = field.begin_anew()
    time.sleep(WINDOW_S if field.short else 3)
    field.kill()
    field.all_in("local", within_s=5)
    time.sleep(WINDOW_S if field.short else 6)
    alone = sum(what == "d:reserved" and how == "l" for pod in field.pods for _, what, how in pod.history())
    field.valkey.start()
    field.all_in("shared")
    if not field.short:
        time.sleep(3)
        field.freeze()
        time.sleep(8)
        field.thaw()
        field.all_in("shared")
    time.sleep(3)
    seen = Callers(field)
    if not alone:
        raise Broken("nothing of the reserved limit was spent while Redis was gone")
    return f"{seen}; {alone} spent alone; {bounded(field, since)}"


@row("1b", "local-share")
def local_share(field: Field) -> str:
    """At most twice the limit in the window of the switch, and the limit in every later one."""
    field.load(["d:shares"], _GREED)
    since = field.begin_anew()
    time.sleep(3)
    field.kill()
    field.all_in("local", within_s=5)
    switched = time.time_ns() // 1000
    time.sleep(3 * WINDOW_S)
    back = time.time_ns() // 1000
    at_switch = field.worst("d:shares", since, until_us=back)
    after = field.worst("d:shares", switched, until_us=back)
    field.valkey.start()
    field.all_in("shared")
    shared = time.time_ns() // 1000
    time.sleep(2 * WINDOW_S)
    at_return = field.worst("d:shares", switched)
    # A call that Redis answers too late is decided alone, which is a switch of its own.
    again = field.worst("d:shares", shared + WINDOW_US, sources="s")
    late = field.worst("d:shares", shared + WINDOW_US, sources="l")
    said = (
        f"worst window around the switch {at_switch}, alone {after}, around the return {at_return}, "
        f"shared again {again} and {late} decided alone; limit {LIMIT}"
    )
    if max(at_switch, at_return) > 2 * LIMIT or max(after, again) > LIMIT:
        raise Broken(said)
    return said


#: Steps of the clock in microseconds, and the most that a window may see for it. A step forward cannot be
#: distinguished from elapsed time: a second limit fits into the window around it.
_STEPS = {"-60 s": ((-60_000_000,), LIMIT), "+1 h and back": ((3_600_000_000, -3_600_000_000), 2 * LIMIT)}


@row("21", "store-clock", short=True)
def store_clock(field: Field) -> str:
    """The shipped script, with Redis's clock a minute back, and an hour forward and back."""
    window = Limit(
        name="contract", limit=LIMIT, window_ms=WINDOW_S * 1000, algorithm=Algorithm.SLIDING_WINDOW
    )
    found = []
    with client.Redis.from_url(field.spare_valkey().url) as limits:
        for name, (steps, most) in _STEPS.items():
            limits.flushall()
            store = Store(limits, limits=[window])
            real_us, times = store.now_us, []
            for tick in range(400):
                if tick in (100, 200) and tick // 100 <= len(steps):
                    store.now_us += steps[tick // 100 - 1]
                times += [real_us] * store.admit((3, 1)).granted
                store.now_us += 50_000
                real_us += 50_000
            worst = worst_window(times, WINDOW_US)
            late = sum(at > real_us - 5 * WINDOW_US for at in times)
            found.append(
                f"{name}: worst window {worst}, at most {most}, {late} granted in the last five windows"
            )
            if worst > most or not late:
                raise Broken(found[-1])
    return "; ".join(found)


@row("22", "pod-clock")
def pod_clock(field: Field) -> str:
    """A pod whose clock is wrong by an hour, then steps: limits and overrides are not affected."""
    pod = field.another_pod("wrong-clock", own_clock=True)
    field.all_in("shared", pod)
    field.edit("override_breaker", dependency="held", mode="forced_open", lasts_s=60)
    field.load(["d:strict", "d:held", "t:acme"], 60)
    field.until("it refuses what is held", lambda: pod.ask("d:held")["reason"] == "forced_open", 5)
    since = time.time_ns() // 1000
    pod.figures(begin_anew=True)
    for seconds in (3600, -7200, 3600):
        pod.do("jump", clock="wall", seconds=seconds)
        time.sleep(1.5)
        if pod.ask("d:held")["reason"] != "forced_open":
            raise Broken(f"a step of {seconds} s ended a hold")
    # The same without Redis: an override runs on the pod's own time, which does not step.
    pod.to_redis.refuse = True
    pod.to_redis.reset_all()
    field.all_in("local", pod)
    pod.do("jump", clock="wall", seconds=3600)
    held = pod.ask("d:held")["reason"]
    figures = pod.figures()
    pod.to_redis.heal()
    worst = field.worst("d:strict", since, sources="s")
    field.edit("end_override", dependency="held")
    if held != "forced_open":
        raise Broken(f"without Redis, a step of an hour ended a hold: {held!r}")
    if worst > LIMIT or figures["errors"]:
        raise Broken(f"worst window {worst}/{LIMIT}, errors {figures['errors']}")
    return f"+1 h, -2 h, +1 h: worst window {worst}/{LIMIT}, the hold stayed, also without Redis"


@row("24", "doubling")
def doubling(field: Field) -> str:
    """Redis is down, and a deploy doubles the pods, then half of them are killed: still the limit."""
    field.load(["d:reserved", "d:strict"], _GREED)
    since = field.begin_anew()
    time.sleep(3)
    field.kill()
    field.all_in("local", within_s=5)
    more: list[Pod] = [field.another_pod(f"more-{number}") for number in (1, 2, 3)]
    field.load(["d:reserved", "d:strict"], _GREED)
    time.sleep(6)
    known = [pod.state()["live_servers"] for pod in field.pods]
    spent_by_new = sum(what == "d:reserved" for pod in more for _, what, _ in pod.history())
    more[0].kill()
    more[1].kill()
    time.sleep(3)
    field.valkey.start()
    field.all_in("shared")
    time.sleep(3)
    seen = Callers(field)
    return f"{seen}; old pods know of {known} servers, new ones spent {spent_by_new}; {bounded(field, since)}"
