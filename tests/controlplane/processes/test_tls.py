"""TLS to Redis, Postgres, the gateway and web, with certificates made here; and refused certificates."""

import asyncio
import http.client
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg
import pytest
import redis
import trustme
from cryptography.hazmat.primitives import serialization
from django.core.exceptions import ImproperlyConfigured

import fuseboard
from controlplane import tls
from controlplane.fleet.status_client import StatusClient
from controlplane.gateway.postgres.connections import conninfo
from controlplane.redis.clients import connect
from fuseboard.cli.ctl.exit_codes import Exit
from fuseboard.configuration.redis_source import RedisSource
from fuseboard.contract.store_url import StoreUrl, with_ca
from fuseboard.store import open_store
from tests.controlplane.redis.tls_relay import relay
from tests.waiting import eventually, wait_until

ROOT = Path(__file__).resolve().parents[3]


class Papers:
    """A certificate authority, and a server with a certificate of it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.authority = trustme.CA()
        self.certificate = self.authority.issue_cert("localhost", "127.0.0.1")
        self.ca = str(folder / f"{name}-ca.pem")
        self.cert, self.key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
        self.authority.cert_pem.write_to_path(self.ca)
        Path(self.cert).write_bytes(b"".join(blob.bytes() for blob in self.certificate.cert_chain_pems))
        self.certificate.private_key_pem.write_to_path(self.key)

    def server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.certificate.configure_cert(context)
        return context


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"), "ours")


@pytest.fixture(scope="module")
def forged(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("forged"), "theirs")


# Redis


@pytest.fixture
def secured(papers: Papers, redis_url: str, limits: redis.Redis) -> Iterator[str]:
    """The URL of the tests' Redis behind TLS, without an authority."""
    plain = urlsplit(redis_url)
    with relay(papers.server(), plain.port or 0) as port:
        yield f"rediss://:{plain.password}@127.0.0.1:{port}/0"


@pytest.mark.parametrize("word", ["redis", "unix"])
def test_an_authority_is_added_only_to_addresses_with_tls(word: str) -> None:
    assert with_ca(f"{word}://x", "/ca.pem") == f"{word}://x"
    assert with_ca("rediss://x/0", "/a b.pem") == "rediss://x/0?ssl_ca_certs=/a%20b.pem"
    named = with_ca("rediss+sentinel://x/main?sentinel_password=p", "/ca.pem")
    assert StoreUrl.parse(named).ca_file == "/ca.pem"
    assert StoreUrl.parse(named).sentinel_password == "p"
    assert with_ca("rediss://x/0?ssl_ca_certs=/other.pem", "/ca.pem").endswith("/other.pem")


async def test_the_agents_connection_trusts_the_configured_authority(
    secured: str, papers: Papers, forged: Papers
) -> None:
    store = open_store(with_ca(secured, papers.ca))
    await store.connect(5.0)
    assert await store.call("PING") == b"PONG"
    await store.close()
    for ca in ("", forged.ca):
        stranger = open_store(with_ca(secured, ca))
        with pytest.raises(ssl.SSLCertVerificationError):
            await stranger.connect(5.0)
        await stranger.close()


