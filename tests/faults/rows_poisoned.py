"""Heartbeats with texts that Postgres refuses, from a client with a token of another environment."""

import http.client
import json
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any

import psycopg

from fuseboard.contract.sync import SYNC_PATH
from tests.faults.field import Broken, Field
from tests.faults.matrix import row

ELSEWHERE, HARMLESS = "staging", "harmless-1"
LASTS_S, EVERY_S, OLDEST_S = 30.0, 0.25, 5.0
#: They stand in JSON: a NUL, a line separator, half of a surrogate pair.
_BAD = ("\\u0000", "\\u2028", "\\ud800")
_MARK = "<bad>"
#: So many heartbeats of one pod come first.
_ALONE = 40


def _beat(server: str, number: int, **fields: Any) -> dict[str, Any]:
    counters = {"requests": 50 * number}
    usual = {"environment": ELSEWHERE, "service": "shop", "server": server, "boot": "boot-0001"}
    return (
        usual | {"sequence": number, "agent_version": "0.1.0", "up_ms": 5_000, "counters": counters} | fields
    )


def _poisoned() -> Iterator[dict[str, Any]]:
    """Each place that once stopped a gateway from writing, with numbers that rise."""
    for number in count(1):
        rules = [{"rule": f"x{_MARK}", "asked": 50 * number, "refused": number}]
        tenants = [{"tenant": f"t{_MARK}", "allowed": 50 * number, "rules": rules}]
        failed = [{"number": number, "kind": "timeout", "ago_ms": 0}]
        failures = [
            {"dependency": f"invented-{which}", "kinds": {"timeout": number}, "last": failed}
            for which in range(3)
        ]
        counters = {"requests": 50 * number, "rules": rules, "tenants": tenants}
        yield _beat("poison-1", number, counters=counters)
        if number < _ALONE:
            # Other new pods make the gateway write at once, without figures.
            continue
        yield _beat("poison-2", number, boot=f"{_MARK}bootboot", failures=failures)
        yield _beat(
            "poison-3", number, zone=_MARK, mode_cause=_MARK, load={"cause": _MARK}, failures=failures
        )
        yield _beat("poison-4", number, tally={"number": number, "tenants": [[f"t{_MARK}", 5, 1]]})


@row("56", "poisoned-heartbeat")
def poisoned_heartbeat(field: Field) -> str:
    """Pods and figures of every environment are written on; the gateway logs no failed write."""
    field.settle()
    # Rows before this one may have stopped Postgres.
    log = field.folder / "logs" / "gateway.log"
    before = log.stat().st_size
    token = field.director.ask({"do": "environment", "name": ELSEWHERE})
    connection = http.client.HTTPConnection(*field.gateway_address, timeout=30)

    def send(beat: dict[str, Any], bad: str = "") -> int:
        body = json.dumps(beat).replace(_MARK, bad).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.request("POST", SYNC_PATH, body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status

    field.until("the gateway serves the environment", lambda: send(_beat(HARMLESS, 0)) == 200, 30)
    answers: Counter[int] = Counter()
    names, oldest = [HARMLESS, *(pod.name for pod in field.pods)], {"pods": 0.0, "figures": 0.0}
    until = time.monotonic() + LASTS_S
    for number, beat in enumerate(_poisoned(), start=1):
        if time.monotonic() > until:
            break
        answers[send(beat, _BAD[0] if number < _ALONE else _BAD[number % len(_BAD)])] += 1
        send(_beat(HARMLESS, number))
        for what, age_s in _ages(field, names).items():
            oldest[what] = max(oldest[what], age_s)
        time.sleep(EVERY_S)
    for name in (HARMLESS, *(f"poison-{number}" for number in range(1, 5))):
        send(_beat(name, 10**6, leaving=True))
    connection.close()
    said = log.read_bytes()[before:].decode(errors="replace")
    failed = ("flush_failed", "agree_failed", "series_failed", "task_failed")
    wrong = [word for word in failed if word in said]
    if wrong or max(oldest.values()) > OLDEST_S:
        raise Broken(f"ages {oldest}, at most {OLDEST_S:g} s; the log has {wrong}")
    if answers.keys() - {200, 400, 422}:
        raise Broken(f"answers {dict(answers)}")
    return (
        f"{answers.total()} poisoned heartbeats, answers {dict(answers)}; no pod of two environments older"
        f" than {oldest['pods']:.1f} s, no figures older than {oldest['figures']:.1f} s"
    )


def _ages(field: Field, names: list[str]) -> dict[str, float]:
    """Seconds since the oldest of these pods, and since the figures of the environment written last."""
    with psycopg.connect(field.postgres.url) as database:
        pods = database.execute(
            "SELECT max(extract(epoch FROM now() - last_seen_at)) FROM fleet_server WHERE name = ANY(%s)",
            [names],
        ).fetchone()
        figures = database.execute("SELECT max(extract(epoch FROM now() - at)) FROM fleet_figures").fetchone()
    assert pods is not None
    assert figures is not None
    return {"pods": float(pods[0] or 0), "figures": float(figures[0] or 0)}
