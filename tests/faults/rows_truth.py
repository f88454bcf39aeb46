"""Redis answers, but wrongly: emptied, older, split, or nonsense."""

import time

import redis as client

from tests.faults.field import Broken, Field
from tests.faults.matrix import row
from tests.faults.nonsense import REPLIES, NonsenseStore
from tests.faults.rows_network import bounded
from tests.faults.seen import WORK, Callers
from tests.faults.world import LIMIT


def _hold(field: Field, lasts_s: int = 60) -> int:
    return field.edit("override_breaker", dependency="held", mode="forced_open", lasts_s=lasts_s)


def _passed(field: Field, target: str, since_us: int) -> int:
    """Calls that were admitted since then."""
    return sum(what == target and at >= since_us for pod in field.pods for at, what, _ in pod.history())


def _override(limits: "client.Redis") -> str:
    return str(limits.get("fb1:production:{d:held}:override") or "")


@row("11", "flushall", short=True)
def flushall(field: Field) -> str:
    """Redis is emptied: configuration and overrides return, and no call passes an override meanwhile."""
    _hold(field)
    field.load(["d:held", "t:acme", "d:open-road"], 90)
    field.until("pods refuse what is held", lambda: _refused(field, "held"), within_s=5)
    since = field.begin_anew()
    with client.Redis.from_url(field.valkey.url, decode_responses=True) as limits:
        before = field.redis_head()
        limits.flushall()
        config_s = field.until("the configuration is back", lambda: field.redis_head() == before, within_s=10)
        hold_s = config_s + field.until("the hold is back", lambda: _override(limits), within_s=10)
    time.sleep(1)
    passed, seen = _passed(field, "d:held", since), Callers(field)
    field.edit("end_override", dependency="held")
    seen.none_over_50_ms()
    if max(config_s, hold_s) > 5:
        raise Broken(f"configuration back after {config_s:.1f} s, hold after {hold_s:.1f} s, at most 5 s")
    if passed:
        raise Broken(f"{passed} calls passed a breaker held open")
    return f"configuration back after {config_s:.1f} s, hold after {hold_s:.1f} s, 0 calls passed it; {seen}"


@row("11c", "flushall-windows")
def flushall_windows(field: Field) -> str:
    """What was spent before Redis lost it is not spent again in the same window."""
    field.load(["d:strict", "d:reserved"], 60)
    since = field.begin_anew()
    time.sleep(2.5)
    with client.Redis.from_url(field.valkey.url) as limits:
        limits.flushall()
    time.sleep(3)
    return bounded(field, since)


def _refused(field: Field, dependency: str) -> bool:
    return all(pod.ask(f"d:{dependency}")["reason"] == "forced_open" for pod in field.pods)


@row("11b", "flushall-open-breaker", short=True)
def flushall_open(field: Field) -> str:
    """An open breaker stays open although Redis lost it."""
    for pod in field.pods:
        pod.do("fail", dependencies=["fragile"])
    field.load(["d:fragile"], 60)
    field.until("every pod sees it open", lambda: _open(field), within_s=10)
    with client.Redis.from_url(field.valkey.url) as limits:
        limits.flushall()
    since = time.time_ns() // 1000
    time.sleep(0.5)
    passed = _passed(field, "d:fragile", since)
    for pod in field.pods:
        pod.do("fail", dependencies=[])
    # At most one probe may be due in this time.
    if passed > 2:
        raise Broken(f"{passed} calls passed in the half second after Redis forgot that it is open")
    closed_s = field.until("it closes again", lambda: not _open(field, "closed", every=False), within_s=15)
    return f"{passed} calls passed in the next 0.5 s; closed again {closed_s:.1f} s after the vendor was well"


def _open(field: Field, state: str = "open", *, every: bool = True) -> bool:
    """Whether every pod sees that state; without ``every``, whether any pod sees another."""
    found = [pod.state()["breakers"]["fragile"] == state for pod in field.pods]
    return all(found) if every else not all(found)


