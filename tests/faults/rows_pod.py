"""Faults of a pod itself: too many calls, a blocked loop, no descriptors left."""

import time

import redis as client

from tests.faults.field import Broken, Field
from tests.faults.matrix import row
from tests.faults.seen import WORK, Callers
from tests.faults.world import EVERYTHING


@row("19", "hot-key")
def hot_key(field: Field) -> str:
    """A tenant far over its quota is refused from memory, without a question to Redis each time."""
    field.load(["t:penny"], 200)
    time.sleep(1)
    field.begin_anew()
    with client.Redis.from_url(field.valkey.url) as limits:
        limits.config_resetstat()
        time.sleep(4)
        seen = Callers(field)
        statistics = limits.info("commandstats")
    asked = sum(
        int(statistics[f"cmdstat_{name}"]["calls"])
        for name in ("evalsha", "eval")
        if f"cmdstat_{name}" in statistics
    )
    if asked > seen.calls / 3:
        raise Broken(f"{asked} questions for {seen.calls} calls")
    return f"{seen.calls} calls of a tenant 75 times over its quota cost {asked} questions to Redis"


@row("25", "loop-hog", short=True, quiet=True)
def loop_hog(field: Field) -> str:
    """A pod that is too busy to read its answers must not blame Redis."""
    pod = field.pods[0]
    pod.load(EVERYTHING, 100)
    pod.figures(begin_anew=True)
    before = pod.state()
    lasts_s = 1.0 if field.short else 8.0
    for chunk_s in (0.02, 0.2):
        pod.do("hog", for_s=lasts_s, chunk_s=chunk_s)
    figures, after = pod.figures(), pod.state()
    if figures["modes"] or figures["errors"]:
        raise Broken(f"false switches {figures['modes']}, errors {figures['errors']}, cause {after['cause']}")
    late = after["timeouts"] - before["timeouts"]
    return (
        f"2 x {lasts_s:g} s hogged in chunks of 20 and 200 ms: {figures['calls']} calls, "
        f"{late} late answers, 0 false switches"
    )


@row("26", "no-descriptors")
def no_descriptors(field: Field) -> str:
    """No descriptor left: the pod decides alone, and callers see no exception."""
    pod = field.pods[0]
    pod.load(WORK, 60)
    pod.figures(begin_anew=True)
    pod.do("inject", fault="no-descriptors", on=True)
    try:
        pod.to_redis.reset_all()
        pod.to_gateway.reset_all()
        took_s = field.all_in("local", pod, within_s=10)
        time.sleep(2)
        figures = pod.figures()
    finally:
        pod.do("inject", fault="no-descriptors", on=False)
    back_s = field.all_in("shared", pod)
    if figures["errors"] or figures["over_50_ms"]:
        raise Broken(f"errors {figures['errors']}, {figures['over_50_ms']} calls over 50 ms")
    return (
        f"{figures['calls']} calls, no exception; local after {took_s:.1f} s, "
        f"shared {back_s:.1f} s after there were some again"
    )


@row("2c", "outage-memory")
def outage_memory(field: Field) -> str:
    """A long outage, compressed: ten times the calls, and no more memory at the end than early on."""
    pod = field.pods[0]
    pod.load(WORK, 600)
    time.sleep(1)
    pod.to_redis.cut()
    field.all_in("local", pod, within_s=10)
    time.sleep(3)
    samples = [pod.state()["rss_kib"]]
    began, calls = time.monotonic(), pod.figures()["calls"]
    while time.monotonic() - began < 20:
        time.sleep(2)
        samples.append(pod.state()["rss_kib"])
    calls = pod.figures()["calls"] - calls
    grown = samples[-1] - samples[len(samples) // 2]
    if grown > 1024:
        raise Broken(f"{grown} KiB more in the second half of the outage: {samples}")
    return f"{calls} calls in 20 s: RSS {samples[0]} KiB, in the second half {grown:+d} KiB"
