"""TLS in front of a server without TLS: the embedded servers are built without."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

#: The first message of a Postgres client that wants TLS.
_SSL_REQUEST = bytes.fromhex("0000000804d2162f")


@contextmanager
def relay(certificate: ssl.SSLContext, port: int, *, postgres: bool = False) -> Iterator[int]:
    """A TLS port on loopback, forwarded in the clear to ``port``."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []
    open_sockets: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=serve, args=(client,), daemon=True)
            threads.append(thread)
            thread.start()

    def serve(client: socket.socket) -> None:
        try:
            client.settimeout(10)
            if postgres:
                asked = client.recv(8, socket.MSG_WAITALL)
                # A client that would continue in the clear is refused.
                if asked != _SSL_REQUEST:
                    client.close()
                    return
                client.sendall(b"S")
            inside = certificate.wrap_socket(client, server_side=True)
            inside.settimeout(None)
        except OSError:
            client.close()
            return
        behind = socket.create_connection(("127.0.0.1", port))
        open_sockets.extend((inside, behind))
        back = threading.Thread(target=pump, args=(behind, inside), daemon=True)
        threads.append(back)
        back.start()
        pump(inside, behind)

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for end in open_sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in (accepting, *threads):
            thread.join(5)
        for end in open_sockets:
            end.close()