@row("14", "failover-lost-tail")
def failover(field: Field) -> str:
    """A replica that missed the last seconds takes over: nothing older is accepted."""
    spare = field.spare_valkey()
    with client.Redis.from_url(spare.url, decode_responses=True) as replica:
        replica.config_set("masterauth", field.valkey.password)
        replica.replicaof("127.0.0.1", str(field.valkey.port))
        field.until(
            "the replica is in step", lambda: replica.info("replication")["master_link_status"] == "up"
        )
        field.until("it has the configuration", lambda: replica.exists("fb1:production:{cfg}:head"))
        field.load(["d:strict", "d:fragile", "d:held", "t:acme"], 60)
        time.sleep(2)
        # From here on nothing is replicated: what happens now is lost.
        replica.replicaof("NO", "ONE")
        since = field.begin_anew()
        _hold(field)
        for pod in field.pods:
            pod.do("fail", dependencies=["fragile"])
        field.until("it is open, and the other held", lambda: _open(field) and _refused(field, "held"))
        revision = field.redis_head()
        field.until(
            "every pod has it all", lambda: all(pod.state()["head"][:2] == revision for pod in field.pods)
        )
        held_since = time.time_ns() // 1000
        field.kill()
        for proxy in [field.desk, *(pod.to_redis for pod in field.pods)]:
            field.lead(proxy, spare)
        old = replica.hget("fb1:production:{cfg}:head", "revision")
        field.all_in("shared", within_s=30)
        heads = [pod.state()["head"][:2] for pod in field.pods]
        repaired_s = field.until(
            "the new primary has the newest configuration and the hold",
            lambda: (
                replica.hget("fb1:production:{cfg}:head", "revision") == str(revision[1])
                and _override(replica)
            ),
            within_s=10,
        )
        for pod in field.pods:
            pod.do("fail", dependencies=[])
        worst = field.worst("d:strict", since, sources="s")
        passed = sum(
            target == "d:held" and at >= held_since for pod in field.pods for at, target, _ in pod.history()
        )
    field.edit("end_override", dependency="held")
    if any(head != revision for head in heads):
        raise Broken(f"pods went back to {heads}, they had {revision}")
    if worst > 2 * LIMIT:
        raise Broken(f"worst window {worst}, at most the limit and the tail: {2 * LIMIT}")
    if passed:
        raise Broken(f"{passed} calls passed a hold that the new primary had not heard of")
    return (
        f"replica at revision {old}, pods stayed at {revision[1]}; repaired {repaired_s:.1f} s after they "
        f"shared again; worst window over the failover {worst}/{LIMIT} and the tail"
    )


@row("15", "split-brain")
def split_brain(field: Field) -> str:
    """Pods on two primaries at once: each keeps the limit, so at most twice the limit is admitted."""
    spare = field.spare_valkey()
    field.load(["d:strict", "t:acme"], 90)
    time.sleep(2.5)
    since = field.begin_anew()
    field.lead(field.pods[0].to_redis, spare)
    time.sleep(4)
    worst = field.worst("d:strict", since)
    field.lead(field.pods[0].to_redis, field.valkey)
    field.all_in("shared")
    heads = [pod.state()["head"] for pod in field.pods]
    if worst > 2 * LIMIT:
        raise Broken(f"worst window {worst}, at most {2 * LIMIT}")
    if len({str(head) for head in heads}) != 1:
        raise Broken(f"pods have different configurations: {heads}")
    return f"worst window over both {worst}, at most 2 x {LIMIT}; one configuration everywhere"


@row("18", "eviction")
def eviction(field: Field) -> str:
    """A Redis that may evict limits is reported before anything runs on it."""
    with client.Redis.from_url(field.valkey.url) as limits:
        limits.config_set("maxmemory-policy", "allkeys-lru")
        try:
            said = field.pods[0].doctor()
        finally:
            limits.config_set("maxmemory-policy", "noeviction")
    finding = next((line for line in said.splitlines() if "eviction policy" in line), "nothing about it")
    if "allkeys-lru" not in finding or not finding.startswith("FAIL"):
        raise Broken(f"fuseboard doctor says: {finding}")
    return f"fuseboard doctor: {' '.join(finding.split())}"


@row("16", "nonsense", short=True)
def nonsense(field: Field) -> str:
    """Every error of Redis, and malformed answers: each is an outage, none an exception."""
    fake = NonsenseStore()
    field.network.start(fake)
    field.load(WORK, 60)
    field.begin_anew()
    kinds = list(REPLIES.items())[:: 8 if field.short else 1]
    try:
        for pod in field.pods:
            pod.to_redis.upstream = ("127.0.0.1", fake.port)
        for number, (name, reply) in enumerate(kinds):
            # Polite ones are asked to decide; the others do not even answer TIME.
            fake.say(reply, polite=number % 3 != 2)
            for pod in field.pods:
                pod.to_redis.reset_all()
            field.until(f"every pod hears {name}", lambda: fake.said >= 6, within_s=15)
        seen = Callers(field)
        granted = sum(
            source == "s" and at < 1_000_000_000_000_000
            for pod in field.pods
            for at, _, source in pod.history()
        )
    finally:
        field.heal()
        field.network.drop(fake)
    back_s = field.all_in("shared", within_s=30)
    seen.none_over_50_ms()
    defects = sum(pod.state()["defects"] for pod in field.pods)
    if defects or granted:
        raise Broken(f"{defects} defects; {granted} calls granted by nonsense")
    return f"{len(kinds)} kinds of answers: {seen}; 0 exceptions, 0 defects; shared {back_s:.1f} s afterwards"
