"""The connections besides the hot path: subscriptions and questions, against servers that misbehave."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import hiredis
import pytest
import redis

from fuseboard.configuration import watch as watching
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.configuration.watch import Watch
from fuseboard.contract import keys
from fuseboard.contract.store_url import StoreUrl
from fuseboard.store import subscription as subscribing
from fuseboard.store.pipelined_connection import Pipe, open_pipe
from fuseboard.store.subscription import Subscription
from tests.agents.published import publish
from tests.agents.test_configuration import POLICY, with_limit
from tests.agents.test_configuration_watch import revision, watched
from tests.waiting import eventually

pytestmark = pytest.mark.both_loops

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
Answer = Callable[[list[bytes], Writer], Awaitable[None]]

NEWS, MORE = b"news", b"more"


def confirmation(channel: bytes, count: int = 1) -> bytes:
    return b"*3\r\n$9\r\nsubscribe\r\n$%d\r\n%b\r\n:%d\r\n" % (len(channel), channel, count)


def message(channel: bytes, content: bytes) -> bytes:
    parts = (b"message", channel, content)
    return b"*3\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


@asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[StoreUrl]:
    """Answers each command as ``answer`` says; the greeting is answered here."""

    served: list[asyncio.Task[None]] = []

    def serve(reader: Reader, writer: Writer) -> None:
        served.append(asyncio.create_task(converse(reader, writer)))

    async def converse(reader: Reader, writer: Writer) -> None:
        parser = hiredis.Reader()
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                parser.feed(data)
                while (command := parser.gets()) is not False:
                    if command[0] == b"CLIENT":
                        writer.write(b"+OK\r\n")
                    else:
                        await answer(command, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield StoreUrl.parse(f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
    finally:
        listening.close()
        # The client has closed its connection, or the test fails here.
        await asyncio.gather(*served)


class Heard:
    """What a subscription received, and whether it was lost."""

    def __init__(self, *channels: bytes) -> None:
        self.messages: list[bytes] = []
        self.lost = 0
        self.subscription = Subscription(dict.fromkeys(channels, self.messages.append), self._lost)

    def _lost(self) -> None:
        self.lost += 1

    async def open(self, url: StoreUrl) -> None:
        await self.subscription.open(url, url.addresses[0], timeout_s=5)


class TestSubscription:
    async def test_confirmations_and_messages_in_one_segment_are_told_apart(self):
        async def answer(command: list[bytes], writer: Writer) -> None:
            assert command == [b"SUBSCRIBE", NEWS, MORE]
            first = confirmation(NEWS) + message(NEWS, b"1")
            writer.write(first + confirmation(MORE, 2) + message(MORE, b"2"))

        heard = Heard(NEWS, MORE)
        async with server(answer) as url:
            await heard.open(url)
            await eventually(lambda: heard.messages == [b"1", b"2"])
            assert heard.subscription.alive
            heard.subscription.close()
        assert heard.lost == 0

    async def test_one_confirmation_of_two_is_not_enough(self):
        async def answer(command: list[bytes], writer: Writer) -> None:
            writer.write(confirmation(NEWS))

        heard = Heard(NEWS, MORE)
        async with server(answer) as url:
            with pytest.raises(TimeoutError, match="not confirmed"):
                # The connection has as long as the confirmation, and a machine may pause for 2 s.
                await heard.subscription.open(url, url.addresses[0], timeout_s=3.0)
            heard.subscription.close()

    async def test_a_channel_without_permission_is_an_error_with_its_reason(self):
        async def answer(command: list[bytes], writer: Writer) -> None:
            writer.write(b"-NOPERM No permissions to access a channel\r\n")

        heard = Heard(NEWS)
        async with server(answer) as url:
            with pytest.raises(hiredis.ReplyError, match="NOPERM"):
                await heard.open(url)
            heard.subscription.close()

    @pytest.mark.parametrize("push", [b"+OK", b"*2\r\n$7\r\nmessage\r\n$1\r\nx", b":1", b"?"])
    async def test_a_poisoned_push_ends_the_connection_once(self, push: bytes):
        writers: list[Writer] = []

        async def answer(command: list[bytes], writer: Writer) -> None:
            writers.append(writer)
            writer.write(confirmation(NEWS))

        heard = Heard(NEWS)
        async with server(answer) as url:
            await heard.open(url)
            writers[0].write(push + b"\r\n")
            await eventually(lambda: heard.lost == 1)
            assert not heard.subscription.alive
            assert heard.subscription.ended_by is not None

    async def test_a_defect_of_one_reader_costs_the_others_nothing(self, caplog: pytest.LogCaptureFixture):
        async def answer(command: list[bytes], writer: Writer) -> None:
            writer.write(
                confirmation(NEWS) + confirmation(MORE, 2) + message(MORE, b"") + message(NEWS, b"1")
            )

        def fail(_: bytes) -> None:
            raise ValueError("a defect")

        heard = Heard(NEWS)
        heard.subscription.add(MORE, fail)
        async with server(answer) as url:
            await heard.open(url)
            await eventually(lambda: heard.messages == [b"1"])
            heard.subscription.close()
        assert "subscription.defect channel=more" in caplog.text

    @pytest.mark.parametrize(
        "pong", [b"*2\r\n$4\r\npong\r\n$0\r\n\r\n", b"-NOPERM this user may not ping\r\n"]
    )
    async def test_a_silent_server_is_asked_and_kept_while_it_answers(
        self, monkeypatch: pytest.MonkeyPatch, pong: bytes
    ):
        monkeypatch.setattr(subscribing, "QUIET_S", 0.02)
        pings = 0

        async def answer(command: list[bytes], writer: Writer) -> None:
            nonlocal pings
            if command == [b"PING"]:
                pings += 1
                # A message between PING and its answer is no answer to it, and not lost.
                writer.write(message(NEWS, b"%d" % pings) + pong)
            else:
                writer.write(confirmation(NEWS))

        heard = Heard(NEWS)
        async with server(answer) as url:
            await heard.open(url)
            await eventually(lambda: pings >= 3)
            assert heard.messages[:2] == [b"1", b"2"]
            assert (heard.lost, heard.subscription.alive) == (0, True)
            heard.subscription.close()

    async def test_a_half_open_connection_is_noticed(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(subscribing, "QUIET_S", 0.02)
        monkeypatch.setattr(subscribing, "PONG_S", 0.08)

        async def answer(command: list[bytes], writer: Writer) -> None:
            if command != [b"PING"]:
                writer.write(confirmation(NEWS))

        heard = Heard(NEWS)
        async with server(answer) as url:
            await heard.open(url)
            await eventually(lambda: heard.lost == 1)
        assert "no answer to PING" in str(heard.subscription.ended_by)


class TestQuestions:
    async def test_a_late_reply_is_left_to_the_reader_and_the_second_silence_ends_the_connection(self):
        writers: list[Writer] = []

        async def answer(command: list[bytes], writer: Writer) -> None:
            writers.append(writer)
            if command[0] == b"ECHO":
                writer.write(b"+%b\r\n" % command[1])

        async with server(answer) as url, asked(url) as pipe:
            with pytest.raises(TimeoutError):
                await pipe.ask_within(0.02, ("SLOW",))
            writers[0].write(b"+late\r\n")
            assert await pipe.ask_within(5, ("ECHO", "a"), ("ECHO", "b")) == [b"a", b"b"]
            for open_after in (True, False):
                with pytest.raises(TimeoutError):
                    await pipe.ask_within(0.02, ("SLOW",))
                assert pipe.open is open_after
            with pytest.raises(ConnectionResetError):
                await pipe.ask_within(5, ("ECHO", "a"))

    async def test_a_cancelled_question_leaves_its_reply_to_the_reader(self, redis_url: str):
        async with asked(StoreUrl.parse(redis_url)) as pipe:
            question = asyncio.ensure_future(pipe.ask_within(5, ("ECHO", "a")))
            await asyncio.sleep(0)
            question.cancel()
            assert await pipe.ask_within(5, ("ECHO", "b")) == [b"b"]

    async def test_the_error_of_a_queued_command_is_raised_and_not_that_of_exec(self):
        async def answer(command: list[bytes], writer: Writer) -> None:
            moved, abort = b"-MOVED 1 127.0.0.1:7001\r\n", b"-EXECABORT Transaction discarded\r\n"
            writer.write({b"MULTI": b"+OK\r\n", b"EXEC": abort}.get(command[0], moved))

        async with server(answer) as url, asked(url) as pipe:
            with pytest.raises(hiredis.ReplyError, match="MOVED"):
                await pipe.transaction(5, ("GET", "a"), ("TIME",))

    async def test_an_error_inside_exec_is_raised(self, limits: redis.Redis, redis_url: str):
        limits.lpush("list", "1")
        async with asked(StoreUrl.parse(redis_url)) as pipe:
            with pytest.raises(hiredis.ReplyError, match="WRONGTYPE"):
                await pipe.transaction(5, ("GET", "list"), ("TIME",))
            assert (await pipe.transaction(5, ("LLEN", "list"), ("GET", "none"))) == [1, None]

    async def test_a_large_document_may_take_longer_than_the_patience_for_silence(self):
        document = b"x" * 5_000_000

        async def answer(command: list[bytes], writer: Writer) -> None:
            data = b"$%d\r\n%b\r\n" % (len(document), document)
            for part in range(0, len(data), 250_000):
                writer.write(data[part : part + 250_000])
                await writer.drain()
                await asyncio.sleep(0.02)

        async with server(answer) as url, asked(url) as pipe:
            assert await pipe.ask_within(0.3, ("GET", "document")) == [document]

    async def test_a_connection_is_kept_alive_by_the_system(self, redis_url: str):
        async with asked(StoreUrl.parse(redis_url)) as pipe:
            assert pipe.transport is not None
            plain = pipe.transport.get_extra_info("socket")
            assert plain.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                assert plain.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


@asynccontextmanager
async def asked(url: StoreUrl) -> AsyncIterator[Pipe]:
    pipe = await open_pipe(url, url.addresses[0], lambda *_: None, scripts=False)
    try:
        yield pipe
    finally:
        pipe.abort()
        await asyncio.sleep(0)


class TestWatch:
    async def test_a_flood_of_messages_is_bounded_and_the_last_revision_is_found(
        self, limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(watching, "MAX_NUDGES", 10)
        publish(limits, POLICY, revision=1)
        async with watched(redis_url) as (configuration, watch):
            publish(limits, with_limit(2), revision=2, nudge=False)
            nudge = b'{"epoch":1,"revision":1,"since":0}'
            for _ in range(50):
                watch._nudged(nudge)
            assert len(watch._nudges) == 10
            # None of them says that there is anything new, but some were dropped.
            await eventually(lambda: revision(configuration) == 2)
            assert (watch.failures, watch.connected) == (0, True)

    async def test_another_part_listens_over_the_same_connection(
        self, limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(watching, "BACKOFF_S", (0.01, 0.05))
        early, late = list[bytes](), list[bytes]()
        watch = Watch(url=redis_url, configuration=Configuration(environment="production"))
        watch.listen("early", early.append)
        watch.start()
        try:
            await eventually(lambda: watch.connected)
            watch.listen("late", late.append)
            await eventually(lambda: limits.publish("late", "1") == 1)
            assert limits.publish("early", "1") == 1
            await eventually(lambda: (early, late) == ([b"1"], [b"1"]))
            limits.client_kill_filter(_type="pubsub")
            await eventually(lambda: limits.publish("late", "2") == 1 and watch.connected)
            await eventually(lambda: late[-1:] == [b"2"])
            publish(limits, POLICY, revision=3)
            await eventually(lambda: revision(watch._configuration) == 3)
            assert limits.pubsub_numsub("early", keys.config_channel("production")) == [
                (b"early", 1),
                (keys.config_channel("production").encode(), 1),
            ]
        finally:
            await watch.stop()

    async def test_a_channel_that_redis_refuses_does_not_cost_the_configuration(
        self, limits: redis.Redis, redis_url: str
    ):
        allowed = (keys.config_channel("production"), keys.breaker_channel("production"))
        limits.execute_command(
            "ACL", "SETUSER", "narrow", "on", "nopass", "~*", "+@all", *(f"&{channel}" for channel in allowed)
        )
        url = redis_url.replace("redis://", "redis://narrow:any@")
        watch = Watch(url=url, configuration=Configuration(environment="production"))
        watch.listen("refused", lambda _: None)
        watch.start()
        try:
            await eventually(lambda: watch.connected)
            publish(limits, POLICY, revision=3)
            await eventually(lambda: revision(watch._configuration) == 3)
            assert watch.failures == 0
        finally:
            await watch.stop()
            limits.execute_command("ACL", "DELUSER", "narrow")


def test_the_agent_runs_where_redis_py_is_not_installed():
    # Other integrations need a framework, and some of these need redis-py. Telemetry needs OpenTelemetry, the
    # sidecar httptools, files of descriptors PyYAML, and the service for Envoy protobuf.
    script = """
import importlib, importlib.util, pkgutil, sys
sys.modules["redis"] = None
import fuseboard, fuseboard.integrations.asgi, fuseboard.integrations.wsgi
others = ["fuseboard.integrations.", "fuseboard.telemetry.", "fuseboard.llm.httpx"]
if importlib.util.find_spec("httptools") is None:
    others += ["fuseboard.serving.http1", "fuseboard.serving.listeners", "fuseboard.sidecar."]
if importlib.util.find_spec("google") is None:
    others += ["fuseboard.envoy."]
if importlib.util.find_spec("yaml") is None:
    others += ["fuseboard.contract.descriptor_file"]
for module in pkgutil.walk_packages(fuseboard.__path__, "fuseboard."):
    if not module.name.endswith("__main__") and not module.name.startswith(tuple(others)):
        importlib.import_module(module.name)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
