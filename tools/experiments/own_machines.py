"""T31: a pool of own machines, whose queue grows where a vendor would refuse."""

import tempfile
from pathlib import Path

import redis

from controlplane.embedded.valkey import Valkey
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm
from tests.agents.models.learner import Learner
from tests.agents.scripts import Store
from tools.experiments.chart import Chart
from tools.experiments.following import FLOOR_PERCENT, HALVED_S, OTHERS, allowed, others_per_s
from tools.experiments.result import Result, quantile, share
from tools.experiments.vendor_fleet import ANSWER_S, OFFERED_PER_S, PODS, Fleet, Found, Pool, play

SECONDS, LOOK_S = 1_800.0, 30
#: Twice as many calls at once as there are machines, as somebody has guessed.
AT_ONCE = 40
SLOTS = Limit(name="at-once", limit=AT_ONCE, window_ms=120_000, algorithm=Algorithm.CONCURRENCY)
RISE_PERCENT = 50
CONFIGURED, BY_REFUSALS = "the configured limit", "follows refusals"
BY_TIME = f"follows the time of calls, {RISE_PERCENT} %"


def machines(at: float) -> float:
    """20, and from 900 s on 10."""
    return allowed(at) / 60 * ANSWER_S


def play_on_machines(client: redis.Redis, name: str, *, seconds: float = SECONDS) -> Found:
    client.flushall()
    store = Store(client, [SLOTS])
    learner = Learner(
        client,
        ceiling=AT_ONCE,
        lowest=AT_ONCE * FLOOR_PERCENT // 100,
        rise=RISE_PERCENT if name == BY_TIME else 0,
        slots=store.limit_key(SLOTS),
    )
    fleet = Fleet(store, SLOTS, learner=None if name == CONFIGURED else learner)
    return play(Pool(machines), fleet, seconds=seconds, others_per_s=others_per_s)


def own_machines() -> Result:
    """T31."""
    with tempfile.TemporaryDirectory() as folder:
        server = Valkey(Path(folder))
        server.start()
        try:
            client = redis.Redis.from_url(server.url)
            found = {name: play_on_machines(client, name) for name in (CONFIGURED, BY_REFUSALS, BY_TIME)}
            client.close()
        finally:
            server.stop()
    return result_of(found)


def result_of(found: dict[str, Found]) -> Result:
    rows = [("", "calls take, median", "95 of 100 take at most", "used of what the others leave")]
    rows += [
        (name, seconds(one, 0.5), seconds(one, 0.95), share(used(one), 1)) for name, one in found.items()
    ]
    result = Result(
        key="T31",
        title="A pool of own machines",
        traffic=f"{PODS} pods make {OFFERED_PER_S:.0f} calls per s to {int(machines(0))} machines, and from"
        f" {HALVED_S:.0f} s on to {int(machines(HALVED_S))}. A machine takes {ANSWER_S:.0f} s for a call, and"
        f" refuses nothing: calls wait, up to 20 s. The limit is {AT_ONCE} calls at once, twice as many as"
        " there are machines. Others use 20 % of them, without a limit. The scripts are the real ones.",
        expected=f"A limit that follows the time of calls, up to {RISE_PERCENT} % above the lowest one, uses"
        " at least 85 % of what the others leave, and calls take half as long as with the configured limit,"
        " which refusals do not change: there are none.",
        charts=(
            Chart(
                "What calls take",
                "seconds",
                "s, 95 of 100 at most",
                {name: late(one) for name, one in found.items()},
            ),
            Chart(
                "The limit that applies",
                "seconds",
                "calls at once",
                {
                    "followed": found[BY_TIME].followed,
                    "machines, less the others": [
                        (x, (1 - OTHERS) * machines(x)) for x in range(0, int(SECONDS), 10)
                    ],
                },
                {"configured": AT_ONCE},
            ),
        ),
        table=tuple(rows),
    )
    usual, follows = found[CONFIGURED], found[BY_TIME]
    result.check(
        f"95 of 100 calls take at most {seconds(follows, 0.95)}, instead of {seconds(usual, 0.95)}",
        (late_s(follows) or 0) <= (late_s(usual) or 0) / 2,
    )
    result.check(f"{share(used(follows), 1)} of what the others leave is used", used(follows) >= 0.85)
    return result


def used(one: Found) -> float:
    left = sum(min(OFFERED_PER_S, (1 - OTHERS) * allowed(second) / 60) for second in range(int(SECONDS)))
    return one.ok / left


def late_s(one: Found) -> float | None:
    return quantile([took for _, took in one.took], 0.95)


def seconds(one: Found, part: float) -> str:
    return f"{quantile([took for _, took in one.took], part) or 0:.1f} s"


def late(one: Found) -> list[tuple[float, float]]:
    """What 95 of 100 calls of each 30 s take at most."""
    line = []
    for end in range(LOOK_S, int(SECONDS) + 1, LOOK_S):
        took = [each for at, each in one.took if end - LOOK_S <= at < end]
        line.append((float(end), quantile(took, 0.95) or 0.0))
    return line
