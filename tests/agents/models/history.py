"""One process of a concurrent history: ``python -m tests.agents.models.history url number seconds``.

It puts random questions to one window, one bucket and one breaker, by the shipped scripts and the
real clock, and writes what it asked, what it was told, and when, one JSON object to a line.
"""

import json
import random
import sys
import time
from typing import Any

import redis

from fuseboard.contract.policy import BreakerPolicy
from fuseboard.contract.scripts import Script, read_script
from tests.agents.limit_kinds import bucket, window
from tests.agents.scripts import Store

#: So small that servers get into each other's way, and so short that everything happens often.
LIMITS = [window(20, seconds=0.2), bucket(400, burst=15)]
POLICY = BreakerPolicy(
    consecutive_failures=4,
    minimum_calls=6,
    window_s=1,
    open_ms=30,
    open_max_ms=120,
    probes=2,
    probe_lease_ms=25,
    successes_to_close=2,
    slow_start_ms=0,
)


class RealStore(Store):
    """As ``Store``, in real time. ``at``: the store time of the last answer."""

    at = 0

    def _run(self, script: Script, keys: list[str], arguments: list[object]) -> Any:
        reply = self.client.evalsha(script.sha, len(keys), *keys, *arguments)
        if isinstance(reply, list):
            self.at = reply[4]
        return reply


def domains(url: str, number: int) -> tuple[RealStore, RealStore]:
    """The same limits and the same breaker for every process; tokens of its own."""
    client = redis.Redis.from_url(url)
    scripts = {"admit_script": read_script("admit"), "report_script": read_script("report")}
    limited = RealStore(client, LIMITS, batches=number * 1_000_000, **scripts)
    guarded = RealStore(client, policy=POLICY, guarded=True, batches=number * 1_000_000, **scripts)
    for script in scripts.values():
        client.script_load(script.text)
    return limited, guarded


def main(url: str, number: int, seconds: float) -> None:
    chance = random.Random(number)
    limited, guarded = domains(url, number)
    generation, tokens = 0, []
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic_ns()
        kind = chance.choice(("limits", "admit", "report"))
        if kind == "limits":
            asked: Any = (chance.randint(1, 6), chance.randint(1, 2))
            told = limited.admit(asked)
            said: Any = (told.granted, told.left)
            at = told.now_us
        elif kind == "admit":
            asked = (chance.randint(1, 3), f"b{guarded.batches + 1}")
            reply = guarded.admit((asked[0], 1), server=f"s{number}")
            generation = reply.generation or generation
            probing = reply.verdict == "probes"
            tokens = [f"{asked[1]}.{n + 1}" for n in range(reply.granted)] if probing else []
            said, at = (reply.verdict, reply.granted, reply.generation), reply.now_us
        else:
            probe = tokens.pop() if tokens else ""
            outcome = chance.choice((1, 1, 2)) if probe else 0
            ok, failure = (0, 0) if probe else (chance.randint(0, 1), chance.randint(0, 3))
            asked = (generation, f"s{number}", ok, failure, probe, outcome)
            probes = ((probe, outcome),) if probe else ()
            answer = guarded.report(
                generation, ok=ok, failure=failure, tail=failure, probes=probes, server=f"s{number}"
            )
            said, at = (answer.change, answer.generation), guarded.at
        row = {"kind": kind, "asked": asked, "said": said, "at": at}
        row |= {"began": began, "ended": time.monotonic_ns()}
        sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
