"""Webhooks over real sockets: signatures, TLS, redirects, slow receivers, and names that point inside."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import ip_network
from typing import Any

import pytest
import trustme

from controlplane.alerts.delivery.addresses import AddressRefused
from controlplane.alerts.delivery.http import MAX_READ, NotDelivered, post
from controlplane.alerts.delivery.watchdog import ping
from tests.controlplane.alerts.delivery.refused_addresses import REFUSED

LOOPBACK = (ip_network("127.0.0.0/8"),)


@contextmanager
def receiver(
    answer: Callable[[BaseHTTPRequestHandler], None], context: ssl.SSLContext | None = None
) -> Iterator[tuple[int, list[Any]]]:
    """A receiver on loopback; yields its port and what it got."""
    got: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            got.append((self.path, dict(self.headers.items()), body))
            answer(self)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port, got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ok(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("content-length", "4")
    handler.end_headers()
    handler.wfile.write(b"fine")


def test_a_request_arrives_as_it_was_made() -> None:
    with receiver(ok) as (port, got):
        answer = post(
            f"http://127.0.0.1:{port}/hooks?team=a", b'{"a":1}', {"webhook-id": "x"}, allowed=LOOPBACK
        )
    assert (answer.status, answer.text) == (200, "fine")
    [(path, headers, body)] = got
    assert (path, body, headers["webhook-id"]) == ("/hooks?team=a", b'{"a":1}', "x")
    assert headers["Host"] == f"127.0.0.1:{port}"


def test_an_address_inside_is_refused_before_a_connection() -> None:
    with receiver(ok) as (port, got):
        for host in ("127.0.0.1", "localhost", "127.1", "2130706433", "[::ffff:127.0.0.1]"):
            with pytest.raises(AddressRefused, match="not a public address"):
                post(f"http://{host}:{port}/", b"", {})
    assert got == []


@pytest.mark.parametrize("address", REFUSED)
def test_neither_a_webhook_nor_the_watchdog_connects_to_an_address_that_is_refused(
    address: str, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    def resolved(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    with pytest.raises(AddressRefused, match="not a public address"):
        post("https://hooks.example.com/", b"", {})
    settings.WATCHDOG_URL = "https://watchdog.example.com/ping"
    assert ping() == "refused"


def test_every_address_of_a_name_must_be_public(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(host: str, port: int, **_: Any) -> list[Any]:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ("93.184.216.34", "127.0.0.1")
        ]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    with pytest.raises(AddressRefused, match=r"hooks\.example\.com is at 127\.0\.0\.1"):
        post("http://hooks.example.com/", b"", {})


def test_a_name_that_changes_its_address_gains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is resolved once: the second answer, which points inside, is never asked for."""
    asked = []
    real = socket.getaddrinfo
    with receiver(ok) as (port, got):

        def changing(host: str, *args: Any, **more: Any) -> list[Any]:
            if host != "hooks.example.com":
                return list(real(host, *args, **more))
            asked.append(host)
            address = "127.0.0.1" if len(asked) == 1 else "127.0.0.2"
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

        monkeypatch.setattr(socket, "getaddrinfo", changing)
        post(f"http://hooks.example.com:{port}/", b"", {}, allowed=(ip_network("127.0.0.1/32"),))
    assert asked == ["hooks.example.com"]
    assert got[0][1]["Host"] == f"hooks.example.com:{port}"


def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    def away(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(307)
        handler.send_header("location", "http://127.0.0.1/inside")
        handler.send_header("content-length", "0")
        handler.end_headers()

    with receiver(away) as (port, got):
        assert post(f"http://127.0.0.1:{port}/", b"", {}, allowed=LOOPBACK).status == 307
    assert len(got) == 1


def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with receiver(ok) as (port, _):
        assert post(f"http://127.0.0.1:{port}/", b"", {}, allowed=LOOPBACK).status == 200


def test_the_certificate_must_be_of_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    theirs, ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("hooks.example.com").configure_cert(theirs)
    authority.configure_trust(ours)

    real = socket.getaddrinfo

    def resolve(host: str, port: int, *args: Any, **more: Any) -> list[Any]:
        if not host.endswith("example.com"):
            return list(real(host, port, *args, **more))
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    with receiver(ok, theirs) as (port, _):
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        known = post(f"https://hooks.example.com:{port}/", b"", {}, allowed=LOOPBACK, context=ours)
        assert known.status == 200
        with pytest.raises(NotDelivered, match=r"(?i)certificate"):
            post(f"https://other.example.com:{port}/", b"", {}, allowed=LOOPBACK, context=ours)


def test_a_receiver_that_sends_bytes_one_by_one_ends_in_time() -> None:
    ended = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        try:
            for byte in b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 10_000:
                handler.wfile.write(bytes((byte,)))
                if ended.wait(0.02):
                    return
        except OSError:
            return

    with receiver(drip) as (port, _):
        began = time.monotonic()
        with pytest.raises(NotDelivered):
            post(f"http://127.0.0.1:{port}/", b"", {}, allowed=LOOPBACK, most_s=0.5)
        # Without the bound it would take 200 s.
        assert time.monotonic() - began < 30
        ended.set()


def test_only_the_beginning_of_a_long_answer_is_read() -> None:
    def long(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(500)
        handler.send_header("retry-after", "120")
        handler.end_headers()
        try:
            for _ in range(1_000):
                handler.wfile.write(b"x" * 10_000)
        except OSError:
            return

    with receiver(long) as (port, _):
        answer = post(f"http://127.0.0.1:{port}/", b"", {}, allowed=LOOPBACK)
    assert (answer.status, len(answer.text), answer.retry_after_s) == (500, MAX_READ, 120.0)


def test_a_receiver_that_is_down_is_named_without_secrets() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(NotDelivered) as failed:
            post(f"http://user:secret@127.0.0.1:{port}/token", b"", {}, allowed=LOOPBACK)
    assert "secret" not in str(failed.value)
    assert "token" not in str(failed.value)
