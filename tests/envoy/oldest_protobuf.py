"""A sidecar that answers Envoy. Its environment has the oldest protobuf that the compiled messages allow."""

import asyncio
import sys
from pathlib import Path

import google.protobuf

from fuseboard import AgentSettings, Mode
from fuseboard.envoy import otlp_pb2 as otlp
from fuseboard.envoy import rls_pb2 as pb
from fuseboard.sidecar.app import Options, running
from tests.envoy.messages import OK, OVER, descriptor, headers, request
from tests.waiting import eventually

REVISION = 7


def logged(permit: str) -> bytes:
    """The export of Envoy's access log for one answer with 500."""
    record = otlp.LogRecord()
    for key, text in ((b"permit", permit.encode()), (b"code", b"500"), (b"attempts", b"1")):
        record.attributes.add(key=key).value.string_value = text
    message = otlp.ExportLogsServiceRequest()
    message.resource_logs.add().scope_logs.add().log_records.append(record)
    return message.SerializeToString()


async def main(path: str) -> None:
    async with running(AgentSettings.from_env(), Options(listen=None, envoy_unix=path)) as started:
        agent = started.agent
        await eventually(
            lambda: agent.mode is Mode.SHARED and agent.configuration.snapshot.head.revision == REVISION
        )
        service, log = started.envoy, started.access_log
        assert service is not None
        assert log is not None

        async def ask(body: bytes) -> pb.RateLimitResponse:
            return pb.RateLimitResponse.FromString((await service.answer(body)).body)

        first, second = [await ask(request(descriptor(("tenant", "acme")))) for _ in range(2)]
        assert (first.overall_code, second.overall_code) == (OK, OVER)
        assert first.statuses[0].current_limit.requests_per_unit == 1
        assert second.statuses[0].duration_until_reset.seconds > 0
        assert headers(second)["content-type"] == "application/problem+json"
        call = await ask(request(descriptor(("destination_cluster", "app")), domain="calls"))
        assert call.overall_code == OK
        log.export(logged(call.dynamic_metadata["permit"]))
        assert (log.outcomes, log.unknown) == (1, 0)


if __name__ == "__main__":
    asyncio.run(main(str(Path(sys.argv[1]) / "envoy.sock")))
    sys.stdout.write(google.protobuf.__version__)
