"""Redis stopped, frozen, or blocked."""

import time

import redis as client

from tests.faults.ends import Pod
from tests.faults.field import Broken, Field
from tests.faults.matrix import row
from tests.faults.seen import WORK, Callers, Ledger


@row("1", "redis-stopped", short=True)
def stopped(field: Field) -> str:
    field.load(WORK, 100)
    field.begin_anew()
    time.sleep(1)
    field.kill()
    took_s = field.all_in("local", within_s=5)
    time.sleep(1 if field.short else 2)
    seen = Callers(field)
    seen.none_over_50_ms()
    field.valkey.start()
    ramping_s = field.until(
        "every pod ramps", lambda: all("ramping" in _modes(pod) for pod in field.pods), within_s=20
    )
    shared_s = field.all_in("shared")
    return (
        f"{seen}; local after {took_s:.2f} s; back: ramping {ramping_s:.1f} s, shared {shared_s:.1f} s later"
    )


def _modes(pod: Pod) -> list[str]:
    return [mode for _, mode in pod.figures()["modes"]]


@row("2", "redis-frozen", short=True, quiet=True)
def frozen(field: Field) -> str:
    """The long freeze: callers must not notice."""
    lasts_s = 5 if field.short else 60
    ledger = Ledger(field)
    field.load(WORK, 140)
    field.begin_anew()
    time.sleep(2)
    normal = Callers(field).per_s
    field.begin_anew()
    field.freeze()
    time.sleep(lasts_s)
    seen = Callers(field)
    field.load([], 0)
    connections = [pod.to_redis.accepted for pod in field.pods]
    field.thaw()
    field.all_in("shared")
    seen.none_over_50_ms()
    if not field.short and seen.calls < 10_000:
        raise Broken(f"only {seen.calls} calls were made")
    allowed = 0.02 * seen.calls if not field.short else 3 * 130
    if seen.waited > allowed:
        raise Broken(f"{seen.waited} of {seen.calls} calls waited for Redis, at most {allowed:.0f} may")
    if seen.per_s < 0.95 * normal * (1 - seen.lag):
        raise Broken(
            f"{seen.per_s:.0f} calls/s while frozen, {normal:.0f} before, lag {100 * seen.lag:.0f} %"
        )
    lost = ledger.lost()
    # One question of each pod may have been in flight at the moment of the freeze.
    most = len(field.pods) * 5
    if not 0 <= lost <= most:
        raise Broken(f"{lost} calls were charged that nobody was granted, at most {most} may be: {ledger}")
    return (
        f"frozen {lasts_s} s: {seen} ({100 * seen.waited / seen.calls:.1f} %), 0 over 50 ms, "
        f"{seen.per_s:.0f} of {normal:.0f} calls/s, {lost} charged after recovery; connections {connections}"
    )


@row("3", "redis-bursts", quiet=True)
def bursts(field: Field) -> str:
    """Short freezes, as by a fork or a slow command: no pod may switch its mode."""
    ledger = Ledger(field)
    field.load(WORK, 60)
    field.begin_anew()
    until = time.monotonic() + (4 if field.short else 10)
    number = 0
    while time.monotonic() < until:
        field.freeze()
        time.sleep((0.003, 0.010, 0.015)[number % 3])
        field.thaw()
        time.sleep(0.05)
        number += 1
    seen = Callers(field)
    lost_now = [len(pod.figures()["modes"]) for pod in field.pods]
    field.load([], 0)
    field.all_in("shared")
    seen.none_over_50_ms()
    if max(lost_now) > 2:
        raise Broken(f"modes flapped: {lost_now} changes")
    lost = ledger.lost()
    if abs(lost) > 2 * number:
        raise Broken(f"{lost} calls charged twice or not at all")
    return f"{number} bursts of 3 to 15 ms: {seen}; mode changes {lost_now}; {lost} calls charged in vain"


@row("12", "script-flush", short=True, quiet=True)
def script_flush(field: Field) -> str:
    field.load(WORK, 60)
    field.begin_anew()
    with client.Redis.from_url(field.valkey.url) as limits:
        for _ in range(5):
            limits.script_flush()
            time.sleep(0.3)
    seen = Callers(field)
    seen.none_over_50_ms()
    if any(seen.changes):
        raise Broken(f"modes changed: {seen.changes}")
    return f"5 times: {seen}, 0 mode changes"


@row("17", "maxmemory")
def maxmemory(field: Field) -> str:
    """Full: writes are refused, which is not an answer; nothing is evicted."""
    field.load(WORK, 60)
    field.begin_anew()
    with client.Redis.from_url(field.valkey.url) as limits:
        before = field.redis_head()
        limits.config_set("maxmemory", "1mb")
        try:
            took_s = field.all_in("local", within_s=10)
            time.sleep(1)
            seen = Callers(field)
            after = field.redis_head()
        finally:
            limits.config_set("maxmemory", "0")
    back_s = field.all_in("shared")
    seen.none_over_50_ms()
    if before != after:
        raise Broken(f"the configuration was lost: {before}, now {after}")
    return f"{seen}; local after {took_s:.1f} s, shared {back_s:.1f} s after there was room again"


@row("13", "acl-forgotten")
def acl_forgotten(field: Field) -> str:
    """Redis returns without its users: WRONGPASS is an outage, not a crash."""
    with client.Redis.from_url(field.valkey.url) as limits:
        limits.acl_setuser(
            "pods", enabled=True, passwords=["+let-me-in"], keys=["*"], channels=["*"], commands=["+@all"]
        )
        url = f"redis://pods:let-me-in@127.0.0.1:{field.pods[0].to_redis.port}/0"
        pod = field.another_pod("acl-pod", environment={"FUSEBOARD_REDIS_URL": url})
        pod.load(WORK, 60)
        field.all_in("shared", pod)
        limits.acl_deluser("pods")
        field.pods[0].to_redis.reset_all()
        took_s = field.all_in("local", pod, within_s=10)
        cause = pod.state()["cause"]
        limits.acl_setuser(
            "pods", enabled=True, passwords=["+let-me-in"], keys=["*"], channels=["*"], commands=["+@all"]
        )
        back_s = field.all_in("shared", pod)
    figures = pod.figures()
    if figures["errors"] or "WRONGPASS" not in cause:
        raise Broken(f"errors {figures['errors']}, cause {cause!r}")
    return (
        f"local after {took_s:.1f} s because of {cause[:60]!r}; shared {back_s:.1f} s after the user was back"
    )
