"""An application in Go beside a sidecar and a pod in Python share a limit, both at full pressure."""

import asyncio
import os
import subprocess
import time
from asyncio.subprocess import PIPE
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest
import redis
from msgspec.structs import replace

from fuseboard import Agent, AgentSettings, Outcome, Refused
from fuseboard.contract.words import FailurePolicy
from tests.agents.limit_kinds import window
from tests.agents.published import publish
from tests.sidecar.processes import sidecar
from tests.sidecar.test_sidecar_calls import policy
from tests.sidecar.test_sidecar_examples import FOLDER, found
from tests.waiting import PATIENCE_S, eventually
from tools.demo.windows import surely_in_one_window

LIMIT, WINDOW_S, WINDOWS = 20, 1, 5
CALLERS = 4


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An application with the example of the page, which it has copied."""
    folder = tmp_path_factory.mktemp("go")
    copied, _, _ = (FOLDER / "guard.go").read_text().partition("\nfunc main()")
    (folder / "guard.go").write_text(copied)
    (folder / "main.go").write_text((Path(__file__).parent / "pressed.go").read_text())
    command = [found("go"), "build", "-o", "application", "guard.go", "main.go"]
    subprocess.run(command, check=True, cwd=folder)
    return folder / "application"


class Vendor:
    """Counts calls. Each was allowed between the time when its caller asked and its arrival."""

    def __init__(self) -> None:
        self.url = ""
        #: By path; both times in microseconds.
        self.calls = defaultdict[str, list[tuple[int, int]]](list)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):  # the caller has ended
            while head := await reader.readuntil(b"\r\n\r\n"):
                arrived_us = time.time_ns() // 1000
                first, *lines = head.decode().lower().split("\r\n")
                headers = dict(line.split(": ", 1) for line in lines if line)
                self.calls[first.split()[1]].append((int(headers["x-asked-us"]), arrived_us))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    def worst(self) -> int:
        """The most calls of a window."""
        calls = [call for one in self.calls.values() for call in one]
        return surely_in_one_window(calls, WINDOW_S * 1_000_000)

    def has_seen_windows(self) -> bool:
        """Whether both callers went on for all windows."""
        lasted_us = [calls[-1][1] - calls[0][0] for calls in self.calls.values()]
        return len(lasted_us) == 2 and min(lasted_us) >= WINDOWS * WINDOW_S * 1_000_000


@asynccontextmanager
async def vendor() -> AsyncIterator[Vendor]:
    one = Vendor()
    server = await asyncio.start_server(one.answer, "127.0.0.1", 0)
    one.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield one
    finally:
        server.close()


@asynccontextmanager
async def go_calls(
    application: Path, token_file: Path, sidecar_url: str, url: str
) -> AsyncIterator[Counter[str]]:
    """How the calls in Go end, while the block runs."""
    how = Counter[str]()
    variables = {
        "SIDECAR_URL": sidecar_url,
        "SIDECAR_TOKEN_FILE": str(token_file),
        # A call without a decision is outside of the limit.
        "SIDECAR_TIMEOUT_MS": str(int(PATIENCE_S * 1000)),
        "VENDOR_URL": url,
        "NO_PROXY": "127.0.0.1",
    }
    process = await asyncio.create_subprocess_exec(application, stdout=PIPE, env=os.environ | variables)

    async def read() -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            how[line.decode().strip()] += 1

    reading = asyncio.ensure_future(read())
    try:
        yield how
    finally:
        process.kill()
        await process.wait()
        await reading


@asynccontextmanager
async def python_calls(agent: Agent, dependency: str, url: str) -> AsyncIterator[Counter[str]]:
    """How the calls in Python end, while the block runs."""
    how, ended = Counter[str](), asyncio.Event()

    async def call(http: httpx.AsyncClient) -> None:
        while not ended.is_set():
            asked_us = time.time_ns() // 1000
            try:
                permit = await agent.admit_call(dependency)
            except Refused as refused:
                how[f"refused {refused.decision.reason}"] += 1
                await asyncio.sleep(0)  # a refusal from memory waits for nothing
                continue
            answer = await http.get(url, headers={"x-asked-us": str(asked_us)})
            agent.report(permit, Outcome.OK)
            how[str(answer.status_code)] += 1

    async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as http:
        callers = [asyncio.ensure_future(call(http)) for _ in range(CALLERS)]
        try:
            yield how
        finally:
            ended.set()
            await asyncio.gather(*callers)


@pytest.fixture
def published(limits: redis.Redis) -> None:
    """``payments`` and ``another`` have a limit each."""
    rules = policy(replace(window(LIMIT, WINDOW_S), failure_policy=FailurePolicy.FAIL_CLOSED))
    (payments,) = rules.dependencies
    publish(limits, replace(rules, dependencies=(payments, replace(payments, name="another"))), revision=7)


async def pressed(application: Path, redis_url: str, folder: Path, dependency: str) -> Vendor:
    """What the vendor saw when Go called ``payments``, and Python this dependency."""
    settings = AgentSettings(redis_url=redis_url, server="pod-1", state_dir=folder / "pod")
    with sidecar(redis_url, folder) as beside:
        async with (
            vendor() as called,
            Agent(settings=settings) as agent,
            go_calls(application, beside.token_file, beside.url, f"{called.url}/go") as in_go,
            python_calls(agent, dependency, f"{called.url}/python") as in_python,
        ):
            await eventually(called.has_seen_windows, "several windows of both")
    for how in (in_go, in_python):
        assert how["refused vendor_limit"] > how["200"] > 0, how
        # Redis may answer a busy machine too late, and a strict limit refuses then.
        assert how.keys() <= {"200", "refused vendor_limit", "refused store_unavailable"}, how
    return called


@pytest.mark.usefixtures("published")
async def test_both_share_the_limit_and_no_window_has_more(
    application: Path, redis_url: str, tmp_path: Path
) -> None:
    called = await pressed(application, redis_url, tmp_path, "payments")
    assert called.worst() <= LIMIT


@pytest.mark.usefixtures("published")
async def test_the_vendor_notices_callers_that_do_not_share(
    application: Path, redis_url: str, tmp_path: Path
) -> None:
    called = await pressed(application, redis_url, tmp_path, "another")
    assert called.worst() > LIMIT
