"""A hot restart of Envoy: a new process takes over the sockets of a running one, under load."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fuseboard.envoy.grpc_server import GrpcListener
from tests.envoy.conftest import Answering
from tests.envoy.real_envoy import application, config_of, needs_envoy, serving
from tests.envoy.rules import ACME, PATIENTLY, daily, policy
from tests.waiting import PATIENCE_S, eventually

pytestmark = needs_envoy

CALLERS, QUOTA = 10, 400
#: The old process closes its connections over the first time, and ends after the second one.
TIMES = ("--drain-time-s", "3", "--parent-shutdown-time-s", "8")


@pytest.fixture
def base_id(tmp_path: Path) -> Iterator[Path]:
    """The file with the number that both processes share. Envoy leaves its shared memory."""
    file = tmp_path / "base-id"
    yield file
    if file.exists():
        Path(f"/dev/shm/envoy_shared_memory_{number_in(file)}0").unlink()  # noqa: S108 - the name is Envoy's


def number_in(file: Path) -> str:
    return file.read_text().strip()


@pytest.mark.parametrize("transport", ["unix", "grpc"])
async def test_no_request_fails_over_grpc_and_each_outcome_counts_once(
    answering: Answering, tmp_path: Path, base_id: Path, transport: str
) -> None:
    listener = GrpcListener(address=str(tmp_path / "grpc.sock"))
    async with answering(policy(daily(QUOTA)), envoy_grpc=listener) as service, application() as app:
        where = ("--unix", service.path) if transport == "unix" else ("--grpc", f"unix:{listener.address}")

        def config(port: int) -> str:
            text = config_of(
                *("--full", "--listen", f"127.0.0.1:{port}", "--admin", "127.0.0.1:0", *where, *PATIENTLY),
                *("--upstream", f"127.0.0.1:{app.port}", "--failure-mode-deny"),
            )
            # A busy machine pauses for longer than the filters, the bridge and the log may wait.
            return re.sub(r"timeout: 1(\.000)?s", "timeout: 10s", text)

        statuses, ended = Counter[int](), asyncio.Event()
        first = ("--use-dynamic-base-id", "--base-id-path", str(base_id), *TIMES)
        async with (
            serving(config(0), tmp_path / "old", node="edge-1", restart=first) as old,
            asyncio.TaskGroup() as tasks,
        ):

            async def ask() -> None:
                # One connection, which is never idle: the old process may close it then.
                async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http:
                    while not ended.is_set():
                        statuses[(await http.get(old.http.base_url, headers=ACME)).status_code] += 1

            callers = [tasks.create_task(ask()) for _ in range(CALLERS)]
            await eventually(lambda: statuses.total() > 5 * CALLERS)
            app.go.clear()
            permits = service.sidecar.permits
            # The old process has a call of each caller under way.
            await eventually(lambda: len(permits) == app.served - statuses.total() == CALLERS)
            second = ("--base-id", number_in(base_id), "--restart-epoch", "1", *TIMES)
            async with serving(config(old.port), tmp_path / "new", node="edge-1", restart=second):
                app.go.set()
                await eventually(lambda: old.process.poll() is not None)
                await eventually(lambda: statuses[429] > 10 * CALLERS)
                ended.set()
                await asyncio.wait(callers)
                await eventually(lambda: len(permits) == 0)
        assert old.process.returncode == 0
        # Without a decision, a request gets 500. The old process also closes the listener of its bridge.
        lost = statuses.pop(500, 0)
        assert transport == "unix" or not lost
        assert statuses.keys() == {200, 429}
        # Envoy may not have got a decision that spends.
        assert QUOTA - lost <= app.served == statuses[200] <= QUOTA
        # The log of each process has sent its permits. A refused request has given its own back.
        assert permits.expired == 0
        assert 0 <= service.log.outcomes - statuses.total() <= lost
        assert service.log.unknown == 0
        # Both processes are one witness, because they have one id.
        assert len(service.log.nodes) == 1