async def test_sentinels_and_the_primary_they_name_are_checked_alike(
    papers: Papers, forged: Papers, redis_url: str, limits: redis.Redis
) -> None:
    plain = urlsplit(redis_url)
    with relay(papers.server(), plain.port or 0) as primary:

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            """Acts as a Sentinel: answers its one question, and confirms the rest."""
            while words := await _command(reader):
                host, port = b"127.0.0.1", b"%d" % primary
                named = b"*2\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(host), host, len(port), port)
                subscribed = b"*3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n"
                replies = {b"SENTINEL": named, b"SUBSCRIBE": subscribed}
                writer.write(replies.get(words[0].upper(), b"+OK\r\n"))
            writer.close()

        sentinel = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=papers.server())
        port = sentinel.sockets[0].getsockname()[1]
        url = f"rediss+sentinel://:{plain.password}@127.0.0.1:{port}/main"
        store = open_store(with_ca(url, papers.ca))
        source = RedisSource(url=with_ca(url, papers.ca), environment="production")
        stranger = open_store(with_ca(url, forged.ca))
        try:
            await store.connect(5.0)
            assert await store.call("PING") == b"PONG"
            assert await source.ask(("PING",)) == [b"PONG"]
            with pytest.raises(ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
                await stranger.connect(5.0)
        finally:
            for opened in (store, source, stranger):
                await opened.close()
            sentinel.close()


async def _command(reader: asyncio.StreamReader) -> list[bytes]:
    """The words of one command; none when the connection has ended."""
    try:
        count = int((await reader.readline())[1:] or b"0")
        words = []
        for _ in range(count):
            length = int((await reader.readline())[1:])
            words.append((await reader.readexactly(length + 2))[:-2])
    except (ConnectionError, asyncio.IncompleteReadError):
        return []
    return words


async def test_the_agents_watch_and_discovery_trust_the_configured_authority(
    secured: str, papers: Papers, forged: Papers
) -> None:
    for ca, believed in ((papers.ca, True), (forged.ca, False)):
        source = RedisSource(url=with_ca(secured, ca), environment="production")
        if believed:
            assert await source.ask(("PING",)) == [b"PONG"]
        else:
            with pytest.raises(ssl.SSLCertVerificationError):
                await source.ask(("PING",))
        await source.close()


def test_the_control_plane_trusts_the_configured_authority(
    secured: str, papers: Papers, forged: Papers
) -> None:
    with connect(with_ca(secured, papers.ca), deadline_s=5.0) as client:
        assert client.ping()
    with connect(with_ca(secured, forged.ca), deadline_s=5.0) as client, pytest.raises(redis.ConnectionError):
        client.ping()


def test_a_name_that_is_not_in_the_certificate_is_refused(
    forged: Papers, redis_url: str, tmp_path: Path
) -> None:
    elsewhere = Papers(tmp_path, "elsewhere")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    elsewhere.authority.issue_cert("redis.example.com").configure_cert(context)
    plain = urlsplit(redis_url)
    with relay(context, plain.port or 0) as port:
        url = with_ca(f"rediss://:{plain.password}@127.0.0.1:{port}/0", elsewhere.ca)
        with connect(url, deadline_s=5.0) as client, pytest.raises(redis.ConnectionError):
            client.ping()


def test_the_queue_trusts_the_configured_authority(secured: str, papers: Papers, forged: Papers) -> None:
    from kombu import Connection

    for ca, believed in ((papers.ca, True), (forged.ca, False)):
        options = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": ca}
        with Connection(secured, ssl=options, transport_options={"socket_timeout": 5}) as connection:
            if believed:
                connection.ensure_connection(max_retries=1)
                queue = connection.SimpleQueue("over-tls")
                queue.put("said")
                assert queue.get(timeout=20).payload == "said"
            else:
                with pytest.raises(Exception, match=r"(?i)certificate|ssl"):
                    connection.ensure_connection(max_retries=1, interval_start=0)


def test_an_agent_reports_a_missing_authority_at_start(tmp_path: Path) -> None:
    for file in (tmp_path / "nothing.pem", tmp_path):
        with pytest.raises(fuseboard.Misconfigured, match="FUSEBOARD_CA_FILE"):
            fuseboard.AgentSettings(redis_url="rediss://127.0.0.1/0", ca_file=str(file))


# Postgres


@pytest.fixture
def postgres(papers: Papers, transactional_db: Any) -> Iterator[str]:
    """The URL of the tests' Postgres behind TLS, without any ``sslmode``."""
    from django.db import connection

    database = connection.settings_dict
    with relay(papers.server(), int(database["PORT"]), postgres=True) as port:
        login = f"{database['USER']}:{quote(database['PASSWORD'])}"
        yield f"postgresql://{login}@127.0.0.1:{port}/{database['NAME']}"


def test_every_connection_to_postgres_follows_sslmode(
    postgres: str, papers: Papers, forged: Papers, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dj_database_url
    from django.db import connections
    from django.db.utils import ConnectionHandler

    for ca, believed in ((papers.ca, True), (forged.ca, False)):
        parsed = dict(dj_database_url.parse(f"{postgres}?sslmode=verify-full&sslrootcert={quote(ca)}"))
        handler = ConnectionHandler({"default": parsed})
        monkeypatch.setitem(settings.DATABASES, "default", parsed)
        monkeypatch.setattr(connections["default"], "settings_dict", handler["default"].settings_dict)
        # Django, the gateway, the pages' listener.
        ways = (
            partial(_as_django_does, handler["default"]),
            lambda: psycopg.connect(conninfo("test")),
            lambda: psycopg.connect(conninfo("hub", direct=True)),
        )
        for way in ways:
            if believed:
                with way() as connection:
                    assert connection.pgconn.ssl_in_use
            else:
                with pytest.raises((psycopg.OperationalError, Exception), match="certificate verify failed"):
                    way()
        monkeypatch.undo()


def _as_django_does(wrapper: Any) -> Any:
    return wrapper.get_new_connection(wrapper.get_connection_params())


# Web and gateway


@contextmanager
def serving(command: str, papers: Papers, tmp_path: Path, **variables: str) -> Iterator[int]:
    from django.db import connection

    database = connection.settings_dict
    login = f"{database['USER']}:{quote(database['PASSWORD'])}"
    environment = {
        **os.environ,
        "DATABASE_URL": f"postgresql://{login}@{database['HOST']}:{database['PORT']}/{database['NAME']}",
        "FUSEBOARD_TLS_CERT_FILE": papers.cert,
        "FUSEBOARD_TLS_KEY_FILE": papers.key,
        "FUSEBOARD_LOG_LEVEL": "WARNING",
        **variables,
    }
    said = tmp_path / f"{command}.log"
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "manage.py", command, "--port", "0"],
            cwd=ROOT,
            env={**environment, "PYTHONUNBUFFERED": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield port_of(process, said)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def port_of(process: "subprocess.Popen[bytes]", said: Path) -> int:
    def serves() -> re.Match[str] | None:
        assert process.poll() is None, said.read_text()
        return re.search(r"Serving https://127\.0\.0\.1:(\d+)/", said.read_text())

    found = wait_until(serves, f"port of {said}", within_s=60)
    assert found
    return int(found[1])


def get(port: int, path: str, ca: str) -> http.client.HTTPResponse:
    def answered() -> http.client.HTTPResponse | None:
        client = http.client.HTTPSConnection(
            "127.0.0.1", port, timeout=60, context=ssl.create_default_context(cafile=ca)
        )
        try:
            client.request("GET", path)
            answer = client.getresponse()
            answer.read()
            return answer
        except ConnectionRefusedError:
            return None
        finally:
            client.close()

    answer = wait_until(answered)
    assert answer
    return answer


def test_web_speaks_tls_itself_and_a_renewed_certificate_needs_no_restart(
    forged: Papers, tmp_path: Path, transactional_db: Any, limits: redis.Redis
) -> None:
    papers, renewed = Papers(tmp_path, "old"), Papers(tmp_path, "new")
    with serving("web", papers, tmp_path) as port:
        answer = get(port, "/login", papers.ca)
        assert answer.status == 200, "and redirects nowhere"
        assert "max-age=31536000" in (answer.headers["Strict-Transport-Security"] or "")
        assert "Secure" in (answer.headers["Set-Cookie"] or "")
        with pytest.raises(ssl.SSLCertVerificationError):
            get(port, "/login", forged.ca)
        assert ctl(port, papers.ca).returncode == Exit.FORBIDDEN
        assert "cannot be trusted" in ctl(port, forged.ca).stderr

        kept = http.client.HTTPSConnection(
            "127.0.0.1", port, timeout=60, context=ssl.create_default_context(cafile=papers.ca)
        )
        kept.request("GET", "/healthz")
        kept.getresponse().read()
        # Half of the pair: it does not belong to the key, so the old pair goes on to serve.
        os.replace(renewed.cert, papers.cert)
        wait_until(lambda: "tls.certificate_not_renewed" in _log_after_a_handshake(port, papers, tmp_path))
        assert get(port, "/healthz", papers.ca).status == 200
        os.replace(renewed.key, papers.key)
        wait_until(lambda: _is_trusted(port, renewed.ca), "new connections get the new certificate")
        assert not _is_trusted(port, papers.ca)
        kept.request("GET", "/healthz")
        assert kept.getresponse().status == 200, "an open connection goes on"
        kept.close()


def ctl(port: int, ca: str) -> "subprocess.CompletedProcess[str]":
    """A call with a token that web does not know."""
    variables = {
        "FUSEBOARD_API_URL": f"https://127.0.0.1:{port}",
        "FUSEBOARD_API_TOKEN": f"fb_0123456789abcdef_{'5' * 64}",
        "FUSEBOARD_CA_FILE": ca,
    }
    command = [sys.executable, "-m", "fuseboard", "ctl", "breakers"]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=False
    )


def _is_trusted(port: int, ca: str) -> bool:
    try:
        return get(port, "/healthz", ca).status == 200
    except ssl.SSLCertVerificationError:
        return False


def _log_after_a_handshake(port: int, papers: Papers, folder: Path) -> str:
    assert _is_trusted(port, papers.ca)
    return (folder / "web.log").read_text()


def test_an_agent_syncs_with_a_gateway_it_trusts(
    production: str, papers: Papers, forged: Papers, tmp_path: Path, redis_url: str, ada: Any, settings: Any
) -> None:
    from datetime import timedelta

    from django.utils import timezone

    from controlplane.accounts.tokens import create_agent_token, revoke_token

    def new_token() -> str:
        return create_agent_token(
            environment=production,
            name="shop",
            expires_at=timezone.now() + timedelta(days=1),
            reason="for a test",
            actor=ada,
        )

    first = new_token()
    token_file = tmp_path / "token"
    token_file.write_text(first)
    with serving("gateway", papers, tmp_path, FUSEBOARD_BEAT_MS="100") as port, asyncio.Runner() as runner:

        def agent(ca: str) -> fuseboard.Agent:
            variables = {
                "FUSEBOARD_REDIS_URL": redis_url,
                "FUSEBOARD_URL": f"https://127.0.0.1:{port}",
                "FUSEBOARD_TOKEN_FILE": str(token_file),
                "FUSEBOARD_CA_FILE": ca,
                "FUSEBOARD_SERVER": "shop-1",
                "FUSEBOARD_STATE_DIR": "off",
            }
            return fuseboard.Agent(settings=fuseboard.AgentSettings.from_env(variables))

        believer, doubter = agent(papers.ca), agent(forged.ca)
        runner.run(believer.start())
        runner.run(doubter.start())
        try:
            runner.run(eventually(lambda: beats(believer) >= 2))
            assert beats(doubter) == 0
            # Web asks it while Postgres is down, and trusts it alike.
            settings.GATEWAY_URLS, settings.CA_FILE = [f"https://127.0.0.1:{port}"], papers.ca
            wait_until(lambda: StatusClient().ask(production).answered == 1, "an answer to web")
            settings.CA_FILE = forged.ca
            assert StatusClient().ask(production).answered == 0
            # Rotated without a restart: the old token ends, and heartbeats continue.
            token_file.write_text(new_token())
            before = beats(believer)
            runner.run(eventually(lambda: beats(believer) >= before + 2))
            revoke_token(selector=first.split("_")[1], reason="for a test", actor=ada)
            before = beats(believer)
            runner.run(eventually(lambda: beats(believer) >= before + 20))
        finally:
            runner.run(believer.stop())
            runner.run(doubter.stop())


def beats(agent: fuseboard.Agent) -> int:
    return int(agent._runtime._sync.beats)


def test_a_certificate_without_its_key_is_reported(papers: Papers, monkeypatch: pytest.MonkeyPatch) -> None:
    from controlplane.tls import uvicorn_options

    assert uvicorn_options() == {}
    monkeypatch.setenv("FUSEBOARD_TLS_CERT_FILE", papers.cert)
    with pytest.raises(ImproperlyConfigured, match="set together"):
        uvicorn_options()
    monkeypatch.setenv("FUSEBOARD_TLS_KEY_FILE", "/nowhere/key.pem")
    with pytest.raises(ImproperlyConfigured, match="FUSEBOARD_TLS_KEY_FILE names"):
        uvicorn_options()


@pytest.mark.parametrize(
    "form", [serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL]
)
def test_a_key_with_a_passphrase_is_reported_and_asks_nobody(
    papers: Papers,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    form: serialization.PrivateFormat,
) -> None:
    """OpenSSL would ask on the terminal, and block the process: also a gateway whose key is renewed."""
    plain = Path(papers.key).read_bytes()
    key = serialization.load_pem_private_key(plain, None)
    hidden = key.private_bytes(
        serialization.Encoding.PEM, form, serialization.BestAvailableEncryption(b"passphrase")
    )
    file = tmp_path / "key.pem"
    file.write_bytes(hidden)
    monkeypatch.setenv("FUSEBOARD_TLS_CERT_FILE", papers.cert)
    monkeypatch.setenv("FUSEBOARD_TLS_KEY_FILE", str(file))
    with pytest.raises(ImproperlyConfigured, match="has a passphrase"):
        tls.uvicorn_options()
    with pytest.raises(OSError, match="has a passphrase"):
        tls.renewing_context(papers.cert, str(file))
    monkeypatch.setattr(tls, "LOOK_S", 0.0)
    file.write_bytes(plain)
    assert tls.uvicorn_options()
    context = tls.renewing_context(papers.cert, str(file))
    file.write_bytes(hidden)
    _shake_hands(context, papers.ca)
    assert "tls.certificate_not_renewed" in caplog.text


def _shake_hands(context: ssl.SSLContext, ca: str) -> None:
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = ssl.create_default_context(cafile=ca).wrap_bio(to_client, to_server, server_hostname="localhost")
    for side in (client, server, client, server):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    assert client.getpeercert()
