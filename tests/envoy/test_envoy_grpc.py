"""The services for Envoy over gRPC: bytes, bounds, sockets and certificates."""

import asyncio
import os
import socket
import stat
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random

import grpc
import httpx
import pytest

from fuseboard.cli import main
from fuseboard.envoy import grpc_server
from fuseboard.envoy import rls_pb2 as pb
from fuseboard.envoy.asks import InvalidMessage
from fuseboard.envoy.grpc_server import MAX_STREAMS, GrpcListener, GrpcServer, serving
from fuseboard.envoy.service import SHOULD_RATE_LIMIT, Answered
from fuseboard.errors import Misconfigured
from fuseboard.sidecar import app
from tests.envoy.authority import Authority
from tests.envoy.conftest import Answering, policy_of
from tests.envoy.messages import OK, OVER, codes, descriptor, request
from tests.waiting import PATIENCE_S, eventually

LOOPBACK = ("127.0.0.1", 0)
#: Bytes of a message.
MOST, MOST_OF_HEAD = 10_000, 20_000
#: The preface of a client of HTTP/2 with empty settings, and the types of frames.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
SETTINGS, GOAWAY = 4, 7
#: Settings of HTTP/2.
MAX_CONCURRENT_STREAMS, MAX_HEADER_LIST_SIZE = 3, 6


def exists(path: str) -> bool:
    return os.path.lexists(path)


