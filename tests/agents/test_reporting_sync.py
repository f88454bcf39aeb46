"""The heartbeat thread with a real HTTP server that works, fails, or is missing."""

import json
import random
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from fuseboard.contract.sync import MAX_BODY_BYTES, Applied, BreakerView, SyncRequest, decode_request
from fuseboard.contract.words import Mode, Outcome
from fuseboard.reporting import heartbeat as beating
from fuseboard.reporting import sync_thread as syncing
from fuseboard.reporting.connection import Connection
from fuseboard.reporting.counters import Counters
from fuseboard.reporting.heartbeat import (
    HEARTBEAT_BYTES,
    Exchange,
    Gateway,
    HeartbeatFailure,
    PodState,
    encode_bounded,
)
from fuseboard.reporting.http_response import ResponseError
from fuseboard.reporting.sync_thread import SyncThread
from fuseboard.settings import AgentSettings
from tests.agents.gateways import FakeGateway, Reply, gateway_running
from tests.agents.test_configuration import POLICY
from tests.waiting import wait_until

STATE = PodState(
    applied=Applied(), mode=Mode.SHARED, mode_for_ms=5, mode_cause="connected", breakers=(), want=("acme",)
)


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with gateway_running() as running:
        yield running


class Beater:
    def __init__(self, url: str, *, state: Callable[[], PodState] = lambda: STATE) -> None:
        settings = AgentSettings(
            redis_url="redis://127.0.0.1:1", url=url, token="fb_sel_secret", server="web-1", service="shop"
        )
        self.counters = Counters()
        self.received: list[Exchange] = []
        self.rounds = 0
        self.ended = threading.Event()
        self.sync = SyncThread(
            gateway=Gateway(settings=settings, counters=self.counters, state=state),
            receive=self.received.append,
            after_heartbeat=self._after,
            ended=self.ended.set,
            rng=random.Random(1),
        )

    def _after(self) -> None:
        self.rounds += 1


@contextmanager
def beating_at(url: str, **options: Callable[[], PodState]) -> Iterator[Beater]:
    beater = Beater(url, **options)
    beater.sync.start()
    try:
        yield beater
    finally:
        beater.sync.stop()
        assert beater.ended.wait(30)


class TestBeats:
    def test_a_beat_says_who_and_what_and_brings_back_the_configuration(self, gateway: FakeGateway):
        gateway.publish(POLICY, revision=42)
        with beating_at(gateway.url) as beater:
            wait_until(lambda: beater.received)
        beat, response = beater.received[0].request, beater.received[0].response
        assert (beat.environment, beat.service, beat.server) == ("production", "shop", "web-1")
        assert (beat.mode, beat.mode_cause, beat.want) == (Mode.SHARED, "connected", ("acme",))
        assert gateway.tokens[0] == "Bearer fb_sel_secret"
        assert response.head.revision == 42
        assert bytes(response.policy)

    def test_half_a_character_in_the_cause_of_a_mode_costs_no_heartbeat(self, gateway: FakeGateway):
        state = msgspec.structs.replace(STATE, mode_cause="no such file: \udcff")
        with beating_at(gateway.url, state=lambda: state) as beater:
            wait_until(lambda: beater.received)
        assert gateway.beats[0].mode_cause == "no such file: ?"

    def test_the_last_heartbeat_signs_off(self, gateway: FakeGateway):
        with beating_at(gateway.url) as beater:
            wait_until(lambda: beater.received)
        assert [beat.leaving for beat in gateway.beats] == [False, True]

    def test_beats_come_at_the_gateways_pace_on_one_connection(self, gateway: FakeGateway):
        gateway.next_ms = 50
        with beating_at(gateway.url) as beater:
            wait_until(lambda: len(beater.received) >= 5)
            assert gateway.connections == 1
        sequences = [beat.sequence for beat in gateway.beats]
        assert sequences == sorted(set(sequences))
        assert len({beat.boot for beat in gateway.beats}) == 1

    def test_many_changes_at_once_are_one_beat_more(self, gateway: FakeGateway):
        with beating_at(gateway.url) as beater:
            wait_until(lambda: beater.rounds == 1)
            for _ in range(500):
                beater.sync.heartbeat_soon()
            wait_until(lambda: len(gateway.beats) == 2)
            first, second = (exchange.asked_ns for exchange in _two(beater))
            assert second - first >= syncing.MIN_GAP_S * 0.9e9
            assert len(gateway.beats) == 2

    def test_a_kept_connection_that_was_closed_meanwhile_is_opened_again(self, gateway: FakeGateway):
        gateway.replies = [Reply(headers=(("Content-Type", "application/json"), ("Connection", "close")))]
        gateway.replies[0] = gateway.replies[0]._replace(body=_response_body(gateway))
        with beating_at(gateway.url) as beater:
            wait_until(lambda: beater.rounds == 1)
            beater.sync.heartbeat_soon()
            wait_until(lambda: len(beater.received) == 2)
            assert beater.sync.failures[HeartbeatFailure.UNREACHABLE] == 0

    def test_a_loop_that_is_busy_does_not_make_the_server_look_dead(self, gateway: FakeGateway):
        states: list[PodState | Exception] = [STATE, syncing.LoopGoneError("busy")]

        def state() -> PodState:
            found = states.pop(0) if len(states) > 1 else states[0]
            if isinstance(found, Exception):
                raise found
            return found

        with beating_at(gateway.url, state=state) as beater:
            wait_until(lambda: beater.rounds == 1)
            beater.sync.heartbeat_soon()
            wait_until(lambda: len(gateway.beats) == 2)
        assert gateway.beats[1].mode is Mode.SHARED


