"""The unix socket and the listener of probes and metrics."""

import asyncio
import os
import re
import resource
import socket
import stat
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from fuseboard.cli.doctor.findings import Level
from fuseboard.cli.doctor.sidecar_check import check_sidecar
from fuseboard.errors import Misconfigured
from fuseboard.serving.exchange import Request
from fuseboard.serving.http1 import Bounds
from fuseboard.serving.open_files import allow_open_files
from fuseboard.serving.sockets import peer_uid
from fuseboard.sidecar import app
from fuseboard.sidecar.access import UnixAccess
from fuseboard.sidecar.app import Options
from fuseboard.sidecar.probes import FIGURES
from fuseboard.sidecar.supervisor import ANSWERING, RESTARTS
from tests.agents.servers import POLICY
from tests.sidecar.conftest import Beside
from tests.waiting import PATIENCE_S, eventually

PAGE = (Path(__file__).resolve().parents[2] / "docs/sidecar.md").read_text()
CALL = {"dependency": "payments"}


def over(path: Path) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    return httpx.AsyncClient(transport=transport, base_url="http://sidecar", timeout=PATIENCE_S)


class TestUnixSocket:
    async def test_the_file_of_the_socket_is_the_access(self, beside: Beside, tmp_path: Path) -> None:
        path = tmp_path / "fuseboard.sock"
        async with beside(POLICY, Options(listen=None, unix=str(path), uids=frozenset({os.getuid()}))):
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
            async with over(path) as http:
                assert (await http.post("/v1/calls", json=CALL)).json()["allowed"] is True
                refused = await http.post("/v1/calls", json=CALL, headers={"origin": "null"})
                assert refused.status_code == 403
        assert not path.exists()

    async def test_another_user_is_refused(self, beside: Beside, tmp_path: Path) -> None:
        path = tmp_path / "fuseboard.sock"
        options = Options(listen=None, unix=str(path), uids=frozenset({os.getuid() + 1}))
        async with beside(POLICY, options), over(path) as http:
            answer = await http.post("/v1/calls", json=CALL)
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:fuseboard:sidecar:uid")

    async def test_a_socket_without_a_process_is_replaced_and_a_file_is_not(
        self, beside: Beside, tmp_path: Path
    ) -> None:
        path = tmp_path / "left"
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
        async with beside(POLICY, Options(listen=None, unix=str(path))), over(path) as http:
            assert (await http.post("/v1/calls", json=CALL)).status_code == 200
        file = tmp_path / "file"
        file.write_text("kept")
        with pytest.raises(Misconfigured, match=r"--unix .*file cannot be used"):
            async with beside(POLICY, Options(listen=None, unix=str(file))):
                pass
        assert file.read_text() == "kept"

    async def test_the_socket_of_another_sidecar_is_left_alone(self, beside: Beside, tmp_path: Path) -> None:
        path = tmp_path / "taken"
        with socket.socket(socket.AF_UNIX) as taken:
            taken.bind(str(path))
            taken.listen()
            with pytest.raises(Misconfigured, match="cannot be used"):
                async with beside(POLICY, Options(listen=None, unix=str(path))):
                    pass
        assert path.exists()

    async def test_the_socket_of_a_process_that_accepts_nothing_is_taken(
        self, beside: Beside, tmp_path: Path
    ) -> None:
        path = tmp_path / "frozen"
        with ExitStack() as peers, socket.socket(socket.AF_UNIX) as frozen:
            frozen.bind(str(path))
            frozen.listen(0)
            with suppress(BlockingIOError):  # until the kernel queues no more
                while True:
                    peer = peers.enter_context(socket.socket(socket.AF_UNIX))
                    peer.setblocking(False)
                    peer.connect(str(path))
            with pytest.raises(Misconfigured, match="cannot be used"):
                async with beside(POLICY, Options(listen=None, unix=str(path))):
                    pass
        assert path.exists()

    async def test_a_path_that_is_too_long_is_named_with_its_problem(
        self, beside: Beside, tmp_path: Path
    ) -> None:
        with pytest.raises(Misconfigured, match="too long"):
            async with beside(POLICY, Options(listen=None, unix=str(tmp_path / ("a" * 200)))):
                pass

    async def test_the_connections_over_tcp_leave_those_of_the_unix_socket_alone(
        self, beside: Beside, tmp_path: Path
    ) -> None:
        path = tmp_path / "fuseboard.sock"
        options = Options(listen=("127.0.0.1", 0), unix=str(path), bounds=Bounds(connections=1))
        async with beside(POLICY, options) as client, over(path) as http:
            assert (await http.post("/v1/calls", json=CALL)).status_code == 200
            local = client.running.connections[1]
            for _ in range(3):
                with socket.create_connection(("127.0.0.1", client.running.port)):
                    await eventually(lambda: len(client.running.connections[0]) == 1)
            assert (await http.post("/v1/calls", json=CALL)).status_code == 200
            assert (local.refused, local.displaced, len(local)) == (0, 0, 1)

    def test_a_peer_over_tcp_has_no_user(self) -> None:
        with socket.socket(socket.AF_INET) as one:
            assert peer_uid(one) is None
        request = Request(method="POST", path="/", headers={}, body=b"")
        assert UnixAccess().refuse(request) is None
        assert UnixAccess(frozenset({0})).refuse(request) is not None


