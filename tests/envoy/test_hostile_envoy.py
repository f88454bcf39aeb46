"""Hostile input over the socket of Envoy: requests and logs that no Envoy sends. The memory is bounded."""

import random
from pathlib import Path

import httpx
import redis

from fuseboard.envoy import otlp_pb2 as otlp
from fuseboard.envoy import rls_pb2 as pb
from fuseboard.envoy.access_log import EXPORT_OVER_HTTP
from fuseboard.envoy.service import SHOULD_RATE_LIMIT
from tests.agents.published import publish
from tests.agents.servers import TENANTS
from tests.envoy.messages import OK, descriptor, request
from tests.envoy.real_envoy import sidecar
from tests.envoy.test_access_log import record, resource_of
from tests.envoy.test_real_envoy_breakers import policy
from tests.sidecar.hostile import Hostile, unix
from tests.sidecar.test_sidecar_soak import MOST_MIB, resident_mib
from tests.waiting import PATIENCE_S

ACTS = 300
ASK = request(descriptor(("destination_cluster", "app")), domain="calls")


class HostileToEnvoy(Hostile):
    """Half of the acts are messages of Envoy, whole or with turned bits."""

    def _bytes(self) -> bytes:
        choose = self._random
        if choose.random() < 0.5:
            return super()._bytes()
        return b"".join(self._message() for _ in range(choose.randrange(1, 8)))

    def _message(self) -> bytes:
        choose = self._random
        name = f"t-{choose.getrandbits(40):x}"
        path, body = choose.choice(
            (
                (SHOULD_RATE_LIMIT, ASK),
                (SHOULD_RATE_LIMIT, request(descriptor(("tenant", name)))),
                (
                    SHOULD_RATE_LIMIT,
                    request(descriptor((name, name * 50)), domain=choose.choice(("edge", name))),
                ),
                (SHOULD_RATE_LIMIT, request(*(descriptor(("tenant", f"{name}{n}")) for n in range(49)))),
                (EXPORT_OVER_HTTP, _export(name, 1, choose)),
                (EXPORT_OVER_HTTP, _export(name, 400, choose)),
                (EXPORT_OVER_HTTP, b"\x0a\x00" * 32_000),
                (EXPORT_OVER_HTTP, choose.randbytes(choose.choice((10, 1_000, 70_000)))),
            )
        )
        if choose.random() < 0.3:
            turned = bytearray(body)
            turned[choose.randrange(len(turned))] ^= 1 << choose.randrange(8)
            body = bytes(turned)
        return (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-protobuf\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body


def _export(name: str, records: int, choose: random.Random) -> bytes:
    """An export of an unknown node, with permits that no process gave."""
    odd = choose.choice(({}, {"code": "9" * 50}, {"flags": "," * 500}, {"retry_after": b"\xff" * 300}))
    logged = [record(f"{name}{number}", **odd) for number in range(records)]  # type: ignore[arg-type]
    message = otlp.ExportLogsServiceRequest(resource_logs=[resource_of(name, *logged)])
    return message.SerializeToString()


async def test_hostile_input_leaves_the_service_small_and_able_to_decide(
    limits: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    publish(limits, policy(), revision=7, tenants=dict(TENANTS))
    with sidecar(redis_url, tmp_path, "unix") as one:
        peers = HostileToEnvoy([unix(one.path)], token="none")
        await peers.press(acts=ACTS)
        assert peers.done >= ACTS
        transport = httpx.AsyncHTTPTransport(uds=one.path)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", timeout=PATIENCE_S
        ) as http:
            headers = {"content-type": "application/x-protobuf"}
            answer = await http.post(
                SHOULD_RATE_LIMIT, content=request(descriptor(("tenant", "big"))), headers=headers
            )
            assert pb.RateLimitResponse.FromString(answer.content).overall_code == OK
        assert resident_mib(one.process.pid) < MOST_MIB
