"""The workers of one sidecar: what lands at another worker than its own is handed on.

A connection belongs to one worker, and the permit that its application reports may be another's. Ids name
their worker, and each worker has a private socket.
"""

import asyncio
import logging
from collections import deque
from typing import NamedTuple

import msgspec
from msgspec import Struct

from fuseboard.calling.trace import traceparent
from fuseboard.cancellation import stop_tasks
from fuseboard.contract.sidecar import MAX_REPORTS, REPORTS_PATH
from fuseboard.serving.unix_client import UnixClient

logger = logging.getLogger("fuseboard.sidecar")

#: The path of the private socket that takes outcomes from Envoy's access log.
OUTCOMES_PATH = "/private/outcomes"
#: Messages to these paths go together, as a list.
_TOGETHER = {REPORTS_PATH: MAX_REPORTS, OUTCOMES_PATH: MAX_REPORTS}
#: The messages that may wait for one worker. More are lost, and counted.
MAX_HANDED_ON = 10_000
#: When a worker stops, the time in which it sends the messages that wait.
LAST_S = 0.5

_encode = msgspec.json.Encoder().encode


class Place(Struct, frozen=True, kw_only=True):
    """A worker gets this from the process that started it."""

    #: From 1.
    number: int
    #: How many workers there are.
    of: int
    #: The name of its agent.
    server: str
    #: The folder of the private sockets. Only this user can enter it.
    folder: str
    #: The descriptors of the unix sockets that all workers accept from, by their paths.
    unix_fds: dict[str, int] = {}
    #: The port that all workers listen on.
    port: int = 0

    def socket(self, number: int) -> str:
        """The path of the private socket of a worker."""
        return f"{self.folder}/{number}"

    def letters(self, letter: str) -> str:
        """How ids of this worker begin."""
        return f"{letter}{self.number}-"


class _Message(NamedTuple):
    path: str
    trace: str
    content: Struct


class Peers:
    """The other workers. Belongs to the loop of this one."""

    def __init__(self, place: Place) -> None:
        others = [number for number in range(1, place.of + 1) if number != place.number]
        self._peers = {str(number): _Peer(place.socket(number)) for number in others}

    def __len__(self) -> int:
        """The messages that wait to be handed on."""
        return sum(map(len, self._peers.values()))

    @property
    def lost(self) -> int:
        """The messages that were not handed on: their worker died or refused them, or too many wait."""
        return sum(peer.lost for peer in self._peers.values())

    def hand_on(self, name: str, path: str, content: Struct) -> bool:
        """Send ``content`` to the worker whose id ``name`` is, soon. False if it is that of no other one."""
        peer = self._peers.get(name[1:].partition("-")[0])
        return peer is not None and peer.add(_Message(path, traceparent(), content))

    async def stop(self) -> None:
        """Send what waits, within ``LAST_S``, and disconnect."""
        await asyncio.gather(*(peer.stop() for peer in self._peers.values()))


class _Peer:
    def __init__(self, socket: str) -> None:
        self._client = UnixClient(socket)
        self._waiting = deque[_Message]()
        self._task: asyncio.Task[None] | None = None
        self.lost = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, message: _Message) -> bool:
        if len(self._waiting) >= MAX_HANDED_ON:
            self.lost += 1
            return False
        self._waiting.append(message)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._send(), name="fuseboard-sidecar-peer")
        return True

    async def stop(self) -> None:
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=LAST_S)
        if self._task is not None:
            await stop_tasks(self._task, within_s=LAST_S)
        self._client.close()

    async def _send(self) -> None:
        """One request at a time: while a worker is slow, what comes meanwhile goes with the next one."""
        try:
            while self._waiting:
                together = self._first()
                path, trace, content = together[0]
                body = [one.content for one in together] if path in _TOGETHER else content
                status, _ = await self._client.ask("POST", path, _encode(body), trace)
                if status != 200:
                    logger.error(
                        "sidecar.handed_on_refused: status %d for %d messages", status, len(together)
                    )
                    self.lost += len(together)
                for _ in together:
                    self._waiting.popleft()
        except OSError:
            # Its permits have ended with it.
            self.lost += len(self._waiting)
            self._waiting.clear()
        finally:
            self._task = None

    def _first(self) -> list[_Message]:
        """The first message, and those after it that fit into the same request."""
        first, together = self._waiting[0], list[_Message]()
        most = _TOGETHER.get(first.path, 1)
        for message in self._waiting:
            if len(together) == most or message[:2] != first[:2]:
                break
            together.append(message)
        return together