class TestDrain:
    @pytest.mark.parametrize(
        ("asked", "ended"),
        [
            (("/v1/calls", CALL), ("/v1/give-back", "permit")),
            (("/v1/requests", {"tenant": "acme", "costs": {"tokens": 1}}), ("/v1/finish", "hold")),
        ],
    )
    async def test_a_call_that_is_under_way_is_waited_for_although_nothing_is_connected(
        self, beside: Beside, monkeypatch: pytest.MonkeyPatch, asked: Any, ended: Any
    ) -> None:
        monkeypatch.setattr(app, "QUIET_S", 0.1)
        async with beside(POLICY) as client:
            base, (path, member) = client.http.base_url, ended
            found = await client.post(*asked)
            await client.http.aclose()
            await eventually(lambda: not any(map(len, client.running.connections)))
            draining = asyncio.create_task(app.drain(client.running, 600, asyncio.Event()))
            await asyncio.wait([draining], timeout=0.5)
            assert not draining.done()
            async with httpx.AsyncClient(base_url=base, timeout=PATIENCE_S, trust_env=False) as http:
                answer = await http.post(path, json={member: found[member]})
            assert answer.json()["accepted"] == 1
            await asyncio.wait_for(draining, PATIENCE_S)

    async def test_a_person_ends_the_wait(self, beside: Beside) -> None:
        async with beside(POLICY) as client:
            await client.call()
            leave = asyncio.Event()
            leave.set()
            await asyncio.wait_for(app.drain(client.running, 600, leave), PATIENCE_S)


class TestProbes:
    OPTIONS = Options(listen=("127.0.0.1", 0), probes=("127.0.0.1", 0))

    async def test_probes_need_no_token_and_follow_the_stop(self, beside: Beside) -> None:
        async with beside(POLICY, self.OPTIONS) as client:
            base = f"http://127.0.0.1:{client.running.probes_port}"
            async with httpx.AsyncClient(base_url=base, timeout=PATIENCE_S, trust_env=False) as http:
                assert (await http.get("/healthz")).json() == {"healthy": True}
                assert (await http.get("/readyz")).json() == {"ready": True, "because": ""}
                assert (await http.head("/readyz")).status_code == 200
                for path in ("/healthz", "/readyz", "/metrics"):
                    assert (await http.get(path, params={"format": "text"})).status_code == 200
                    assert (await http.get(f"{path}/more")).status_code == 404
                posted = await http.post("/healthz")
                assert (posted.status_code, posted.headers["allow"]) == (405, "GET, HEAD")
                assert (await http.post("/v1/calls", json=CALL)).status_code == 404
                client.sidecar.stopping = True
                assert (await http.get("/readyz")).status_code == 503
                assert (await http.get("/readyz?format=text")).status_code == 503
                assert (await http.get("/healthz")).status_code == 200
                assert (await client.call())["allowed"] is True

    async def test_connections_that_send_nothing_stop_no_probe(self, beside: Beside) -> None:
        async with beside(POLICY, self.OPTIONS) as client:
            port = client.running.probes_port
            with ExitStack() as silent:
                for _ in range(64):
                    silent.enter_context(socket.create_connection(("127.0.0.1", port)))
                for _ in range(3):
                    async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as http:
                        answer = await http.get(f"http://127.0.0.1:{port}/healthz")
                    assert (answer.status_code, answer.headers["connection"]) == (200, "close")

    async def test_metrics_are_those_of_the_agent_and_of_the_sidecar(self, beside: Beside) -> None:
        async with beside(POLICY, self.OPTIONS) as client:
            await client.report({"permit": (await client.call())["permit"], "status": 200})
            await client.call()
            base = f"http://127.0.0.1:{client.running.probes_port}"
            async with httpx.AsyncClient(base_url=base, timeout=PATIENCE_S, trust_env=False) as http:
                answer = await http.get("/metrics")
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
            figures = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if line[0] != "#")
            assert figures['fuseboard_sidecar_permits{server="shop-1"}'] == "1"
            assert figures['fuseboard_sidecar_permits_issued_total{server="shop-1"}'] == "2"
            assert figures['fuseboard_sidecar_connections{server="shop-1"}'] == "1"
            assert figures['fuseboard_requests_total{server="shop-1"}'] == "0"


def test_the_page_has_every_figure() -> None:
    named = set(re.findall(r"`(fuseboard_sidecar_[a-z_]+)`", PAGE))
    assert named == {figure.series for figure in (*(figure for figure, _ in FIGURES), ANSWERING, RESTARTS)}


@pytest.mark.parametrize(
    ("soft", "hard", "allowed", "changed"),
    [
        (5_000, 5_000, 3_000, []),
        (1_024, 4_096, 3_000, [(3_000, 4_096)]),
        (1_024, 2_000, 2_000, [(2_000, 2_000)]),
        (1_024, resource.RLIM_INFINITY, 3_000, [(3_000, resource.RLIM_INFINITY)]),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 3_000, []),
    ],
)
def test_the_limit_of_open_files_is_raised_as_far_as_it_may_be(
    soft: int, hard: int, allowed: int, changed: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
    assert allow_open_files(3_000) == allowed
    assert given == changed


@pytest.mark.parametrize(
    ("hard", "level", "says"),
    [
        (1_024, Level.WARN, "may open 1,024, and needs 4,340"),
        (4_340, Level.OK, "needs 4,340"),
        (resource.RLIM_INFINITY, Level.OK, "needs 4,340"),
    ],
)
def test_the_doctor_says_how_many_files_a_sidecar_may_open(
    hard: int, level: Level, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (512, hard))
    (finding,) = check_sidecar()
    assert finding.level is level
    assert says in finding.says


async def test_a_sidecar_that_may_open_too_few_files_says_so(
    beside: Beside, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app, "allow_open_files", lambda _: 1_024)
    async with beside(POLICY):
        assert "sidecar.open_files: this process may open 1024 files" in caplog.text
