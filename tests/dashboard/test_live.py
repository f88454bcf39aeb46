"""The socket and the hub behind it, in this process."""

import asyncio
import contextlib
import threading
import time

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.db import OperationalError, transaction
from fleet_rows import breaker, notify, put_server

import dashboard.hub
from controlplane.breakers.models import Override
from dashboard.consumer import LiveConsumer, topic_of
from dashboard.hub import Hub
from dashboard.live.drawing import Drawing, draw, pack
from tests.dashboard.live_page import LivePage
from tests.waiting import eventually

pytestmark = pytest.mark.django_db(transaction=True)

#: Only a failure takes this long.
PATIENCE_S = 30.0


@pytest.fixture
async def hub(production, monkeypatch):
    fresh = Hub()
    monkeypatch.setattr("dashboard.consumer.hub", fresh)
    yield fresh
    await fresh.stop()
    await asyncio.get_running_loop().run_in_executor(fresh._thread, _close_connections)
    fresh._thread.shutdown()


def _close_connections():
    from django.db import connections

    connections.close_all()


class Socket(ApplicationCommunicator):
    """The browser's side."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.page = LivePage()

    async def receive_from(self, timeout):
        """The next message, as the markup that it swaps."""
        event = await self.receive_output(timeout)
        assert event["type"] == "websocket.send", event
        return self.page.take(event["bytes"])


@contextlib.asynccontextmanager
async def opened(name, query="page=overview"):
    from django.contrib.auth.models import AnonymousUser

    from controlplane.accounts.models import User

    user = await User.objects.aget(username=name) if name else AnonymousUser()
    session = await _session(user) if name else {}
    scope = {"type": "websocket", "path": "/ws/live", "query_string": query.encode(), "headers": []}
    socket = Socket(LiveConsumer.as_asgi(), scope | {"user": user, "session": session})
    await socket.send_input({"type": "websocket.connect"})
    assert (await socket.receive_output(timeout=PATIENCE_S))["type"] == "websocket.accept"
    try:
        yield socket
    finally:
        await socket.send_input({"type": "websocket.disconnect", "code": 1000})
        await socket.wait(timeout=PATIENCE_S)


@sync_to_async
def _session(user):
    """The session of a person who has just logged in."""
    from django.test import Client

    browser = Client()
    browser.force_login(user)
    return browser.session


async def closing_code(socket):
    event = await socket.receive_output(timeout=PATIENCE_S)
    assert event["type"] == "websocket.close"
    return event["code"]


async def until(socket, text):
    """The first message that contains ``text``."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        message = await socket.receive_from(timeout=PATIENCE_S)
        if text in message:
            return message
    raise AssertionError(f"{text!r} was not sent within {PATIENCE_S} s")


async def test_anonymous_sockets_are_closed_with_the_login_code(hub):
    async with opened("") as socket:
        assert await closing_code(socket) == 4401


async def test_a_socket_for_an_unknown_page_is_closed(hub):
    async with opened("vera", "page=secrets") as socket:
        assert await closing_code(socket) == 4404


@pytest.mark.parametrize("key", ["%00", "a%00b"])
@pytest.mark.parametrize("page", ["breaker", "tenant", "audit"])
async def test_a_socket_for_a_name_that_cannot_be_is_closed(hub, page, key):
    async with opened("vera", f"page={page}&key={key}") as socket:
        assert await closing_code(socket) == 4404


async def test_finding_12_every_other_key_is_drawn(hub, caplog):
    """``\u00b2`` is a digit for Python and no number."""
    for page in ("breaker", "tenant", "audit"):
        for key in ("%C2%B2", "%FF%FE", "%1b", "9" * 200, "%EF%BF%BD"):
            async with opened("vera", f"page={page}&key={key}") as socket:
                await until(socket, "data-whole")
    assert "hub.topic_not_drawn" not in caplog.text


async def test_the_first_message_is_the_whole_page(hub):
    async with opened("vera") as socket:
        first = await socket.receive_from(timeout=PATIENCE_S)
        for target in ("nav", "verdict", "cards", "calm", "fleet", "conditions", "tick"):
            assert f"[id='{target}']" in first
        assert 'data-whole="1"' in first


def open_everywhere(state="open"):
    views = [breaker("payments-api", state, generation=9, window_failures=31), breaker("search")]
    with transaction.atomic():
        for number in (1, 2, 3):
            put_server(f"web-{number}", breakers=views)
        notify()