def mode(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


class Echo:
    """Answers with what it got, or waits for ``go``."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.waiting = self.cancelled = 0

    async def answer(self, body: bytes) -> Answered:
        if body == b"invalid":
            raise InvalidMessage("no descriptor")
        if body == b"wait":
            self.waiting += 1
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return Answered(b"<" + body + b">")


@asynccontextmanager
async def echoing(listener: GrpcListener, echo: Echo | None = None) -> AsyncIterator[GrpcServer]:
    paths = {SHOULD_RATE_LIMIT: (echo or Echo()).answer}
    async with serving(paths, listener, head_bytes=MOST_OF_HEAD, body_bytes=MOST) as running:
        yield running


async def ask(channel: grpc.aio.Channel, body: bytes, path: str = SHOULD_RATE_LIMIT) -> bytes:
    answer: bytes = await channel.unary_unary(path)(body, timeout=PATIENCE_S, wait_for_ready=True)
    return answer


async def code_of(channel: grpc.aio.Channel, body: bytes, path: str = SHOULD_RATE_LIMIT) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await ask(channel, body, path)
    return failed.value.code()


async def test_bytes_are_answered_within_bounds() -> None:
    async with echoing(GrpcListener(address=LOOPBACK)) as running:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
            assert await ask(channel, b"hello") == b"<hello>"
            assert await code_of(channel, b"invalid") is grpc.StatusCode.INVALID_ARGUMENT
            assert await code_of(channel, b"hello", "/a.B/C") is grpc.StatusCode.UNIMPLEMENTED
            assert len(await ask(channel, b"x" * MOST)) == MOST + 2
            assert await code_of(channel, b"x" * (MOST + 1)) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert running.active == 0


async def test_a_client_that_leaves_cancels_its_question() -> None:
    echo = Echo()
    async with echoing(GrpcListener(address=LOOPBACK), echo) as running:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
            call = channel.unary_unary(SHOULD_RATE_LIMIT)(b"wait")
            await eventually(lambda: echo.waiting)
            call.cancel()
            await eventually(lambda: echo.cancelled)
        await eventually(lambda: running.active == 0)


async def test_an_answer_that_waits_is_given_before_the_server_ends() -> None:
    echo = Echo()
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(echoing(GrpcListener(address=LOOPBACK), echo))
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{running.port}")
        call = asyncio.ensure_future(ask(channel, b"wait"))
        await eventually(lambda: echo.waiting)
        ending = asyncio.ensure_future(stack.aclose())

        async def is_closed() -> bool:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", running.port)
            except ConnectionError:
                return True
            writer.close()
            return False

        await eventually(is_closed)
        echo.go.set()
        await ending
    assert await call == b"<wait>"
    await channel.close()


async def test_a_client_hears_the_bounds_of_its_connection() -> None:
    async with echoing(GrpcListener(address=LOOPBACK)) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(PREFACE)
        head = await reader.readexactly(9)
        assert head[3] == SETTINGS
        content = await reader.readexactly(int.from_bytes(head[:3], "big"))
        writer.close()
    bounds = dict(struct.iter_unpack("!HI", content))
    assert (bounds[MAX_CONCURRENT_STREAMS], bounds[MAX_HEADER_LIST_SIZE]) == (MAX_STREAMS, MOST_OF_HEAD)


async def test_the_unix_socket_has_its_mode_and_is_not_taken_from_a_process(tmp_path: Path) -> None:
    path = str(tmp_path / "grpc.sock")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)  # a process that ended
    async with echoing(GrpcListener(address=path)):
        assert mode(path) == 0o660
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            assert await ask(channel, b"hello") == b"<hello>"
            with pytest.raises(OSError, match="in use"):
                async with echoing(GrpcListener(address=path)):
                    pass
            assert await ask(channel, b"again") == b"<again>"
    assert not exists(path)


async def test_a_port_that_is_in_use_is_an_error() -> None:
    async with echoing(GrpcListener(address=LOOPBACK)) as running:
        with pytest.raises(OSError, match="bind"):
            async with echoing(GrpcListener(address=("127.0.0.1", running.port))):
                pass


async def test_a_connection_that_gets_old_is_ended_in_order() -> None:
    listener = GrpcListener(address=LOOPBACK, connection_age_s=0.1)
    async with echoing(listener) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(PREFACE)
        kinds = []
        while GOAWAY not in kinds:
            head = await reader.readexactly(9)
            kinds.append(head[3])
            await reader.readexactly(int.from_bytes(head[:3], "big"))
        writer.close()


async def test_a_connection_on_which_nothing_begins_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "HANDSHAKE_S", 0.1)
    async with echoing(GrpcListener(address=LOOPBACK)) as running, asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        await reader.read()
        writer.close()


async def test_connections_beyond_the_bound_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "MAX_CONNECTIONS", 1)
    async with echoing(GrpcListener(address=LOOPBACK)) as running:
        first, one = await asyncio.open_connection("127.0.0.1", running.port)
        one.write(PREFACE)
        assert await first.readexactly(9)
        second, two = await asyncio.open_connection("127.0.0.1", running.port)
        two.write(PREFACE)
        with suppress(ConnectionResetError):  # it is closed with what it has not read
            assert await second.read() == b""
        one.close()
        two.close()


async def test_requests_beyond_the_bound_get_no_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "MAX_REQUESTS", 1)
    echo = Echo()
    async with (
        echoing(GrpcListener(address=LOOPBACK), echo) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        first = asyncio.ensure_future(ask(channel, b"wait"))
        await eventually(lambda: echo.waiting)
        assert await code_of(channel, b"hello") is grpc.StatusCode.RESOURCE_EXHAUSTED
        echo.go.set()
        assert await first == b"<wait>"
        assert await ask(channel, b"hello") == b"<hello>"


async def test_a_connection_alone_cannot_hold_all_places(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 2 * grpc_server.MAX_STREAMS <= grpc_server.MAX_REQUESTS
    monkeypatch.setattr(grpc_server, "MAX_STREAMS", 2)
    monkeypatch.setattr(grpc_server, "MAX_REQUESTS", 4)
    own = [("grpc.use_local_subchannel_pool", 1)]  # a connection for each channel

    async with echoing(GrpcListener(address=LOOPBACK)) as running, AsyncExitStack() as stack:

        async def connect() -> grpc.aio.Channel:
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{running.port}", options=own)
            await stack.enter_async_context(channel)
            await ask(channel, b"hello")
            return channel

        async def fill(channel: grpc.aio.Channel) -> None:
            """Begin more requests than the connection may have. None sends its message."""
            for _ in range(6):
                call = channel.stream_unary(SHOULD_RATE_LIMIT)()
                stack.callback(call.cancel)

        other, *hostile = [await connect() for _ in range(3)]
        await fill(hostile[0])
        for _ in range(20):
            assert await ask(other, b"hello") == b"<hello>"
        await fill(hostile[1])

        async def is_refused() -> bool:
            with suppress(grpc.aio.AioRpcError):
                await ask(other, b"hello")
                return False
            return True

        await eventually(is_refused)


async def test_whatever_bytes_come_the_next_request_is_answered() -> None:
    random = Random(32)
    async with echoing(GrpcListener(address=LOOPBACK)) as running:
        for number in range(200):
            reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
            begins = PREFACE if number % 2 else b""
            writer.write(begins + random.randbytes(random.randint(0, 2_000)))
            if number % 3:
                writer.close()  # before the answer
            else:
                writer.write_eof()
                with suppress(ConnectionError):
                    await reader.read()
                writer.close()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
            assert await ask(channel, b"hello") == b"<hello>"


def secure(authority: Authority, port: int, *names: str, trusts: Authority | None = None) -> grpc.aio.Channel:
    """A channel with a certificate of these names, or without one. It trusts its authority, or another."""
    key = chain = None
    if names:
        cert = authority.client(*names)
        key, chain = cert.private_key_pem.bytes(), cert.cert_chain_pems[0].bytes()
    credentials = grpc.ssl_channel_credentials((trusts or authority).ca.cert_pem.bytes(), key, chain)
    return grpc.aio.secure_channel(f"localhost:{port}", credentials)


async def test_certificates_are_checked_and_read_again(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with echoing(GrpcListener(address=LOOPBACK, tls=authority.tls)) as running:
        async with secure(authority, running.port, "other.example.com", "envoy-1.example.com") as channel:
            assert await ask(channel, b"hello") == b"<hello>"
        async with secure(authority, running.port, "other.example.com") as channel:
            assert await code_of(channel, b"hello") is grpc.StatusCode.PERMISSION_DENIED
        assert running.strangers == 1
        async with secure(authority, running.port) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary(SHOULD_RATE_LIMIT)(b"hello", timeout=PATIENCE_S)
        (tmp_path / "key.pem").unlink()
        async with secure(authority, running.port, "envoy-1.example.com") as channel:
            assert await ask(channel, b"hello") == b"<hello>"
        authority.renew()
        async with secure(authority, running.port, "envoy-1.example.com") as channel:
            assert await ask(channel, b"hello") == b"<hello>"


async def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.tls.client_ca.unlink()
    with pytest.raises(Misconfigured, match=r"ca\.pem"):
        async with echoing(GrpcListener(address=LOOPBACK, tls=authority.tls)):
            pass


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("cert.pem", "", r"--tls-cert \S+cert\.pem has no certificate"),
        ("cert.pem", "key.pem", r"--tls-cert \S+cert\.pem has no certificate"),
        ("ca.pem", "key.pem", r"--client-ca \S+ca\.pem has no certificate"),
        ("key.pem", "", r"--tls-key \S+key\.pem does not fit --tls-cert \S+cert\.pem"),
        ("key.pem", "cert.pem", r"--tls-key \S+key\.pem does not fit --tls-cert \S+cert\.pem"),
        ("key.pem", "another", r"--tls-key \S+key\.pem does not fit --tls-cert \S+cert\.pem"),
    ],
)
async def test_a_file_that_is_wrong_is_named_before_the_service_binds(
    name: str, content: str, problem: str, tmp_path: Path
) -> None:
    """``content`` is the file that has it, or nothing."""
    authority = Authority(tmp_path)
    (tmp_path / "another").write_bytes(authority.client("envoy-1.example.com").private_key_pem.bytes())
    (tmp_path / name).write_bytes((tmp_path / content).read_bytes() if content else b"")
    with pytest.raises(Misconfigured, match=problem):
        async with echoing(GrpcListener(address=LOOPBACK, tls=authority.tls)):
            pass


async def test_a_renewed_certificate_waits_for_its_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    async with echoing(GrpcListener(address=LOOPBACK, tls=authority.tls)) as running:
        renewed = authority.ca.issue_cert("localhost")
        renewed.cert_chain_pems[0].write_to_path(authority.tls.cert)
        for _ in range(3):
            async with secure(authority, running.port, "envoy-1.example.com") as channel:
                assert await ask(channel, b"hello") == b"<hello>"
        assert caplog.text.count("envoy.certificates") == 1
        renewed.private_key_pem.write_to_path(authority.tls.key)
        async with secure(authority, running.port, "envoy-1.example.com") as channel:
            assert await ask(channel, b"hello") == b"<hello>"


FILE = """
domain: edge
descriptors:
  - key: path
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: free
    rate_limit: {unlimited: true}
"""


async def test_the_answers_are_those_of_the_bridge(answering: Answering) -> None:
    listener = GrpcListener(address=LOOPBACK)
    number = 0

    def bodies(transport: str) -> list[bytes]:
        """Counters of their own, so that both start with the same."""
        path = ("path", f"/{transport}{number}")
        return [
            request(descriptor(path), descriptor(("other", "x")), descriptor(("free", "x"))),
            request(descriptor(path), domain="unknown"),
        ]

    async with answering(policy_of(FILE), envoy_grpc=listener) as envoy:
        transport = httpx.AsyncHTTPTransport(uds=envoy.path)
        kind = {"content-type": "application/x-protobuf"}
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://rls", headers=kind) as http,
            grpc.aio.insecure_channel(f"127.0.0.1:{envoy.running.grpc.port}") as channel,
        ):

            async def is_same() -> bool:
                nonlocal number
                number += 1
                over_http = [
                    (await http.post(SHOULD_RATE_LIMIT, content=body)).content for body in bodies("http")
                ]
                return over_http == [await ask(channel, body) for body in bodies("grpc")]

            # Seconds until the end of the day are in the answers, and pass between them.
            await eventually(is_same)
            # The wait in a refusal is spread, and so differs from answer to answer.
            spent = bodies("http")[0]
            over_http = (await http.post(SHOULD_RATE_LIMIT, content=spent)).content
            answers = [
                pb.RateLimitResponse.FromString(body) for body in (over_http, await ask(channel, spent))
            ]
            assert codes(answers[0]) == codes(answers[1]) == (OVER, [OVER, OK, OK])
            refused = await http.post(SHOULD_RATE_LIMIT, content=request())
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await ask(channel, request())
        assert (refused.status_code, refused.text) == (400, failed.value.details())
        assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT


TLS = ("--tls-cert", "c", "--tls-key", "k", "--client-ca", "a")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--envoy-grpc", "0.0.0.0:0"), "others can reach 0.0.0.0:0"),
        (("--envoy-grpc", "[::]:0"), "others can reach [::]:0"),
        (("--envoy-grpc", "192.0.2.1:0"), "others can reach 192.0.2.1:0"),
        (("--envoy-grpc", "0.0.0.0:0", *TLS), "TLS needs --envoy-grpc, --tls-cert"),
        (("--envoy-grpc", "0.0.0.0:0", *TLS, "--client-san", "*"), "cannot read"),
        (("--envoy-grpc", "unix:/run/s", *TLS, "--client-san", "*"), "has no certificates"),
        (("--unix", "/run/u", "--envoy-grpc", "unix:/run/s", "--uid", "1"), "use --uid with --envoy-unix"),
        (("--envoy-grpc", "unix:/run/s", "--envoy-unix", "/run/s"), "need a socket each"),
        (("--envoy-grpc", "localhost"), "--envoy-grpc must be HOST:PORT"),
        (
            ("--envoy-grpc", "127.0.0.1:0", "--connection-age-s", "0"),
            "--connection-age-s must be 1 to 86,400",
        ),
        (("--envoy-unix", "/run/s", "--i-have-a-network-policy"), "needs --envoy-grpc"),
        (("--envoy-unix", "/run/s", *TLS, "--client-san", "*"), "needs --envoy-grpc"),
        ((), "--listen off needs"),
    ],
)
def test_options_that_are_not_safe_or_not_whole_are_refused(
    options: tuple[str, ...],
    problem: str,
    redis_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FUSEBOARD_REDIS_URL", redis_url)
    monkeypatch.setenv("FUSEBOARD_STATE_DIR", str(tmp_path))
    assert main(["sidecar", "--listen", "off", "--probes", "off", *options]) == 2
    assert problem in capsys.readouterr().err


async def test_the_connections_of_envoy_are_among_the_files_that_a_sidecar_may_open(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed: list[int] = []

    def allow(files: int) -> int:
        needed.append(files)
        return files

    monkeypatch.setattr(app, "allow_open_files", allow)
    for listener in (None, GrpcListener(address=LOOPBACK)):
        async with answering(policy_of(), envoy_grpc=listener):
            pass
    assert needed[1] == needed[0] + grpc_server.MAX_CONNECTIONS