def _two(beater: Beater) -> list[Exchange]:
    wait_until(lambda: len(beater.received) >= 2)
    return beater.received[:2]


def _response_body(gateway: FakeGateway) -> bytes:
    return json.dumps(
        {
            "server_time_us": 1,
            "next_ms": gateway.next_ms,
            "live_servers": 1,
            "head": {"epoch": 1, "revision": 1, "hash": ""},
        }
    ).encode()


def stall(connection: socket.socket) -> None:
    """A byte now and then, for ever: each read is answered, the answer never ends."""
    try:
        connection.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n"
        )
        for _ in range(10_000):
            connection.sendall(b" ")
            time.sleep(0.01)
    except OSError:
        return


def cut_short(connection: socket.socket) -> None:
    connection.sendall(
        b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{"server_time'
    )


def chunks_cut_short(connection: socket.socket) -> None:
    connection.sendall(
        b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"ser'
    )


def no_http(connection: socket.socket) -> None:
    connection.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")


HTML = (("Content-Type", "text/html"),)
ELSEWHERE = (("Content-Type", "application/json"), ("Location", "http://127.0.0.1:1/stolen"))


class TestTrouble:
    @pytest.fixture(autouse=True)
    def _quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(syncing, "BACKOFF_S", (0.001, 0.002, 0.01))
        monkeypatch.setattr(syncing, "REFUSED_PACE_S", 0.01)

    @pytest.mark.parametrize(
        ("reply", "failure"),
        [
            (Reply(status=200, body=b"<html>Welcome</html>", headers=HTML), HeartbeatFailure.WRONG),
            (Reply(status=200, body=b'{"server_time_us":'), HeartbeatFailure.WRONG),
            (Reply(status=200, body=b'{"hello":"world"}'), HeartbeatFailure.WRONG),
            (Reply(status=200, body=b"[" * 50_000), HeartbeatFailure.WRONG),
            (Reply(status=204), HeartbeatFailure.WRONG),
            (Reply(status=302, headers=ELSEWHERE), HeartbeatFailure.WRONG),
            (Reply(status=307, headers=ELSEWHERE), HeartbeatFailure.WRONG),
            (Reply(status=404), HeartbeatFailure.WRONG),
            (Reply(status=413), HeartbeatFailure.WRONG),
            (Reply(status=401), HeartbeatFailure.REFUSED),
            (Reply(status=403), HeartbeatFailure.REFUSED),
            (Reply(status=429), HeartbeatFailure.BUSY),
            (Reply(status=500), HeartbeatFailure.BUSY),
            (Reply(status=503), HeartbeatFailure.BUSY),
            (Reply(raw=cut_short), HeartbeatFailure.UNREACHABLE),
            (Reply(raw=chunks_cut_short), HeartbeatFailure.UNREACHABLE),
            (Reply(raw=no_http), HeartbeatFailure.UNREACHABLE),
        ],
    )
    def test_an_answer_that_cannot_be_used_is_counted_and_the_next_one_heals(
        self, gateway: FakeGateway, reply: Reply, failure: HeartbeatFailure
    ):
        gateway.replies = [reply]
        with beating_at(gateway.url) as beater:
            wait_until(lambda: beater.received)
            assert beater.sync.failures[failure] == 1
            assert sum(beater.sync.failures.values()) == 1

    def test_an_answer_that_trickles_in_for_ever_is_given_up(
        self, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(beating, "TOTAL_TIMEOUT_S", 0.5)
        gateway.replies = [Reply(raw=stall)]
        with beating_at(gateway.url) as beater:
            wait_until(lambda: beater.received)
            assert beater.sync.failures[HeartbeatFailure.UNREACHABLE] >= 1

    def test_an_endless_answer_is_refused_while_it_is_read(self, gateway: FakeGateway):
        gateway.replies = [Reply(body=b" " * 100_000)]
        connection = Connection(
            gateway.url + "/x", headers={"Authorization": "x"}, timeout_s=5, total_s=5, max_bytes=50_000
        )
        request = SyncRequest(
            environment="e", service="s", server="s", boot="12345678", sequence=1, agent_version="0"
        )
        with pytest.raises(ResponseError, match="more than 50000"):
            connection.post(encode_bounded(request))

    def test_a_refused_token_is_logged_once_and_retried(self, gateway: FakeGateway, caplog):
        gateway.replies = [Reply(status=401)] * 3
        with beating_at(gateway.url) as beater:
            wait_until(lambda: beater.received)
        loud = [record for record in caplog.records if record.levelname == "ERROR"]
        assert len(loud) == 1
        assert "FUSEBOARD_TOKEN" in loud[0].getMessage()
        assert "fb_sel_secret" not in caplog.text

    @pytest.mark.parametrize(("refusals", "soon"), [(3, True), (4, False)])
    def test_a_new_token_that_the_gateway_does_not_know_yet_is_tried_again_soon(
        self, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch, refusals: int, soon: bool
    ):
        """The pod was silent for 30 s after its first 401, and an alert named it."""
        monkeypatch.setattr(syncing, "REFUSED_PACE_S", 3600.0)
        gateway.replies = [Reply(status=401)] * refusals
        with beating_at(gateway.url) as beater:
            wait_until(lambda: beater.sync.failures[HeartbeatFailure.REFUSED] == refusals)
            if soon:
                wait_until(lambda: beater.received)
            else:
                wait_until(lambda: beater.sync._due > time.monotonic() + 2000)
                assert not beater.received

    def test_retry_after_is_honoured_up_to_its_cap(
        self, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(syncing, "BACKOFF_S", (0.001, 0.002, 0.3))
        patient = (("Content-Type", "application/json"), ("Retry-After", "3600"))
        gateway.replies = [Reply(status=503, headers=patient)]
        began = time.monotonic()
        with beating_at(gateway.url) as beater:
            wait_until(lambda: gateway.beats)
            beater.sync.heartbeat_soon()  # a change does not hurry a gateway in trouble
            wait_until(lambda: beater.received)
        assert 0.3 <= time.monotonic() - began < 60

    @pytest.mark.parametrize("value", ["Wed, 21 Oct 2026 07:28:00 GMT", "-5", "1e9", "٣", ""])
    def test_a_retry_after_that_is_no_number_of_seconds_is_ignored(self, gateway: FakeGateway, value: str):
        headers = (("Content-Type", "application/json"), ("Retry-After", value.encode().decode("latin-1")))
        gateway.replies = [Reply(status=503, headers=headers)]
        with beating_at(gateway.url) as beater:
            wait_until(lambda: beater.received)

    def test_a_missing_gateway_is_retried_and_the_thread_can_be_stopped(self):
        with beating_at("http://127.0.0.1:1") as beater:
            wait_until(lambda: beater.sync.failures[HeartbeatFailure.UNREACHABLE] >= 3)
            assert beater.rounds >= 3

    def test_an_unsigned_certificate_is_never_accepted(self, tmp_path: Path):
        key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"),
                *("-keyout", str(key), "-out", str(certificate)),
            ],
            check=True,
            capture_output=True,
        )
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(10)

        def serve() -> None:
            for _ in range(2):
                plain, _ = listener.accept()
                with plain:
                    try:
                        context.wrap_socket(plain, server_side=True).close()
                    except (ssl.SSLError, OSError):
                        continue

        thread = threading.Thread(target=serve)
        thread.start()
        with beating_at(f"https://127.0.0.1:{listener.getsockname()[1]}") as beater:
            wait_until(lambda: beater.sync.failures[HeartbeatFailure.UNREACHABLE] >= 1)
            assert beater.received == []
        thread.join(10)
        listener.close()

    def test_a_defect_in_what_is_done_with_an_answer_does_not_end_the_thread(
        self, gateway: FakeGateway, caplog
    ):
        gateway.next_ms = 50
        beater = Beater(gateway.url)
        failing = iter([True])

        def receive(exchange: Exchange) -> None:
            if next(failing, False):
                raise RuntimeError("a defect")
            beater.received.append(exchange)

        beater.sync._receive = receive
        beater.sync.start()
        wait_until(lambda: beater.received)
        beater.sync.stop()
        assert beater.ended.wait(30)
        assert "sync.defect" in caplog.text


class TestBodies:
    def test_a_beat_never_exceeds_what_the_gateway_accepts(self, caplog: pytest.LogCaptureFixture):
        caplog.set_level("INFO", logger="fuseboard")
        counters = Counters()
        for number in range(500):
            counters.call(f"a-dependency-with-a-long-name-{number:030}", Outcome.OK)
        request = SyncRequest(
            environment="production",
            service="shop",
            server="web-1",
            boot="12345678",
            sequence=1,
            agent_version="0",
            counters=counters.wire(),
            breakers=tuple(
                BreakerView(dependency=f"{number:064}", generation=2**53, for_ms=10**12, window_calls=2**53)
                for number in range(500)
            ),
            want=tuple("界" * 190 + f"{number}" for number in range(1000)),
        )
        assert len(msgspec.json.encode(request)) > MAX_BODY_BYTES
        body = encode_bounded(request)
        assert len(body) <= HEARTBEAT_BYTES / 2
        sent = decode_request(body)
        assert len(sent.breakers) > 100
        left_out = 500 - len(sent.counters.dependencies) + 500 - len(sent.breakers) + 1000 - len(sent.want)
        assert sent.cut == left_out
        assert f"heartbeat.cut {left_out} entries" in caplog.text
