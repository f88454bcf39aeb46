"""T30: a vendor that limits the calls in progress, and says so in no header."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

import redis

from controlplane.embedded.valkey import Valkey
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm
from tests.agents.models.learner import Learner
from tests.agents.scripts import Store
from tools.experiments.chart import Chart
from tools.experiments.following import (
    CONFIGURED,
    FLOOR_PERCENT,
    FOLLOWS,
    HALVED_S,
    MORE_S,
    OTHERS,
    SECONDS,
    SEEDS,
    allowed,
    figures,
    goodput,
    others_per_s,
    refused,
)
from tools.experiments.result import Result, share
from tools.experiments.vendor_fleet import (
    ANSWER_S,
    OFFERED_PER_S,
    PER_MINUTE,
    PODS,
    AtOnce,
    Fleet,
    Found,
    play,
)


def at_once(at: float) -> float:
    """Calls in progress that give the same rate as in T28."""
    return allowed(at) / 60 * ANSWER_S


AT_ONCE = int(at_once(0))
#: A slot of a pod that died is free after a minute.
SLOTS = Limit(name="at-once", limit=AT_ONCE, window_ms=60_000, algorithm=Algorithm.CONCURRENCY)
RATE = Limit(name="per-minute", limit=PER_MINUTE, window_ms=60_000, burst=10)


def _following(client: redis.Redis, limit: Limit) -> Fleet:
    lowest = max(1, limit.limit * FLOOR_PERCENT // 100)
    learner = Learner(client, ceiling=limit.limit, lowest=lowest)
    return Fleet(Store(client, [limit]), limit, learner=learner)


RETRIES, A_RATE = "clients' own retries, no limit", "a rate that follows"
FLEETS: dict[str, Callable[[redis.Redis], Fleet]] = {
    RETRIES: lambda _: Fleet(None, SLOTS, retries=2),
    CONFIGURED: lambda client: Fleet(Store(client, [SLOTS]), SLOTS),
    A_RATE: lambda client: _following(client, RATE),
    FOLLOWS: lambda client: _following(client, SLOTS),
}


def play_at_once(client: redis.Redis, name: str, *, seed: int = 1, seconds: float = SECONDS) -> Found:
    client.flushall()
    return play(AtOnce(at_once), FLEETS[name](client), seconds=seconds, others_per_s=others_per_s, seed=seed)


def _row(runs: list[Found]) -> tuple[str, str, str, str]:
    of_all, soon, used = figures(runs)
    others = median(one.others_refused / one.others for one in runs)
    return (of_all, soon, share(others, 1), used)


def following_at_once() -> Result:
    """T30."""
    with tempfile.TemporaryDirectory() as folder:
        server = Valkey(Path(folder))
        server.start()
        try:
            client = redis.Redis.from_url(server.url)
            found = {name: [play_at_once(client, name, seed=seed) for seed in SEEDS] for name in FLEETS}
            client.close()
        finally:
            server.stop()
    rows = [
        (
            "",
            "429s",
            "429s in the 2 min after the halving",
            "429s of the others",
            "used of what the others leave",
        )
    ]
    rows += [(name, *_row(runs)) for name, runs in found.items()]
    result = Result(
        key="T30",
        title="Following a vendor that limits calls at once",
        traffic=f"{PODS} pods make {OFFERED_PER_S:.0f} calls per s, which take {ANSWER_S:.0f} s on average."
        f" The limit is {AT_ONCE} calls at once. The vendor allows {AT_ONCE}, from {HALVED_S:.0f} s on"
        f" {int(at_once(HALVED_S))}, and from {MORE_S:.0f} s on {int(at_once(MORE_S))}. Others use 20 %"
        " of the key. No answer states a limit, and 429s name no time. How many calls the others have in"
        " progress changes from moment to moment, so room must stay free for most moments. The scripts are"
        f" the real ones. Figures are medians of {len(SEEDS)} seeds.",
        expected="At most 3 % of the calls are refused, fewer than a third of those with the configured limit"
        " alone, and at least 65 % of what the others leave is used. A rate that follows does worse: it does"
        " not count how long calls take.",
        charts=(
            Chart(
                "The limit that applies",
                "seconds",
                "calls at once",
                {
                    "followed": found[FOLLOWS][0].followed,
                    "the vendor's": [(x, int(at_once(x))) for x in range(0, int(SECONDS), 10)],
                    "less the others": [(x, (1 - OTHERS) * at_once(x)) for x in range(0, int(SECONDS), 10)],
                },
                {"configured": AT_ONCE},
            ),
        ),
        table=tuple(rows),
    )
    follows, usual = found[FOLLOWS], found[CONFIGURED]
    result.check(
        f"{share(refused(follows), 1)} of the calls are refused, instead of {share(refused(usual), 1)}",
        refused(follows) <= min(0.03, refused(usual) / 3),
    )
    result.check(f"{share(goodput(follows), 1)} of what the others leave is used", goodput(follows) >= 0.65)
    return result
