"""The live view of one web process: read once per tick, drawn once per topic, sent to every socket.

It does not use Redis: operators open the page because Redis is down, so it must keep working then.
While Postgres is unavailable, it goes on with what it last knew and what gateways report, and the
page says so.
"""

import asyncio
import contextlib
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import structlog
from django.db import InterfaceError, OperationalError, close_old_connections

from controlplane.alerts.state.evaluate import FirstSeen
from controlplane.alerts.state.stored_alerts import StoredAlert, stored_alerts, with_last_evaluation
from controlplane.page_addresses import links_into
from controlplane.policies.models import Environment
from controlplane.shutdown import stop_tasks
from controlplane.status.facts import Facts
from controlplane.status.read_facts import read_facts
from controlplane.status.without_postgres import WithoutPostgres
from dashboard.live.drawing import Drawing, SentFragments, announcement, draw
from dashboard.live.first_steps import FirstSteps, read_first_steps
from dashboard.live.history import History
from dashboard.live.overview import Live, build
from dashboard.live.pages import page_of
from dashboard.live.topics import Topic
from dashboard.notices import listen
from fuseboard.contract.words import DEFAULT_ENVIRONMENT

log = structlog.get_logger(__name__)

#: How often figures are read when no notice arrives sooner.
TICK_S = 1.0
#: How often those of one environment are read while no page is open: its history has a point each 3 s, and a
#: frame that is older than 3 s says so.
UNSEEN_TICK_S = 2.0
#: Changes are collected for this long: at most four messages a second.
COALESCE_S = 0.25
#: ``stop`` waits for the end of the tasks for at most this time.
STOP_S = 1.0
#: A page that opens never gets an older drawing. It wakes the hub and waits for a new drawing.
FRESH_S = 2.0


#: The hub reads the steps to the first pod this often, in seconds. No page waits for them.
STEPS_S = 5.0


class Socket(Protocol):
    def offer(self, drawing: Drawing) -> None: ...
    def recheck(self) -> None: ...


class Known:
    """The facts that this process has of one environment."""

    def __init__(self) -> None:
        self.history = History()
        self.first_seen = FirstSeen()
        #: The steps to the first pod; ``None`` once it has reported.
        self.first_steps: FirstSteps | None = None
        #: When they are read again, as ``time.monotonic`` has it.
        self.steps_due = 0.0
        self.facts: Facts | None = None
        #: The alerts in Postgres, by key.
        self.alerts: dict[str, StoredAlert] = {}
        self.live: Live | None = None
        #: The number of the last drawing. Browsers notice by it that they have missed one.
        self.rev = 0


