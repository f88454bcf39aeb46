"""One read-only WebSocket per page. Actions go over HTTP; what a browser sends here is ignored."""

import asyncio
import contextlib
from random import uniform
from urllib.parse import parse_qs

from asgiref.sync import sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import InterfaceError, OperationalError

from controlplane.accounts import sockets
from controlplane.accounts.permissions import Services, administers_everywhere, role_of, services_of
from dashboard.environments import is_environment
from dashboard.hub import hub
from dashboard.live.drawing import Drawing
from dashboard.live.timeline import RANGES
from dashboard.live.topics import PAGES, Topic
from fuseboard.contract.words import DEFAULT_ENVIRONMENT

#: The browser reloads, which leads to the login page or to the page for the new role.
LOGIN_AGAIN = 4401
NO_SUCH_PAGE = 4404
#: The browser connects again, perhaps to another web process.
CONNECT_AGAIN = 4000
#: At the latest. The hub tells every socket at once when a login ends.
RECHECK_S = 10.0
#: After a restart, all sockets are at the other web process. They spread again within this time, by 20 %
#: more or less, so that they do not come all at once.
LASTS_S = 1800.0


class LiveConsumer(AsyncWebsocketConsumer):
    topic: Topic | None = None
    #: Ends the tasks also when they do not hear their cancellation.
    _left = False
    _services: Services = ()
    _everywhere = False

    async def connect(self) -> None:
        # Accept first in any case: a refused handshake shows the browser no code.
        await self.accept()
        query = self.scope["query_string"].decode("ascii", "replace")
        role = role_of(self.scope["user"], environment_of(query))
        if not role:
            await self.close(code=LOGIN_AGAIN)
            return
        self._services = services_of(self.scope["user"], environment_of(query))
        self._everywhere = administers_everywhere(self.scope["user"])
        topic = topic_of(query, role, self._services, self._everywhere)
        try:
            exists = topic is not None and await _exists(topic.environment)
        except (OperationalError, InterfaceError):
            await self.close(code=CONNECT_AGAIN)  # It is unknown while Postgres is unavailable.
            return
        if topic is None or not exists:
            await self.close(code=NO_SUCH_PAGE)
            return
        self.topic = topic
        self._pending: bytes | None = None
        self._needs_whole = True
        self._latest: Drawing | None = None
        self._news = asyncio.Event()
        self._doubt = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._write()),
            asyncio.create_task(self._recheck(role, topic.environment)),
            asyncio.create_task(self._end()),
        ]
        drawn = hub.join(topic, self)
        if drawn is not None:
            self.offer(drawn)

    async def disconnect(self, code: int) -> None:
        if self.topic is None:
            return
        hub.leave(self.topic, self)
        self._left = True
        for task in self._tasks:
            task.cancel()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Ignore it: a browser has nothing to say here."""

    def offer(self, drawing: Drawing) -> None:
        """Called by the hub. At most one message waits; a slower socket gets the whole page next time."""
        self._latest = drawing
        if self._pending is not None or drawing.changed is None:
            self._needs_whole = True
        self._pending = drawing.changed
        self._news.set()

    def recheck(self) -> None:
        """Called by the hub: a login or a role has changed."""
        self._doubt.set()

    async def _write(self) -> None:
        while not self._left:
            await self._news.wait()
            self._news.clear()
            if self._latest is None:
                continue
            message = self._latest.whole if self._needs_whole else self._pending
            # Cleared before sending, so that the message offered meanwhile can wait.
            self._pending, self._needs_whole = None, False
            if message:
                await self.send(bytes_data=message)

    async def _recheck(self, role: str, environment: str) -> None:
        while not self._left:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RECHECK_S):
                    await self._doubt.wait()
            self._doubt.clear()
            user = await sockets.user_of(self.scope)
            same = services_of(user, environment) == self._services
            same = same and administers_everywhere(user) == self._everywhere
            if not same or role_of(user, environment) != role:
                with contextlib.suppress(RuntimeError):  # it has closed meanwhile
                    await self.close(code=LOGIN_AGAIN)
                return

    async def _end(self) -> None:
        await asyncio.sleep(LASTS_S * uniform(0.8, 1.2))
        if not self._left:
            with contextlib.suppress(RuntimeError):  # it has closed meanwhile
                await self.close(code=CONNECT_AGAIN)


def topic_of(query: str, role: str, services: Services = (), everywhere: bool = False) -> Topic | None:
    fields = {name: values[0] for name, values in parse_qs(query).items()}
    page, span = fields.get("page", ""), fields.get("range", "1h")
    # The longest is a form of a tenant: its kind, a revision, and an id.
    key = fields.get("key", "")[:256]
    # No name has a NUL, and Postgres refuses it in a query.
    if page not in PAGES or span not in RANGES or "\0" in key:
        return None
    where = environment_of(query)
    return Topic(
        page=page,
        role=role,
        key=key,
        range=span,
        environment=where,
        services=services,
        administers_everywhere=everywhere,
    )


def environment_of(query: str) -> str:
    return parse_qs(query).get("environment", [DEFAULT_ENVIRONMENT])[0]


async def _exists(environment: str) -> bool:
    # Facts of an environment stay in memory, so a socket cannot ask for names that it makes up.
    if environment == DEFAULT_ENVIRONMENT or environment in hub.environments:
        return True
    return await sync_to_async(is_environment)(environment)
