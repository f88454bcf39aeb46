"""Up to 50,000 pods that do not exist, from a client with the token of a pod."""

import http.client
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import msgspec
import psutil

from fuseboard.contract.sync import MAX_BODY_BYTES, SYNC_PATH, BreakerView, SyncRequest, encode
from tests.faults.field import Broken, Field
from tests.faults.matrix import row
from tests.faults.rows_trust import server_states
from tests.faults.seen import WORK, Callers
from tests.faults.world import ENVIRONMENT, quota
from tests.memory import most_memory

INVENTED, CONNECTIONS = 50_000, 4
#: They are sent for this time, but at least this number: a busy machine cannot take all of them.
LASTS_S, AT_LEAST = 30.0, 1_500
#: So many of them send heartbeats of nearly the length that the gateway takes.
LARGE = 200
#: What docker-compose.yml gives a gateway.
CONTAINER_MIB = 512
#: A gateway keeps at most 96 MiB for a token (``gateway.servers.fleet_bounds``). The rest is for what
#: it reads and writes meanwhile.
GROWTH_MIB = 160

_NAME = "invented-00000"
_SMALL = SyncRequest(
    environment=ENVIRONMENT,
    service="demo",
    server=_NAME,
    boot="invented-boot",
    sequence=1,
    agent_version="0.1.0",
)
#: They never counted a request, so they are in no divisor.
_LARGE = msgspec.structs.replace(
    _SMALL,
    want=tuple(f"{_NAME}-{'w' * 170}-{number}" for number in range(1000)),
    breakers=tuple(BreakerView(dependency=f"{_NAME}-{'d' * 40}-{number}") for number in range(500)),
)
_LEAVING = msgspec.structs.replace(_SMALL, sequence=2, leaving=True)


@row("53", "made-up-pods", quiet=True)
def made_up_pods(field: Field) -> str:
    """The gateway refuses most of them and keeps little of the others; real pods do not notice."""
    field.settle()
    shares = [pod.state()["live_servers"] for pod in field.pods]
    gateway = field.processes.by_name["gateway"].popen
    assert gateway is not None
    before_mib = psutil.Process(gateway.pid).memory_info().rss >> 20
    field.load(WORK, 60)
    field.begin_anew()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        answers = [future.result() for future in [pool.submit(_invent, field, n) for n in range(CONNECTIONS)]]
    edited = field.edit("set_tenant_quota", **quota(9))
    applied_s = field.until(
        "every pod applies an edit", lambda: all(pod.state()["head"][1] == edited for pod in field.pods), 20
    )
    seen = Callers(field)
    peak_mib = most_memory(gateway.pid) >> 20
    statuses = Counter(status for some in answers for status in some.values())
    taken = [name for some in answers for name, status in some.items() if status == 200]
    _leave(field, taken)
    if statuses.keys() != {200, 429}:
        raise Broken(f"answers {dict(statuses)}")
    if peak_mib > CONTAINER_MIB or peak_mib - before_mib > GROWTH_MIB:
        raise Broken(f"the gateway took {before_mib} MiB before, {peak_mib} MiB at its peak")
    if (after := [pod.state()["live_servers"] for pod in field.pods]) != shares:
        raise Broken(f"shares were 1/{shares} and are 1/{after}")
    field.all_in("shared")
    states = server_states(field)
    if gone := [pod.name for pod in field.pods if states[pod.name] != "online"]:
        raise Broken(f"{gone} are not online")
    return (
        f"{len(taken)} of {statuses.total()} taken, the others refused; the gateway took {before_mib} MiB"
        f" before and {peak_mib} MiB at its peak; an edit took {applied_s:.1f} s; {seen};"
        f" shares still 1/{after[0]}"
    )


def _invent(field: Field, first: int) -> dict[str, int]:
    """Send a heartbeat of each pod of one connection; return the answers."""
    small, large = encode(_SMALL), encode(_LARGE)
    if not 0.8 * MAX_BODY_BYTES < len(large) < MAX_BODY_BYTES:
        raise Broken(f"a large heartbeat has {len(large)} bytes")
    answers: dict[str, int] = {}
    ends = time.monotonic() + LASTS_S
    connection = http.client.HTTPConnection(*field.gateway_address, timeout=30)
    try:
        for number in range(first, INVENTED, CONNECTIONS):
            if number > AT_LEAST and time.monotonic() > ends:
                break
            name = f"invented-{number:05}"
            answers[name] = _send(field, connection, large if number < LARGE else small, name)
    finally:
        connection.close()
    return answers


def _leave(field: Field, names: list[str]) -> None:
    """They sign off, so that their silence does not freeze the expiry of pods in later rows."""
    connection, leaving = http.client.HTTPConnection(*field.gateway_address, timeout=30), encode(_LEAVING)
    for name in names:
        _send(field, connection, leaving, name)
    connection.close()


def _send(field: Field, connection: http.client.HTTPConnection, body: bytes, name: str) -> int:
    headers = {"Authorization": f"Bearer {field.token}", "Content-Type": "application/json"}
    connection.request("POST", SYNC_PATH, body.replace(_NAME.encode(), name.encode()), headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status
