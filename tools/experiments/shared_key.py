"""T27: other programs use the same key of a vendor. What it has left is charged in our own counter."""

import tempfile
from bisect import bisect
from collections.abc import Callable
from pathlib import Path

import redis

from controlplane.embedded.valkey import Valkey
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm
from tests.agents.scripts import Store
from tools.experiments.chart import Chart
from tools.experiments.result import Result, share
from tools.experiments.vendor_fleet import (
    ANSWER_S,
    OFFERED_PER_S,
    PER_MINUTE,
    PODS,
    Bucket,
    FixedMinute,
    Fleet,
    Found,
    Vendor,
    play,
)

SECONDS, MORE_FROM_S, LOOK_S = 420.0, 210.0, 20
LIMIT = Limit(name="per-minute", limit=PER_MINUTE, window_ms=60_000, algorithm=Algorithm.SLIDING_WINDOW)


def others_per_s(at: float) -> float:
    """20 % of the limit, then 40 %."""
    return (0.2 if at < MORE_FROM_S else 0.4) * PER_MINUTE / 60


def bucket(*, stuck: bool = False) -> Bucket:
    return Bucket(lambda _: PER_MINUTE, stuck=stuck)


FLEETS: dict[str, Callable[[Store], Fleet]] = {
    "clients' own retries, no limit": lambda _: Fleet(None, LIMIT, retries=2),
    "a limit of the right number": lambda store: Fleet(store, LIMIT, hears=False),
    "and what the vendor has left": lambda store: Fleet(store, LIMIT),
}
VENDORS: dict[str, Callable[[], Vendor]] = {"bucket": bucket, "fixed minute": FixedMinute}


def shared_key() -> Result:
    """T27."""
    with tempfile.TemporaryDirectory() as folder:
        server = Valkey(Path(folder))
        server.start()
        try:
            client = redis.Redis.from_url(server.url)
            found = {
                (vendor, name): _play(make(), fleet(_store(client)))
                for vendor, make in VENDORS.items()
                for name, fleet in FLEETS.items()
            }
            stuck = _play(bucket(stuck=True), Fleet(_store(client), LIMIT))
            client.close()
        finally:
            server.stop()
    rows = [("vendor", "", "429s", "429s of the others", "used of what the others leave")]
    for (vendor, name), one in found.items():
        rows.append((vendor, name, *_figures(one)))
    rows.append(("bucket that always reports 0", "and what the vendor has left", *_figures(stuck)))
    result = Result(
        key="T27",
        title="Others on the vendor's key",
        traffic=f"{PODS} pods make {OFFERED_PER_S:.0f} calls per s to a vendor that allows {PER_MINUTE} a"
        f" minute. Others use 20 % of the same key, and 40 % after {MORE_FROM_S:.0f} s. Answers take"
        f" {ANSWER_S:.0f} s on average. The counters are the real scripts. A bucket is full at first, so that"
        " more than 100 % can be used. In a fixed minute, who comes late finds it spent, whoever counts.",
        expected="Where the answers say what is left, a bucket refuses at most 1 % of the calls, and at least"
        " 95 % of what the others leave is used. A vendor whose figure is wrong stops no fleet.",
        charts=(
            Chart(
                "Calls that the vendor refuses (bucket)",
                "seconds",
                "% of 20 s",
                {name: _line(found["bucket", name]) for name in FLEETS},
            ),
        ),
        table=tuple(rows),
    )
    usual, heard = (found["bucket", name] for name in list(FLEETS)[1:])
    result.check(
        f"Of the calls, {share(heard.refused, heard.requests)} are refused, instead of"
        f" {share(usual.refused, usual.requests)}",
        heard.refused <= 0.01 * heard.requests < usual.refused,
    )
    result.check(f"{100 * _goodput(heard):.0f} % of what the others leave is used", _goodput(heard) >= 0.95)
    return result


def _store(client: redis.Redis) -> Store:
    client.flushall()
    return Store(client, [LIMIT])


def _play(vendor: Vendor, fleet: Fleet) -> Found:
    return play(vendor, fleet, seconds=SECONDS, others_per_s=others_per_s)


def _goodput(one: Found) -> float:
    """The part of what others leave."""
    left = sum(PER_MINUTE / 60 - others_per_s(second) for second in range(int(SECONDS)))
    return one.ok / min(left, OFFERED_PER_S * SECONDS)


def _line(one: Found) -> list[tuple[float, float]]:
    """The 429s of each 20 s, in percent of the answers."""
    line = []
    for end in range(LOOK_S, int(SECONDS) + 1, LOOK_S):
        refused, answers = (
            bisect(times, end) - bisect(times, end - LOOK_S) for times in (one.refusals, one.answers)
        )
        line.append((float(end), 100 * refused / max(1, answers)))
    return line


def _figures(one: Found) -> tuple[str, str, str]:
    return (
        share(one.refused, one.requests),
        share(one.others_refused, one.others),
        f"{100 * _goodput(one):.0f} %",
    )
