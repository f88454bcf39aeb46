"""The control plane is killed at the worst moments, is down for long, or runs twice."""

import time
from itertools import pairwise

import psycopg
import redis as client

from tests.agents.redis_topologies import Watched
from tests.faults.field import CONTROL_PLANE, Broken, Field
from tests.faults.matrix import row
from tests.faults.seen import Callers
from tests.faults.world import EVERYTHING, quota

_EDIT = {"edit_then": "set_tenant_quota"}


def _applied(field: Field, revision: int) -> bool:
    return all(pod.state()["head"][1] >= revision for pod in field.pods)


def _await(field: Field, revision: int) -> float:
    return field.until(f"every pod has revision {revision}", lambda: _applied(field, revision), 20)


@row("30", "control-plane-away", short=True)
def away(field: Field) -> str:
    """Killed under load, and down for a day by the pods' clocks: no decision changes."""
    pod = field.another_pod("all-day", own_clock=True)
    field.all_in("shared", pod)
    field.load(EVERYTHING, 60)
    time.sleep(1)
    before = _decisions(field)
    field.begin_anew()
    field.processes.kill(*CONTROL_PLANE)
    time.sleep(1 if field.short else 5)
    for _hour in range(24):
        pod.do("jump", clock="all", seconds=3600)
        time.sleep(0.05 if field.short else 0.1)
        answer = pod.ask("t:acme")
        if not answer["allowed"] or answer["limit"] != 100_000:
            raise Broken(f"after {_hour + 1} h: {answer}")
    after = _decisions(field)
    seen = Callers(field)
    errors = pod.figures()["errors"]
    if before != after or errors:
        raise Broken(f"decided {before} before, {after} after; errors {errors}")
    seen.none_over_50_ms()
    field.processes.begin(*CONTROL_PLANE)
    field.processes.wait_until_ready(CONTROL_PLANE)
    revision = field.edit("set_tenant_quota", **quota(9))
    caught_up_s = _await(field, revision)
    field.edit("set_tenant_quota", **quota(8))
    return (
        f"{seen}, 24 h for one of them: 0 decisions changed; "
        f"next edit everywhere {caught_up_s:.1f} s after it came back"
    )


def _decisions(field: Field) -> list[object]:
    """Every pod's answers to questions that do not depend on what was spent."""
    asked = ("t:acme", "t:ledger", "d:open-road", "d:fragile")
    return [
        (target, answer["allowed"], answer["reason"], answer["limit"], answer["revision"])
        for pod in field.pods
        for target in asked
        if (answer := pod.ask(target))
    ]


@row("32", "killed-before-publish")
def killed_before_publish(field: Field) -> str:
    """Committed, and the process that should publish is killed: the sweep publishes."""
    return _dies(field, before="publish_head")


@row("33", "killed-before-mark")
def killed_before_mark(field: Field) -> str:
    """Published, but not recorded as published: published again, without effect."""
    return _dies(field, before="mark_published")


def _dies(field: Field, *, before: str) -> str:
    victim = field.new_director()
    assert victim.greeting
    _, revision = field.director.ask({"do": "head"})
    victim.send_command({"do": "die", "before": before, **_EDIT, "with": quota(10)})
    victim.process.wait(20)
    field.until("the edit is committed", lambda: field.director.ask({"do": "head"})[1] == revision + 1, 5)
    took_s = _await(field, revision + 1)
    marked_s = field.until("nothing waits", lambda: field.director.ask({"do": "waiting"}) == 0, 10)
    if field.redis_head()[1] != revision + 1:
        raise Broken(f"Redis has {field.redis_head()}, expected revision {revision + 1}")
    field.edit("set_tenant_quota", **quota(8))
    return f"everywhere {took_s:.1f} s after the process was gone, noted {marked_s:.1f} s later; one revision"


@row("33b", "worker-killed")
def worker_killed(field: Field) -> str:
    """The real worker, killed while its tasks hang in Redis, three times: the next worker does everything."""
    slowest_s = 0.0
    for number in range(3):
        field.desk.cut()
        revision = field.edit("set_tenant_quota", **quota(12 + number))
        time.sleep(0.3 + 0.4 * number)  # its sweep has begun by now, and waits
        field.processes.kill("worker")
        field.desk.heal()
        field.processes.begin("worker")
        published_s = _await(field, revision)
        published_s += field.until("nothing waits", lambda: field.director.ask({"do": "waiting"}) == 0, 60)
        slowest_s = max(slowest_s, published_s)
    if field.redis_head()[1] != revision:
        raise Broken(f"Redis has {field.redis_head()}, expected revision {revision}")
    field.edit("set_tenant_quota", **quota(8))
    return f"3 edits it had to publish: everywhere, and nothing waiting, after {slowest_s:.1f} s at most"