async def test_an_opening_breaker_is_sent_on_the_notice_and_announced_once(hub, monkeypatch):
    async with opened("olga") as socket:
        await until(socket, 'data-whole="1"')
        # From here on only a notice wakes the hub.
        monkeypatch.setattr("dashboard.hub.TICK_S", 60.0)
        await until(socket, 'id="tick"')
        await sync_to_async(open_everywhere)()
        message = await until(socket, 'id="br-payments-api"')
        assert 'data-say="payments-api is open"' in message
        assert "31 of 40 calls failed" in message
        await sync_to_async(notify)()
        assert "data-say" not in await until(socket, 'id="tick"')


async def test_a_list_that_becomes_empty_is_sent_and_so_is_what_returns(hub):
    async with opened("olga") as socket:
        await until(socket, 'data-whole="1"')
        for _ in range(2):
            await sync_to_async(open_everywhere)("open")
            await until(socket, 'id="br-payments-api"')
            await sync_to_async(open_everywhere)("closed")
            assert "br-payments-api" not in await until(socket, "[id='cards']")


async def test_a_drawing_that_fails_halfway_is_sent_whole_next_time(hub, monkeypatch):
    async with opened("olga") as socket:
        await until(socket, 'data-whole="1"')
        failed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def breaks(*args, **kwargs):
            draw(*args, **kwargs)  # what it drew counts as sent
            loop.call_soon_threadsafe(failed.set)
            raise OperationalError("connection lost")

        with monkeypatch.context() as patch:
            patch.setattr("dashboard.hub.draw", breaks)
            await sync_to_async(open_everywhere)()
            await asyncio.wait_for(failed.wait(), PATIENCE_S)
        await until(socket, 'id="br-payments-api"')


async def test_what_a_browser_sends_changes_nothing(hub):
    async with opened("olga") as socket:
        await until(socket, 'data-whole="1"')
        await socket.send_input({"type": "websocket.receive", "text": '{"act": "forced_open"}'})
        await socket.send_input({"type": "websocket.receive", "bytes": b"\x00" * 1000})
        await until(socket, 'id="tick"')
    assert not await sync_to_async(Override.objects.exists)()


async def test_all_sockets_of_a_topic_get_the_same_object(hub):
    class Listener:
        def __init__(self):
            self.first = asyncio.get_running_loop().create_future()

        def offer(self, drawing):
            if not self.first.done():
                self.first.set_result(drawing)

    topic, one, two = topic_of("page=overview", "viewer"), Listener(), Listener()
    hub.join(topic, one)
    hub.join(topic, two)
    async with asyncio.timeout(PATIENCE_S):
        assert await one.first is await two.first
    hub.leave(topic, one)
    hub.leave(topic, two)


class Offered:
    """A socket that keeps what the hub offers."""

    def __init__(self):
        self.drawings = []

    def offer(self, drawing):
        self.drawings.append(drawing)


async def drawn_for(socket):
    await eventually(lambda: socket.drawings, "a drawing for the socket")


async def test_a_drawing_finished_after_its_last_reader_left_is_never_served(hub, monkeypatch):
    """S1.1: the next visitor of the page, minutes later, got it as the first whole."""
    topic, reader, other = topic_of("page=overview", "viewer"), Offered(), Offered()
    loop, leaving = asyncio.get_running_loop(), threading.Event()
    tick = hub._tick

    def a_tick_during_which_the_reader_leaves(topics):
        drawn = tick(topics)
        if topic in drawn and not leaving.is_set():
            leaving.set()
            asyncio.run_coroutine_threadsafe(leave(), loop).result(PATIENCE_S)
        return drawn

    async def leave():
        hub.leave(topic, reader)

    monkeypatch.setattr(hub, "_tick", a_tick_during_which_the_reader_leaves)
    hub.join(topic, reader)
    hub.join(topic_of("page=servers", "viewer"), other)
    await drawn_for(other)
    assert leaving.is_set()
    assert not reader.drawings
    assert hub.join(topic, reader) is None
    await drawn_for(reader)


async def test_a_drawing_older_than_two_seconds_is_never_served(hub, monkeypatch):
    """S1.1: also while the hub cannot draw, and while a tick takes long."""
    assert dashboard.hub.FRESH_S == 2.0
    monkeypatch.setattr("dashboard.hub.FRESH_S", 60.0)  # however long the first tick takes here
    monkeypatch.setattr("dashboard.hub.TICK_S", 60.0)
    topic, first, second = topic_of("page=overview", "viewer"), Offered(), Offered()
    hub.join(topic, first)
    await drawn_for(first)
    assert hub.join(topic, second) is not None
    monkeypatch.setattr("dashboard.hub.FRESH_S", -1.0)  # from here on, each drawing is too old
    assert hub.join(topic, second) is None
    # It waits for no tick: the next drawing is made at once.
    await drawn_for(second)


