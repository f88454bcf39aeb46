"""Receivers on loopback: a chat over HTTP, and a mail server."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from msgspec import json


class Chat:
    """Remembers paths and bodies. ``answers`` are used up first; ``None`` waits until the sink closes."""

    def __init__(self, host: str = "127.0.0.1", *answers: int | None, location: str = "") -> None:
        self.got: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.answers = list(answers)
        self.closing = threading.Event()
        chat = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                chat.headers.append({name.lower(): value for name, value in self.headers.items()})
                chat.bodies.append(body)
                chat.got.append((self.path, json.decode(body)))
                answer = chat.answers.pop(0) if chat.answers else 200
                if answer is None:
                    chat.closing.wait(60)
                    return
                self.send_response(answer)
                if location:
                    self.send_header("location", location)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer((host, 0), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def chat(*answers: int | None, host: str = "127.0.0.1", location: str = "") -> Iterator[Chat]:
    sink = Chat(host, *answers, location=location)
    try:
        yield sink
    finally:
        sink.close()


@contextmanager
def endless() -> Iterator[int]:
    """A server whose answer to POST never ends; yields its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(b"x" * 65_536)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def mail_server() -> Iterator[tuple[int, list[EmailMessage]]]:
    """A server that accepts every mail; yields its port and what it got."""
    got: list[EmailMessage] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self._say("220 sink")
            while line := self.rfile.readline().strip().upper():
                if line == b"DATA":
                    self._say("354 go on")
                    got.append(self._mail())
                self._say("221 bye" if line == b"QUIT" else "250 ok")
                if line == b"QUIT":
                    return

        def _mail(self) -> EmailMessage:
            lines = []
            while (line := self.rfile.readline()) not in (b".\r\n", b""):
                lines.append(line)
            mail = message_from_bytes(b"".join(lines), policy=policy.default)
            assert isinstance(mail, EmailMessage)
            return mail

        def _say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server.server_address[1], got
        finally:
            server.shutdown()
            thread.join()
