"""Who may ask a sidecar, over real sockets: the user, the token, Host and Origin, in every combination."""

import asyncio
import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fuseboard.reporting.token import TokenSource
from fuseboard.sidecar.app import Options
from tests.agents.servers import POLICY
from tests.sidecar.conftest import Beside
from tests.sidecar.peers import Peer

#: Each header as it is sent, and whether it is the application's.
TOKENS = {
    "Authorization: Bearer secret": True,
    "authorization: bearer secret": True,
    "": False,
    "Authorization: Bearer Secret": False,
    "Authorization: Bearer secret2": False,
    "Authorization: Basic secret": False,
    "Authorization: Bearer s\xe9cret": False,
}
HOSTS = {
    "Host: 127.0.0.1:7480": True,
    "Host: localhost": True,
    "Host: [::1]:7480": True,
    "": False,
    "Host: limits.example.com": False,
    "Host: 127.0.0.1.example.com": False,
    "Host: 127.0.0.1:7480@evil": False,
}
ORIGINS = {"": True, "Origin: null": False, "Origin: http://127.0.0.1:7480": False}
BODY = '{"dependency": "payments"}'


def call(*headers: str) -> bytes:
    lines = [*filter(None, headers), "Content-Type: application/json", f"Content-Length: {len(BODY)}"]
    head = "\r\n".join(["POST /v1/calls HTTP/1.1", *lines])
    return f"{head}\r\n\r\n{BODY}".encode("latin-1")


async def kind_of(peer: Peer, *headers: str) -> tuple[int, str]:
    """The status of the answer, and the last word of the problem's type."""
    status, _, body = await peer.ask(call(*headers))
    return status, json.loads(body).get("type", "").rpartition(":")[2]


@pytest.mark.parametrize("needs_token", [True, False])
async def test_over_tcp_origin_host_and_token_must_all_be_right(beside: Beside, needs_token: bool) -> None:
    token = TokenSource("secret", None) if needs_token else None
    async with beside(POLICY, Options(listen=("127.0.0.1", 0), token=token)) as client:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", client.running.port))
        for one, host, origin in product(TOKENS, HOSTS, ORIGINS):
            expected = (200, "")
            if not ORIGINS[origin]:
                expected = (403, "origin")
            elif not HOSTS[host]:
                expected = (403, "host")
            elif needs_token and not TOKENS[one]:
                expected = (401, "token")
            assert await kind_of(peer, one, host, origin) == expected, (one, host, origin)
        peer.writer.close()
        # Only those were admitted.
        right = sum(HOSTS.values()) * (sum(TOKENS.values()) if needs_token else len(TOKENS))
        assert client.sidecar.permits.issued == right


@pytest.mark.parametrize("users", ["this", "another", "both", "any"])
async def test_over_the_unix_socket_the_user_and_no_origin_decide(
    beside: Beside, tmp_path: Path, users: str
) -> None:
    this, path = os.getuid(), str(tmp_path / "fuseboard.sock")
    named = {"this": {this}, "another": {this + 1}, "both": {this, this + 1}, "any": set()}[users]
    options = Options(listen=None, unix=path, uids=frozenset(named), token=TokenSource("secret", None))
    async with beside(POLICY, options):
        peer = Peer(*await asyncio.open_unix_connection(path))
        for one, host, origin in product(TOKENS, HOSTS, ORIGINS):
            expected = (200, "")
            if not ORIGINS[origin]:
                expected = (403, "origin")
            elif users == "another":
                expected = (403, "uid")
            assert await kind_of(peer, one, host, origin) == expected, (one, host, origin)
        peer.writer.close()


#: Root can be another user. Others ask as themselves.
USER = 65534 if os.getuid() == 0 else os.getuid()
#: A process of that user, which asks over the unix socket and prints the status.
STRANGER = """
import os, socket, sys
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
with socket.socket(socket.AF_UNIX) as peer:
    peer.connect(sys.argv[1])
    peer.sendall(sys.stdin.buffer.read())
    print(peer.recv(4096).split()[1].decode())
"""


def open_to_all(path: Path) -> None:
    """Only the option decides."""
    path.chmod(0o666)
    path.parent.chmod(0o755)


@pytest.mark.parametrize(("uid", "status"), [(USER, "200"), (USER + 1, "403")])
async def test_the_kernel_says_which_user_asks(beside: Beside, uid: int, status: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "fuseboard.sock")
        async with beside(POLICY, Options(listen=None, unix=str(path), uids=frozenset({uid}))):
            open_to_all(path)
            stranger = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", STRANGER, str(path)), stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            printed, _ = await stranger.communicate(call("Host: sidecar"))
    assert printed.decode().strip() == status
