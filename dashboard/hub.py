"""The live view of one web process: read once per tick, drawn once per topic, sent to every socket.

It does not use Redis: operators open the page because Redis is down, so it must keep working then.
While Postgres is unavailable, it goes on with what it last knew and what gateways report, and the
page says so.
"""

import asyncio
import contextlib
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import structlog
from django.db import InterfaceError, OperationalError, close_old_connections

from controlplane.alerts.evaluate import FirstSeen
from controlplane.alerts.reading import StoredAlert, stored_alerts
from controlplane.shutdown import stop_tasks
from controlplane.status.facts import Facts
from controlplane.status.read_facts import read_facts
from controlplane.status.without_postgres import WithoutPostgres
from dashboard.live.drawing import Drawing, SentFragments, announcement, draw
from dashboard.live.history import History
from dashboard.live.overview import Live, build
from dashboard.live.pages import page_of
from dashboard.live.topics import Topic
from dashboard.notices import listen

log = structlog.get_logger(__name__)

#: How often figures are read when no notice arrives sooner.
TICK_S = 1.0
#: Changes are collected for this long: at most four messages a second.
COALESCE_S = 0.25
#: ``stop`` waits for the end of the tasks for at most this time.
STOP_S = 1.0
#: A page that opens never gets an older drawing. It wakes the hub and waits for a new drawing.
FRESH_S = 2.0


class Socket(Protocol):
    def offer(self, drawing: Drawing) -> None: ...
    def recheck(self) -> None: ...


class Hub:
    def __init__(self) -> None:
        self.history = History()
        self.first_seen = FirstSeen()
        self.facts: Facts | None = None
        #: The alerts in Postgres, by key.
        self.alerts: dict[str, StoredAlert] = {}
        self.without_postgres = WithoutPostgres()
        self._live: Live | None = None
        self._sockets: dict[Topic, set[Socket]] = defaultdict(set)
        self._sent: dict[Topic, SentFragments] = {}
        #: Of each topic that has sockets: the newest drawing, and when the hub began to read for it.
        self._drawn: dict[Topic, tuple[float, Drawing]] = {}
        self._rev = 0
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        # One thread, so that it keeps one connection and drawings never race each other.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hub")

    def start(self) -> None:
        """Start ticking in the running loop, unless it already ticks there."""
        if (
            self._tasks
            and not self._tasks[0].done()
            and self._tasks[0].get_loop() is asyncio.get_running_loop()
        ):
            return
        self._wake = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._run(), name="hub"),
            asyncio.create_task(listen(self._wake, self._doubt), name="hub-listen"),
        ]

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        await stop_tasks(*tasks, within_s=STOP_S)

    def join(self, topic: Topic, socket: Socket) -> Drawing | None:
        """Add a socket; returns the whole page if it was drawn within the last seconds."""
        self.start()
        self._sockets[topic].add(socket)
        began, drawing = self._drawn.get(topic, (0.0, None))
        if drawing is None or asyncio.get_running_loop().time() - began > FRESH_S:
            self._wake.set()
            return None
        return drawing

    def leave(self, topic: Topic, socket: Socket) -> None:
        self._sockets[topic].discard(socket)
        if not self._sockets[topic]:
            del self._sockets[topic]
            self._drawn.pop(topic, None)

    def nudge(self) -> None:
        """This process has changed something: draw it without waiting for the notice."""
        if self._tasks:
            self._tasks[0].get_loop().call_soon_threadsafe(self._wake.set)

    def _doubt(self) -> None:
        for sockets in self._sockets.values():
            for socket in sockets:
                socket.recheck()

    async def _run(self) -> None:
        loop, wake = asyncio.get_running_loop(), self._wake
        while True:
            began = loop.time()
            topics = list(self._sockets)
            wake.clear()
            try:
                drawn = await loop.run_in_executor(self._thread, self._tick, topics)
            except Exception:
                # One page that cannot be drawn must not stop the others.
                log.exception("hub.tick_failed")
                drawn = {}
            self._hand_out(drawn, began)
            await asyncio.sleep(max(0.0, began + COALESCE_S - loop.time()))
            # Not wait_for: up to Python 3.11 it swallows a cancellation that comes together with the wake.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.01, began + TICK_S - loop.time())):
                    await wake.wait()

    def _hand_out(self, drawn: dict[Topic, Drawing], began: float) -> None:
        for topic, drawing in drawn.items():
            # The last socket may have left during the tick. Its drawing would be kept, and served much later.
            if sockets := self._sockets.get(topic):
                self._drawn[topic] = (began, drawing)
                for socket in list(sockets):
                    socket.offer(drawing)

    def _tick(self, topics: list[Topic]) -> dict[Topic, Drawing]:
        """In the hub's thread: read, build, draw."""
        facts = self._read()
        if facts is None:
            return {}
        before, self.facts = self._live, facts
        self._live = live = build(facts, self.history, self.first_seen, stored=self.alerts)
        self._rev += 1
        announce = announcement(before, live)
        drawn = {}
        for topic in topics:
            sent = self._sent.setdefault(topic, SentFragments())
            try:
                drawn[topic] = draw(
                    page_of(topic, live, self.history), sent, rev=self._rev, announce=announce
                )
            except Exception as error:
                # No socket received what was drawn of it: the next drawing sends everything again.
                del self._sent[topic]
                known = isinstance(error, OperationalError | InterfaceError)
                log.warning("hub.topic_not_drawn", page=topic.page, error=str(error), exc_info=not known)
        for topic in self._sent.keys() - set(topics):
            del self._sent[topic]
        return drawn

    def _read(self) -> Facts | None:
        try:
            close_old_connections()
            found = read_facts()
            self.alerts = stored_alerts(found.environment)
            return self.without_postgres.until_recorded(found)
        except (OperationalError, InterfaceError) as error:
            log.warning("hub.database_unavailable", error=str(error).splitlines()[0])
            close_old_connections()
            return self.without_postgres.facts(self.facts) if self.facts is not None else None


hub = Hub()
