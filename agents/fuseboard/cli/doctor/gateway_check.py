"""Checks the gateway as the agent uses it: one heartbeat of a pod that signs off at once."""

import asyncio
import os
import time
from uuid import uuid4

from fuseboard.cli.doctor.findings import Finding, clock_finding, fail, ok, warn
from fuseboard.contract.sync import SYNC_PATH, SyncRequest, encode
from fuseboard.reporting.connection import Connection
from fuseboard.reporting.heartbeat import FailedHeartbeatError, HeartbeatFailure, agent_version, read_answer
from fuseboard.reporting.http_response import ResponseError
from fuseboard.settings import AgentSettings

TIMEOUT_S = 2.0

_DO = {
    HeartbeatFailure.UNREACHABLE: (
        "is the gateway running, and is FUSEBOARD_URL its address as seen from here?"
    ),
    HeartbeatFailure.BUSY: "the gateway answers, but cannot serve: check its log",
    HeartbeatFailure.REFUSED: (
        "create a token with 'python manage.py create_agent_token', and set FUSEBOARD_TOKEN"
    ),
    HeartbeatFailure.WRONG: "FUSEBOARD_URL must be the gateway's address, without a path",
}


async def check_gateway(settings: AgentSettings) -> list[Finding]:
    if not settings.url:
        do = "set FUSEBOARD_URL and FUSEBOARD_TOKEN, unless this is intended"
        says = "none: the configuration comes from Redis alone, and the dashboard does not show this pod"
        return [warn("gateway", says, do)]
    return await asyncio.to_thread(_send_heartbeat, settings)


def _send_heartbeat(settings: AgentSettings) -> list[Finding]:
    connection = Connection(
        settings.url.rstrip("/") + SYNC_PATH,
        headers={
            "Authorization": f"Bearer {settings.token}",
            "User-Agent": f"fuseboard-doctor/{agent_version()}",
        },
        timeout_s=TIMEOUT_S,
        total_s=2 * TIMEOUT_S,
        ca_file=settings.ca_file,
    )
    request = SyncRequest(
        environment=settings.environment,
        service=settings.service,
        # Not the name of the pod: the pod on this host must not be shown as leaving.
        server=f"doctor-{os.getpid()}",
        boot=uuid4().hex,
        sequence=1,
        agent_version=agent_version(),
        leaving=True,
    )
    began = time.time()
    try:
        response = read_answer(connection.post(encode(request)))
    except FailedHeartbeatError as error:
        return [fail("gateway", f"{settings.url}: {error}", _DO[error.failure])]
    except (OSError, ResponseError) as error:
        says = f"{settings.url}: {type(error).__name__}: {error}"
        return [fail("gateway", says, _DO[HeartbeatFailure.UNREACHABLE])]
    finally:
        connection.close()
    took_s = time.time() - began
    ahead_s = began + took_s / 2 - response.server_time_us / 1_000_000
    says = (
        f"{settings.url} accepts the token and has revision {response.head.revision} ({took_s * 1000:.0f} ms)"
    )
    return [
        ok("gateway", says),
        clock_finding("clock of the gateway", "the gateway's", ahead_s, took_s / 2),
    ]