async def test_while_no_page_is_open_the_hub_ticks_half_as_often_and_at_no_notice(hub):
    hub.environments = ("production",)
    assert hub._period_s() == 2.0
    hub._notice()
    assert not hub._wake.is_set()
    topic, reader = topic_of("page=overview", "viewer"), Offered()
    hub.join(topic, reader)
    assert hub._period_s() == 1.0
    hub._wake.clear()
    hub._notice()
    assert hub._wake.is_set()
    hub.leave(topic, reader)
    assert hub._period_s() == 2.0


async def test_each_of_two_environments_that_no_page_shows_is_read_every_two_seconds(hub):
    hub.environments = ("production", "staging")
    assert hub._period_s() == 1.0
    hub._ticks = 0
    read = []
    for _ in range(4):
        hub._ticks += 1
        read += hub._to_read(set(), found=True)
    assert read == ["staging", "production"] * 2


async def test_the_hub_stops_although_a_notice_arrives_at_the_same_time(hub, monkeypatch):
    monkeypatch.setattr("dashboard.hub.TICK_S", 60.0)
    hub.start()
    await eventually(
        lambda: hub.of("production").facts is not None and hub._wake._waiters, "the hub waits for a notice"
    )
    hub._wake.set()
    async with asyncio.timeout(PATIENCE_S):
        await hub.stop()


async def test_a_slow_socket_keeps_one_message_and_then_gets_the_whole(hub):
    consumer = LiveConsumer()
    consumer._pending, consumer._latest, consumer._needs_whole = None, None, False
    consumer._news = asyncio.Event()
    sent, gate, twice = [], asyncio.Event(), asyncio.Event()

    async def send(bytes_data):
        sent.append(bytes_data)
        if len(sent) == 2:
            twice.set()
        await gate.wait()

    consumer.send = send
    writer = asyncio.create_task(consumer._write())
    for number in range(1, 5):
        consumer.offer(Drawing(changed=b"delta %d" % number, page={"whole": number}))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    gate.set()
    await asyncio.wait_for(twice.wait(), PATIENCE_S)
    writer.cancel()
    assert sent == [b"delta 1", pack({"whole": 4})]


async def the_end_of(socket):
    """The code with which it is closed, whatever is sent before."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        event = await socket.receive_output(timeout=PATIENCE_S)
        if event["type"] == "websocket.close":
            return event["code"]
    raise AssertionError(f"was not closed within {PATIENCE_S} s")


async def test_a_socket_ends_after_a_while_so_that_it_can_move_to_another_process(hub, monkeypatch):
    monkeypatch.setattr("dashboard.consumer.LASTS_S", 0.05)
    async with opened("vera") as socket:
        assert await the_end_of(socket) == 4000


async def test_a_lost_role_closes_the_socket_even_without_a_notice(hub, monkeypatch):
    from controlplane.accounts.models import User

    monkeypatch.setattr("dashboard.consumer.RECHECK_S", 0.2)
    async with opened("olga") as socket:
        await User.objects.filter(username="olga").aupdate(role="viewer")
        assert await the_end_of(socket) == 4401


async def test_a_login_that_ends_closes_its_sockets(hub, monkeypatch):
    # Postgres sends a notice: nothing waits for the next regular check.
    monkeypatch.setattr("dashboard.consumer.RECHECK_S", 3600.0)
    from controlplane.accounts.logins import close_logins
    from controlplane.accounts.models import User

    async with opened("olga") as socket, opened("vera") as other:
        await until(socket, 'data-whole="1"')
        await sync_to_async(close_logins)(await User.objects.aget(username="olga"))
        assert await the_end_of(socket) == 4401
        await until(other, 'id="tick"')


async def test_without_postgres_the_last_known_state_is_labelled(hub, monkeypatch):
    async with opened("vera") as socket:
        await until(socket, 'data-whole="1"')

        def unavailable(environment):
            raise OperationalError("connection refused")

        monkeypatch.setattr("dashboard.hub.read_facts", unavailable)
        message = await until(socket, "Postgres is unavailable")
        assert 'id="tick"' in message, "it goes on ticking"
        monkeypatch.undo()
        await until(socket, '<div id="store"></div>')


def test_topics_are_read_from_the_address_only():
    assert topic_of("page=breaker&key=a.b&range=6h", "viewer").key == "a.b"
    for bad in ("", "page=", "page=overview&range=9y", "page=../etc", "page=%00"):
        assert topic_of(bad, "viewer") is None
