"""T28: a vendor that halves its limit, and later gives more."""

import tempfile
from pathlib import Path
from statistics import median

import redis

from controlplane.embedded.valkey import Valkey
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm
from tests.agents.models.learner import Learner
from tests.agents.scripts import Store
from tools.experiments.chart import Chart
from tools.experiments.result import Result, share
from tools.experiments.vendor_fleet import OFFERED_PER_S, PER_MINUTE, PODS, Bucket, Fleet, Found, play

OTHERS, SECONDS, HALVED_S, MORE_S = 0.2, 2_700.0, 900.0, 1_800.0
BUCKET = Limit(name="per-minute", limit=PER_MINUTE, window_ms=60_000, burst=10)
#: What the page of a dependency offers first.
SLIDING = Limit(name="per-minute", limit=PER_MINUTE, window_ms=60_000, algorithm=Algorithm.SLIDING_WINDOW)
FLOOR_PERCENT = 10
SEEDS = range(1, 4)
#: A vendor that says nothing makes up for a pause of so many seconds.
BURST_S = 6.0
CONFIGURED, FOLLOWS = "the configured limit", "a limit that follows"
SILENT, STATED, STATED_BUCKET = "silent", "states its limit", "states its limit; ours is a token bucket"
#: Its bucket holds one second, and so does ours.
SECOND = "states its limit, and enforces it in each second; ours is a token bucket"


def allowed(at: float) -> float:
    """Calls a minute: 600, 300, and then 500."""
    return 600 if at < HALVED_S else 300 if at < MORE_S else 500


def others_per_s(at: float) -> float:
    return OTHERS * allowed(at) / 60


def _play(client: redis.Redis, vendor: str, *, follows: bool, seed: int) -> Found:
    client.flushall()
    limit = SLIDING if vendor == STATED else BUCKET
    lowest = limit.limit * FLOOR_PERCENT // 100
    learner = Learner(client, ceiling=limit.limit, lowest=lowest) if follows else None
    burst_s = {SILENT: BURST_S, SECOND: 1.0}.get(vendor, 60.0)
    answers = Bucket(allowed, silent=vendor == SILENT, burst_s=burst_s)
    # What is left is charged by default, so beside the configured limit too.
    fleet = Fleet(Store(client, [limit]), limit, learner=learner)
    return play(answers, fleet, seconds=SECONDS, others_per_s=others_per_s, seed=seed)


def following() -> Result:
    """T28."""
    with tempfile.TemporaryDirectory() as folder:
        server = Valkey(Path(folder))
        server.start()
        try:
            client = redis.Redis.from_url(server.url)
            found = {
                (vendor, name): [_play(client, vendor, follows=name == FOLLOWS, seed=seed) for seed in SEEDS]
                for vendor in (SILENT, STATED, STATED_BUCKET, SECOND)
                for name in (CONFIGURED, FOLLOWS)
            }
            client.close()
        finally:
            server.stop()
    rows = [("vendor", "", "429s", "429s in the 2 min after the halving", "used of what the others leave")]
    rows += [(vendor, name, *figures(runs)) for (vendor, name), runs in found.items()]
    result = Result(
        key="T28",
        title="Following a vendor",
        traffic=f"{PODS} pods make {OFFERED_PER_S:.0f} calls per s. The limit is {PER_MINUTE} a minute."
        f" The vendor allows 600, from {HALVED_S:.0f} s on 300, and from {MORE_S:.0f} s on 500. Others use"
        " 20 % of the key. The answers of one vendor say nothing, and its 429s name no time; those of the"
        " others state the limit and what is left. What it has left lowers a sliding window more than a token"
        " bucket, which refills at its own rate between two answers. One of these vendors enforces its"
        " minute in each second. The scripts are the real ones."
        f" Figures are medians of {len(SEEDS)} seeds.",
        expected="Without headers at most 3 % of the calls are refused, fewer than half of those with the"
        " configured limit alone. With headers at most 1 % are, or 2 % where a minute is enforced in each"
        " second, and at most 60 in the two minutes after the halving. At least 90 % and 95 % of what the"
        " others leave is used.",
        charts=(
            Chart(
                "The limit that applies",
                "seconds",
                "calls per minute",
                {
                    "followed": found[SILENT, FOLLOWS][0].followed,
                    "followed, stated": found[STATED, FOLLOWS][0].followed,
                    "for us": [(x, (1 - OTHERS) * allowed(x)) for x in range(0, int(SECONDS), 10)],
                },
                {"configured": PER_MINUTE},
            ),
        ),
        table=tuple(rows),
    )
    usual, silent = found[SILENT, CONFIGURED], found[SILENT, FOLLOWS]
    stated = found[STATED, FOLLOWS]
    result.check(
        f"Without headers, {share(refused(silent), 1)} of the calls are refused, instead of"
        f" {share(refused(usual), 1)}",
        refused(silent) <= min(0.03, refused(usual) / 2),
    )
    result.check(f"{share(goodput(silent), 1)} of what the others leave is used", goodput(silent) >= 0.9)
    result.check(f"With headers, {share(refused(stated), 1)} are refused", refused(stated) <= 0.01)
    result.check(
        f"{after_halving(stated):.0f} are refused in the two minutes after the halving",
        after_halving(stated) <= 60,
    )
    result.check(f"{share(goodput(stated), 1)} of what the others leave is used", goodput(stated) >= 0.95)
    second = found[SECOND, FOLLOWS]
    result.check(
        f"Where a minute is enforced in each second, {share(refused(second), 1)} are refused,"
        f" {after_halving(second):.0f} in the two minutes after the halving",
        refused(second) <= 0.02 and after_halving(second) <= 60,
    )
    result.check(f"{share(goodput(second), 1)} of what the others leave is used", goodput(second) >= 0.95)
    return result


def refused(runs: list[Found]) -> float:
    return median(one.refused / one.requests for one in runs)


def after_halving(runs: list[Found]) -> float:
    return median(sum(HALVED_S <= at < HALVED_S + 120 for at in one.refusals) for one in runs)


def goodput(runs: list[Found]) -> float:
    left = sum(min(OFFERED_PER_S, (1 - OTHERS) * allowed(second) / 60) for second in range(int(SECONDS)))
    return median(one.ok / left for one in runs)


def figures(runs: list[Found]) -> tuple[str, str, str]:
    return (share(refused(runs), 1), f"{after_halving(runs):.0f}", share(goodput(runs), 1))
