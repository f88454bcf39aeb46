"""``fuseboard sidecar --workers``: several processes serve one port and one unix socket."""

import asyncio
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import redis

from fuseboard.cli import main
from fuseboard.contract.policy import Policy
from fuseboard.contract.sidecar import MAX_REPORTS, REPORTS_PATH, GiveBack, Report
from fuseboard.errors import Misconfigured
from fuseboard.serving import http1
from fuseboard.serving.listeners import Listeners
from fuseboard.sidecar.app import PRIVATE, when_it_ends
from fuseboard.sidecar.peers import Peers, Place
from fuseboard.sidecar.supervisor import Worker
from tests.agents.published import publish
from tests.sidecar.peers import Echo
from tests.sidecar.processes import Process, sidecar
from tests.sidecar.test_sidecar_calls import SLOTS, policy
from tests.sidecar.test_sidecar_soak import MOST_MIB, resident_mib
from tests.waiting import PATIENCE_S, eventually, wait_until

WORKERS = 2


class Connections:
    """A connection to each worker, found by the permits that it gives."""

    def __init__(self, one: Process, stack: ExitStack) -> None:
        self._one, self._stack = one, stack
        self.to: dict[int, httpx.Client] = {}

    def open(self) -> None:
        def look() -> bool:
            client = httpx.Client(
                base_url=self._one.url,
                headers={"authorization": f"Bearer {self._one.token}"},
                timeout=PATIENCE_S,
                trust_env=False,
            )
            permit = self._stack.enter_context(client).post("/v1/calls", json={"dependency": "payments"})
            self.to.setdefault(worker_of(permit.json()["permit"]), client)
            client.post("/v1/give-back", json={"permit": permit.json()["permit"]})
            return len(self.to) == WORKERS

        wait_until(look, "a connection to each worker")

    def post(self, worker: int, path: str, content: Any) -> Any:
        answer = self.to[worker].post(path, json=content)
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextmanager
def working(
    limits: redis.Redis, redis_url: str, folder: Path, published: Policy
) -> Iterator[tuple[Process, Connections]]:
    publish(limits, published, revision=7)
    options = ("--shared", "--unix", str(folder / "sock"), "--workers", str(WORKERS))
    with sidecar(redis_url, folder, *options) as one, ExitStack() as stack:
        connections = Connections(one, stack)
        connections.open()
        yield one, connections


def worker_of(name: str) -> int:
    """The worker that an id names."""
    found = re.match(r"[ph](\d+)-[0-9a-f]{24}$", name)
    assert found is not None, name
    return int(found[1])


def figures(one: Process) -> dict[tuple[str, str], float]:
    """Each sample without further labels, by its series and the agent."""
    with httpx.Client(timeout=PATIENCE_S, trust_env=False) as http:
        text = http.get(f"{one.probes}/metrics?format=text").text
    heads = Counter(re.findall(r"^# (?:HELP|TYPE) \S+", text, re.MULTILINE))
    assert set(heads.values()) == {1}
    samples = re.findall(r'^(\w+)\{server="([^"]+)"\} (\S+)$', text, re.MULTILINE)
    return {(series, server): float(value) for series, server, value in samples}


def outcomes(one: Process) -> dict[str, int]:
    with httpx.Client(timeout=PATIENCE_S, trust_env=False) as http:
        text = http.get(f"{one.probes}/metrics").text
    found = Counter[str]()
    for outcome, value in re.findall(r'^fuseboard_calls_total\{.*outcome="(\w+)".*\} (\d+)$', text, re.M):
        found[outcome] += int(value)
    return {outcome: value for outcome, value in found.items() if value}