#: What a broker answers during a failover, with a full memory, and without its replica; and how it is mended.
_REFUSES_WRITES = (
    (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
    (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
    (("CONFIG", "SET", "min-replicas-to-write", "1"), ("CONFIG", "SET", "min-replicas-to-write", "0")),
)


@row("33c", "broker-read-only")
def broker_read_only(field: Field) -> str:
    """The broker answers, but refuses every write: worker and beat live, and alerts are evaluated again."""
    slowest_s = 0.0
    with client.Redis.from_url(field.broker.url) as broker:
        for fault, mend in _REFUSES_WRITES:
            try:
                broker.execute_command(*fault)
                # Long enough for several attempts of the worker to consume, and of beat to send.
                time.sleep(12)
            finally:
                broker.execute_command(*mend)
            ended = [actor.name for actor in field.processes.ended() if actor.name in CONTROL_PLANE]
            if ended:
                raise Broken(f"{fault[0]} {fault[-2]} ended {ended}")
            slowest_s = max(slowest_s, _until_evaluated(field))
    return f"3 faults of 12 s ended no process; alerts evaluated again after {slowest_s:.1f} s at most"


@row("33d", "broker-failed-over")
def broker_failed_over(field: Field) -> str:
    """The broker's primary is killed behind Sentinels: worker and beat live, and go on with its replica."""
    watched = Watched(field.folder)
    worker_and_beat = [field.processes.by_name[name] for name in ("worker", "beat")]
    names = [process.name for process in worker_and_beat]

    def begin_with(url: str) -> None:
        field.processes.stop(*names)
        for process in worker_and_beat:
            process.environment = {**process.environment, "FUSEBOARD_BROKER_URL": url}
        field.processes.begin(*names)

    try:
        watched.start()
        begin_with(watched.url)
        _until_evaluated(field, within_s=60)
        before = watched.primary()
        before.kill()
        chosen_s = field.until("the Sentinels choose", lambda: watched.primary() is not before, 30)
        evaluated_s = _until_evaluated(field)
        ended = [actor.name for actor in field.processes.ended() if actor.name in CONTROL_PLANE]
        if ended:
            raise Broken(f"the failover ended {ended}")
    finally:
        begin_with(field.broker.url)
        watched.stop()
    return f"new primary after {chosen_s:.1f} s, alerts evaluated {evaluated_s:.1f} s later; no process ended"


def _until_evaluated(field: Field, within_s: float = 10) -> float:
    with psycopg.connect(field.postgres.url, autocommit=True) as database:
        [(now,)] = database.execute("SELECT now()").fetchall()
        evaluated = "SELECT FROM alerts_evaluation WHERE at > %s"
        return field.until(
            "alerts are evaluated", lambda: database.execute(evaluated, [now]).rowcount, within_s
        )


@row("34", "two-reconcilers")
def two_reconcilers(field: Field) -> str:
    """Two processes reconcile during an edit: no older configuration ever replaces a newer one."""
    others = [field.new_director() for _ in range(2)]
    assert all(other.greeting for other in others)
    under_way = [other.send_command({"do": "reconcile", "times": 60}) for other in others]
    seen = [field.redis_head()]
    for number in range(25):
        revision = field.edit("set_tenant_quota", **quota(10 + number))
        seen += [field.redis_head() for _ in range(4)]
    for other, number in zip(others, under_way, strict=True):
        other.answer(number)
        other.stop()
    took_s = _await(field, revision)
    field.edit("set_tenant_quota", **quota(8))
    back = [later for earlier, later in pairwise(seen) if later < earlier]
    if back:
        raise Broken(f"Redis went back to {back}")
    return (
        f"25 edits, 120 reconciliations: {len(seen)} looks, none older than the one before; "
        f"everywhere {took_s:.1f} s after"
    )


@row("50", "desk-clock")
def desk_clock(field: Field) -> str:
    """A web process whose clock is wrong by five minutes: its edits and overrides still apply."""
    found = []
    desks = [field.new_director() for _ in range(2)]
    for seconds, wrong in zip((300, -300), desks, strict=True):
        wrong.ask({"do": "shift-clock", "seconds": seconds})
        revision = wrong.ask({"edit": "set_tenant_quota", "with": quota(11)})
        _await(field, revision)
        hold = {"dependency": "held", "mode": "forced_open", "lasts_s": 900}
        wrong.ask({"edit": "override_breaker", "with": hold})
        took_s = field.until("every pod refuses", lambda: _refuse(field), 10)
        field.edit("end_override", dependency="held")
        field.until("every pod calls again", lambda: not _refuse(field, every=False), 10)
        wrong.stop()
        found.append(f"{seconds:+d} s: held after {took_s:.1f} s")
    field.edit("set_tenant_quota", **quota(8))
    return "; ".join(found)


def _refuse(field: Field, *, every: bool = True) -> bool:
    found = [pod.ask("d:held")["reason"] == "forced_open" for pod in field.pods]
    return all(found) if every else any(found)