class Hub:
    def __init__(self) -> None:
        #: All of them as of the last tick; empty before the first.
        self.environments: tuple[str, ...] = ()
        self.without_postgres = WithoutPostgres()
        self._known: dict[str, Known] = {}
        self._sockets: dict[Topic, set[Socket]] = defaultdict(set)
        self._sent: dict[Topic, SentFragments] = {}
        #: The newest drawing of each topic with sockets, and when the hub began to read for it.
        self._drawn: dict[Topic, tuple[float, Drawing]] = {}
        self._ticks = 0
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
            asyncio.create_task(listen(self._notice, self._doubt), name="hub-listen"),
        ]

    def of(self, environment: str) -> Known:
        """Ask only for environments that exist: what is known of each stays in memory."""
        return self._known.setdefault(environment, Known())

    def can_draw(self) -> bool:
        """Whether something is known that pages can display, also while Postgres is unavailable."""
        return any(known.live is not None for known in list(self._known.values()))

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

    def _notice(self) -> None:
        """Wake the hub for an open page. While none is open, the next tick by the clock is early enough."""
        if self._sockets:
            self._wake.set()

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
                async with asyncio.timeout(max(0.01, began + self._period_s() - loop.time())):
                    await wake.wait()

    def _period_s(self) -> float:
        """The time between two ticks without a notice. Unseen environments are read in turn."""
        return TICK_S if self._sockets else max(TICK_S, UNSEEN_TICK_S / max(1, len(self.environments)))

    def _hand_out(self, drawn: dict[Topic, Drawing], began: float) -> None:
        for topic, drawing in drawn.items():
            # The last socket may have left during the tick. Its drawing would be kept, and served much later.
            if sockets := self._sockets.get(topic):
                self._drawn[topic] = (began, drawing)
                for socket in list(sockets):
                    socket.offer(drawing)

    def _tick(self, topics: list[Topic]) -> dict[Topic, Drawing]:
        """In the hub's thread: read, build, draw."""
        self._ticks += 1
        drawn: dict[Topic, Drawing] = {}
        found = self._read_environments()
        for environment in self._to_read({topic.environment for topic in topics}, found):
            shown = [topic for topic in topics if topic.environment == environment]
            try:
                with links_into(environment):
                    drawn |= self._draw(environment, shown, found)
            except Exception:
                # One environment that cannot be read must not stop the others.
                log.exception("hub.environment_not_drawn", environment=environment)
        for topic in self._sent.keys() - set(topics):
            del self._sent[topic]
        return drawn

    def _read_environments(self) -> bool:
        """Whether Postgres answers. If not, no other read of this tick waits for it."""
        try:
            close_old_connections()
            self.environments = read_environments()
        except (OperationalError, InterfaceError) as error:
            log.warning("hub.database_unavailable", error=str(error).splitlines()[0])
            close_old_connections()
            return False
        return True

    def _to_read(self, shown: set[str], found: bool) -> list[str]:
        """Return the environments that pages show, and one other in turn, so that it has a history later."""
        if not found:
            return [*shown]
        others = [name for name in self.environments if name not in shown]
        return [*shown, *([others[self._ticks % len(others)]] if others else [])]

    def _draw(self, environment: str, topics: list[Topic], found: bool) -> dict[Topic, Drawing]:
        known = self.of(environment)
        facts = self._read(environment, known) if found else self._last_known(known)
        if facts is None:
            return {}
        before, known.facts = known.live, facts
        known.live = live = build(
            facts, known.history, known.first_seen, stored=known.alerts, first_steps=known.first_steps
        )
        known.rev += 1
        announce = announcement(before, live)
        drawn = {}
        for topic in topics:
            sent = self._sent.setdefault(topic, SentFragments())
            try:
                page = page_of(topic, live, known.history)
                drawn[topic] = draw(page, sent, rev=known.rev, announce=announce)
            except Exception as error:
                # No socket received what was drawn of it: the next drawing sends everything again.
                del self._sent[topic]
                expected = isinstance(error, OperationalError | InterfaceError)
                log.warning("hub.topic_not_drawn", page=topic.page, error=str(error), exc_info=not expected)
        return drawn

    def _read(self, environment: str, known: Known) -> Facts | None:
        try:
            close_old_connections()
            found = with_last_evaluation(read_facts(environment))
            known.alerts = stored_alerts(environment)
            reported = found.reported or found.servers
            if known.first_steps is None or reported or time.monotonic() >= known.steps_due:
                known.first_steps = read_first_steps(found)
                known.steps_due = time.monotonic() + STEPS_S
            return self.without_postgres.until_recorded(found)
        except (OperationalError, InterfaceError) as error:
            log.warning("hub.database_unavailable", error=str(error).splitlines()[0])
            close_old_connections()
            return self._last_known(known)

    def _last_known(self, known: Known) -> Facts | None:
        return self.without_postgres.facts(known.facts) if known.facts is not None else None


def read_environments() -> tuple[str, ...]:
    """Return the environments in the order of the switch: production first."""
    names = Environment.objects.values_list("slug", flat=True)
    ordered = sorted(names, key=lambda name: (name != DEFAULT_ENVIRONMENT, name))
    return tuple(ordered) or (DEFAULT_ENVIRONMENT,)


hub = Hub()