def pids(one: Process) -> list[int]:
    """The processes of the workers."""
    return [
        int(pid)
        for pid in Path(f"/proc/{one.process.pid}/task/{one.process.pid}/children").read_text().split()
    ]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_report_that_lands_at_another_worker_counts_once(
    limits: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    with working(limits, redis_url, tmp_path, policy()) as (one, connections):
        before = outcomes(one).get("ok", 0)
        calls = [connections.post(1, "/v1/calls", {"dependency": "payments"}) for _ in range(150)]
        reports = [{"permit": call["permit"], "status": 200} for call in calls]
        # Alone, beside a call, and again at the worker that has the permits.
        assert connections.post(2, "/v1/reports", reports[:100])["accepted"] == 100
        carrying = {"dependency": "payments", "reports": reports[100:]}
        assert connections.post(2, "/v1/calls", carrying)["allowed"]
        wait_until(lambda: outcomes(one).get("ok", 0) == before + 150)
        assert connections.post(1, "/v1/reports", reports[:100])["unknown"] == [
            report["permit"] for report in reports[:100]
        ]
        assert outcomes(one).get("ok", 0) == before + 150


def test_a_request_ends_at_any_worker(limits: redis.Redis, redis_url: str, tmp_path: Path) -> None:
    with working(limits, redis_url, tmp_path, policy(quotas=(SLOTS,))) as (_, connections):
        for path in ("/v1/finish", "/v1/give-back"):
            first = wait_until(
                lambda: connections.post(1, "/v1/requests", {"tenant": "acme"}),
                accept=lambda answer: answer["allowed"],
            )
            assert connections.post(2, "/v1/requests", {"tenant": "acme"})["reason"] == "concurrency"
            assert connections.post(2, path, {"hold": first["hold"]})["accepted"] == 1
        wait_until(lambda: connections.post(1, "/v1/requests", {"tenant": "acme"})["allowed"])


def test_a_worker_that_is_killed_is_replaced_and_its_permits_end(
    limits: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    with working(limits, redis_url, tmp_path, policy()) as (one, connections):
        permit = connections.post(1, "/v1/calls", {"dependency": "payments"})["permit"]
        before = outcomes(one)
        (killed,) = [pid for pid in pids(one) if b'"number":1' in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: gone(killed))
        # The others decide, and what they hand on to it is lost.
        connections.post(2, "/v1/calls", {"dependency": "payments"})
        connections.post(2, "/v1/reports", [{"permit": permit, "status": 200}])
        wait_until(lambda: len(pids(one)) == WORKERS and health(one) == 200)
        connections.to.clear()
        connections.open()
        wait_until(lambda: figures(one)["fuseboard_sidecar_workers_restarts_total", "shop-1"] == 1)
        found = figures(one)
        assert found["fuseboard_sidecar_workers", "shop-1"] == WORKERS
        assert found["fuseboard_sidecar_handed_on_lost_total", "shop-1-2"] <= 1
        assert outcomes(one).get("ok", 0) <= before.get("ok", 0)
        unknown = connections.post(1, "/v1/reports", [{"permit": permit, "status": 200}])["unknown"]
        assert unknown == [permit]


def health(one: Process) -> int:
    with httpx.Client(timeout=PATIENCE_S, trust_env=False) as http:
        return http.get(f"{one.probes}/healthz").status_code


def test_a_frozen_worker_is_named_by_the_probe_and_holds_up_nobody(
    limits: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    with working(limits, redis_url, tmp_path, policy()) as (one, connections):
        permit = connections.post(1, "/v1/calls", {"dependency": "payments"})["permit"]
        (frozen,) = [pid for pid in pids(one) if b'"number":1' in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(frozen, signal.SIGSTOP)
        try:
            assert connections.post(2, "/v1/reports", [{"permit": permit, "status": 200}])["accepted"] == 1
            assert connections.post(2, "/v1/calls", {"dependency": "payments"})["allowed"]
            assert health(one) == 503
            assert one.ready() == 200
        finally:
            os.kill(frozen, signal.SIGCONT)
        wait_until(lambda: health(one) == 200)


def test_the_workers_are_small_and_end_with_the_process_that_started_them(
    limits: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    with working(limits, redis_url, tmp_path, policy()) as (one, _):
        workers = pids(one)
        assert len(workers) == WORKERS
        for pid in (one.process.pid, *workers):
            assert resident_mib(pid) < MOST_MIB
        # Nothing reads the pipe of a worker that is ready.
        for pid in workers:
            fds = Path(f"/proc/{pid}/fd")
            wait_until(lambda fds=fds: os.readlink(fds / "1") == os.readlink(fds / "2"))
        one.process.kill()
        wait_until(lambda: all(map(gone, workers)))


async def test_a_worker_ends_at_a_signal_that_comes_before_its_process() -> None:
    place = Place(number=1, of=1, server="shop-1", folder="unused")
    worker = Worker([sys.executable, "-c", "print('ready', flush=True); input()"], place)
    starting = asyncio.create_task(worker.start())
    await asyncio.sleep(0)
    worker.signal(signal.SIGTERM)
    with suppress(Misconfigured):  # it may have ended before it was ready
        await starting
    await asyncio.wait_for(worker.keep(), PATIENCE_S)
    await worker.end(PATIENCE_S)
    assert worker.restarts == 0


async def test_a_start_that_fails_is_no_restart(tmp_path: Path) -> None:
    # The first run is ready and ends, the second one fails, the third one goes on.
    program = """
import pathlib, sys
file = pathlib.Path(sys.argv[1])
file.write_text(file.read_text() + "x")
if file.read_text() == "xx":
    sys.exit(2)
print("ready", flush=True)
if file.read_text() == "xxx":
    input()
"""
    runs = tmp_path / "runs"
    runs.write_text("")
    place = Place(number=1, of=1, server="shop-1", folder="unused")
    worker = Worker([sys.executable, "-c", program, str(runs)], place)
    await worker.start()
    keeping = asyncio.create_task(worker.keep())
    await eventually(lambda: worker.restarts)
    assert (runs.read_text(), worker.restarts) == ("xxx", 1)
    worker.signal(signal.SIGTERM)
    await keeping
    await worker.end(PATIENCE_S)


async def test_lines_that_a_worker_prints_before_it_is_ready_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "fuseboard.sidecar")
    program = r"import os; os.write(1, b'warning: \xff\n\nready or not\nready\n'); input()"
    place = Place(number=1, of=1, server="shop-1", folder="unused")
    worker = Worker([sys.executable, "-c", program], place)
    await worker.start()
    assert [record.getMessage() for record in caplog.records] == [
        "sidecar.worker_printed: worker 1: warning: \ufffd",
        "sidecar.worker_printed: worker 1: ready or not",
    ]
    worker.signal(signal.SIGTERM)
    await worker.end(PATIENCE_S)


async def test_a_long_line_of_a_worker_does_not_keep_it_from_starting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "fuseboard.sidecar")
    program = r"import os; os.write(1, b'x' * 200_000 + b'\nready\n'); input()"
    place = Place(number=1, of=1, server="shop-1", folder="unused")
    worker = Worker([sys.executable, "-c", program], place)
    await worker.start()
    assert caplog.messages[0] == "sidecar.worker_printed: worker 1: ..."
    assert max(map(len, caplog.messages)) < 70_000, "no more of the line than the buffer takes"
    worker.signal(signal.SIGTERM)
    await worker.end(PATIENCE_S)


async def test_a_worker_that_prints_and_ends_before_it_is_ready_has_not_started() -> None:
    place = Place(number=1, of=1, server="shop-1", folder="unused")
    worker = Worker([sys.executable, "-c", "print('warning')"], place)
    with pytest.raises(Misconfigured, match="worker 1 did not start"):
        await worker.start()
    await worker.end(PATIENCE_S)


async def test_a_worker_notices_once_that_the_process_that_started_it_is_gone() -> None:
    mine, other = os.pipe()
    noticed: list[int] = []
    try:
        when_it_ends(mine, lambda: noticed.append(1))
        os.close(other)
        await eventually(lambda: noticed)
        for _ in range(20):
            await asyncio.sleep(0)
        assert noticed == [1]
    finally:
        os.close(mine)


async def test_what_a_worker_refuses_is_counted_as_lost(tmp_path: Path) -> None:
    place = Place(number=1, of=2, server="shop-1-1", folder=str(tmp_path))
    listeners, peers = Listeners(), Peers(place)
    await listeners.listen_unix(Echo(), http1.Connections(http1.Bounds()), place.socket(2))
    try:
        for path in ("/", "/defect", "/"):
            assert peers.hand_on("p2-id", path, GiveBack(permit="p2-id"))
        await eventually(lambda: not len(peers))
        assert peers.lost == 1
    finally:
        await peers.stop()
        await listeners.stop()


async def test_few_messages_wait_for_a_worker_and_are_lost_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuseboard.sidecar.peers.MAX_HANDED_ON", 3)
    peers = Peers(Place(number=1, of=2, server="shop-1-1", folder=str(tmp_path)))
    handed_on = [peers.hand_on("p2-id", "/", GiveBack(permit="p2-id")) for _ in range(4)]
    assert handed_on == [True, True, True, False]
    await eventually(lambda: not len(peers))
    assert peers.lost == 4


async def test_reports_that_wait_for_a_worker_go_together_as_far_as_it_reads_them(tmp_path: Path) -> None:
    place = Place(number=1, of=2, server="shop-1-1", folder=str(tmp_path))
    listeners, peers, echo = Listeners(), Peers(place), Echo()
    await listeners.listen_unix(echo, http1.Connections(PRIVATE), place.socket(2))
    try:
        for number in range(2 * MAX_REPORTS + 1):
            assert peers.hand_on(f"p2-{number}", REPORTS_PATH, Report(permit=f"p2-{number}", status=200))
        await eventually(lambda: not len(peers))
        sent = [msgspec.json.decode(request.body, type=list[Report]) for request in echo.asked]
        assert [len(reports) for reports in sent] == [MAX_REPORTS, MAX_REPORTS, 1]
        assert peers.lost == 0
    finally:
        await peers.stop()
        await listeners.stop()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--workers", "0"], "--workers must be 1 to 64"),
        (
            ["--workers", "2"],
            "--workers needs --shared, or --envoy-unix with --listen off and without --unix",
        ),
    ],
)
def test_workers_are_for_a_node(options: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sidecar", "--no-token", *options]) == 2
    assert says in capsys.readouterr().err


def test_the_names_of_workers_must_not_be_too_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEBOARD_REDIS_URL", "off")
    monkeypatch.setenv("FUSEBOARD_SERVER", "n" * 63)
    options = ["--shared", "--unix", str(tmp_path / "sock"), "--workers", "2"]
    assert main(["sidecar", "--no-token", "--listen", "127.0.0.1:0", *options]) == 2
    assert "FUSEBOARD_SERVER has 63 characters" in capsys.readouterr().err


def test_a_port_that_another_sidecar_has_is_not_shared(
    limits: redis.Redis,
    redis_url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with working(limits, redis_url, tmp_path, policy()) as (one, _):
        monkeypatch.setenv("FUSEBOARD_REDIS_URL", redis_url)
        address, other = one.url.removeprefix("http://"), str(tmp_path / "other")
        more = ["--shared", "--no-token", "--unix", other, "--workers", "2", "--listen", address]
        assert main(["sidecar", *more, "--probes", "off"]) == 2
        assert f"--listen {address} cannot be used" in capsys.readouterr().err
