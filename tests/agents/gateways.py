"""A gateway on a real socket. It answers what a test wants, and records every heartbeat."""

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import msgspec

from fuseboard.contract.policy import ConfigHead, Policy, TenantRecord, encode_policy, hash_of
from fuseboard.contract.seal_keys import SealKeys
from fuseboard.contract.sync import NO_POLICY, SyncRequest, SyncResponse, decode_request, encode


class Reply(NamedTuple):
    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "application/json"),)
    #: Written to the socket in place of a well-formed answer.
    raw: Callable[[socket.socket], None] | None = None


class FakeGateway:
    """Answers from ``policy`` and ``tenants``, unless ``replies`` holds something else to say first."""

    def __init__(self) -> None:
        self.beats: list[SyncRequest] = []
        self.tokens: list[str] = []
        self.connections = 0
        self.replies: list[Reply] = []
        self.always: Reply | None = None
        self.policy: Policy | None = None
        self.head = ConfigHead(epoch=1, revision=1, hash="")
        self.tenants: dict[str, TenantRecord | None] = {}
        self.refetch = False
        self.next_ms = 60_000
        self.live_servers = 1
        self.seal_keys: SealKeys = ()
        self.delay_s = 0.0
        self.url = ""

    def publish(self, policy: Policy, *, revision: int, epoch: int = 1) -> None:
        self.policy = policy
        self.head = ConfigHead(epoch=epoch, revision=revision, hash=hash_of(encode_policy(policy)))

    def answer(self, beat: SyncRequest) -> Reply:
        if self.replies:
            return self.replies.pop(0)
        return self.always or Reply(body=encode(self.response(beat)))

    def response(self, beat: SyncRequest) -> SyncResponse:
        known = beat.applied.hash == self.head.hash
        unchanged = known or self.policy is None
        return SyncResponse(
            server_time_us=time.time_ns() // 1000,
            next_ms=self.next_ms,
            live_servers=self.live_servers,
            head=self.head,
            policy=NO_POLICY if unchanged else msgspec.Raw(encode_policy(self.policy)),
            tenants={tenant: self.tenants.get(tenant) for tenant in beat.want},
            refetch_tenants=self.refetch and beat.applied.revision < self.head.revision,
            seal_keys=self.seal_keys,
        )


@contextmanager
def gateway_running(gateway: FakeGateway | None = None) -> Iterator[FakeGateway]:
    gateway = gateway or FakeGateway()
    server = _Server(("127.0.0.1", 0), _Handler)
    server.gateway = gateway
    gateway.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield gateway
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    gateway: FakeGateway

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A pod that stops does not wait for its answer. A late line would be output of another test."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.gateway.connections += 1

    def do_POST(self) -> None:
        gateway = self.server.gateway
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if gateway.delay_s:
            time.sleep(gateway.delay_s)
        beat = decode_request(body)
        reply = gateway.answer(beat)
        gateway.tokens.append(self.headers["Authorization"])
        gateway.beats.append(beat)
        if reply.raw is not None:
            reply.raw(self.connection)
            self.close_connection = True
            return
        self.send_response(reply.status)
        for name, value in reply.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        """Tests look at ``beats``."""
