"""A pod that lies: what a stolen token of a pod does to the others."""

import http.client
from collections import Counter

import psycopg

from fuseboard.contract.sync import SYNC_PATH, Applied, SyncRequest, encode
from fuseboard.contract.words import ConfigSource, ConfigStatus
from tests.faults.field import Broken, Field
from tests.faults.matrix import row
from tests.faults.world import ENVIRONMENT, quota

#: A token may bring 500 new names at once, and about 8 more per second: enough for a slow machine too.
MAX_INVENTED = 3_000
REFUSED = 5
_HUGE = 2**63 - 1


class _Liar:
    """Sends heartbeats with the token of the pods."""

    def __init__(self, field: Field) -> None:
        self._connection = http.client.HTTPConnection(*field.gateway_address, timeout=10)
        self._headers = {"Authorization": f"Bearer {field.token}", "Content-Type": "application/json"}
        self._sequence = 0

    def send(self, server: str, *, boot: str = "liar-boot-1", leaving: bool = False, **applied: int) -> int:
        self._sequence += 1
        beat = SyncRequest(
            environment=ENVIRONMENT,
            service="demo",
            server=server,
            boot=boot,
            sequence=self._sequence,
            agent_version="0.1.0",
            leaving=leaving,
            applied=Applied(**applied, hash="0" * 16, source=ConfigSource.REDIS, status=ConfigStatus.APPLIED),
        )
        self._connection.request("POST", SYNC_PATH, encode(beat), self._headers)
        answer = self._connection.getresponse()
        answer.read()
        return answer.status


def server_states(field: Field) -> dict[str, str]:
    """The state of every pod, real or not, as Postgres has it."""
    with psycopg.connect(field.postgres.url) as database:
        return dict(database.execute("SELECT name, state FROM fleet_server").fetchall())


@row("52", "lying-pod")
def lying_pod(field: Field) -> str:
    """It invents revisions and pods, and signs off for others: edits, shares and pods stay as they are."""
    field.settle()
    epoch, revision = field.redis_head()
    shares = [pod.state()["live_servers"] for pod in field.pods]
    liar = _Liar(field)
    for number, claim in enumerate((revision + 1_000_000, _HUGE - 2, _HUGE)):
        if liar.send(f"liar-{number}", epoch=epoch, revision=claim) != 200:
            raise Broken("a heartbeat of the liar was refused")
    liar.send("liar-3", epoch=_HUGE, revision=_HUGE)
    field.until("the lies are in Postgres", lambda: server_states(field).get("liar-3"), 10)
    for pod in field.pods:
        liar.send(pod.name, boot="liar-boot-2", leaving=True)
    answers: Counter[int] = Counter()
    while answers[429] < REFUSED and answers.total() < MAX_INVENTED:
        answers[liar.send(f"invented-{answers.total()}")] += 1
    edited = [field.edit("set_tenant_quota", **quota(limit)) for limit in (9, 8)]
    published_s = field.until("the edit is in Redis", lambda: field.redis_head() == [epoch, edited[-1]], 10)
    applied_s = field.until(
        "every pod applies it",
        lambda: all(pod.state()["head"][:2] == [epoch, edited[-1]] for pod in field.pods),
        10,
    )
    after = [pod.state()["live_servers"] for pod in field.pods]
    states = server_states(field)
    # A share can grow meanwhile: ten minutes after an earlier row with more pods.
    if any(now > then for now, then in zip(after, shares, strict=True)):
        raise Broken(f"shares were 1/{shares} and are 1/{after}")
    if gone := [pod.name for pod in field.pods if states[pod.name] != "online"]:
        raise Broken(f"{gone} signed off by another process")
    if answers[429] < REFUSED:
        raise Broken(f"{answers[200]} invented pods were taken, {answers[429]} refused")
    return (
        f"edits published after {published_s:.1f} s and applied after {applied_s:.1f} s;"
        f" {answers[200]} of {answers.total()} invented pods taken, shares still"
        f" 1/{after[0]}, every pod online"
    )
