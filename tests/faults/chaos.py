"""Proxies between a pod and its stores: everything a network does to a connection.

They run on one event loop in a separate thread; their switches are plain attributes, set from the
test's thread and read at the next piece of data.
"""

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tests.faults.lag import LagSampler

#: Close by RST instead of FIN.
_ABRUPTLY = struct.pack("ii", 1, 0)
_LOOK_AGAIN_S = 0.005
_CONNECT_S = 2.0


class Proxy:
    """Forwards to ``upstream``; a change applies to new connections."""

    def __init__(self, upstream: tuple[str, int], seed: int = 0) -> None:
        self.upstream = upstream
        self.port = 0
        #: Connections accepted since the start.
        self.accepted = 0
        self._random = random.Random(seed)
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.heal()

    def heal(self) -> None:
        """Remove every fault: forward at once again."""
        #: Seconds each way.
        self.latency_s = self.jitter_s = 0.0
        #: Hold what pods send, or what they receive, until healed: lost packets.
        self.hold_up = self.hold_down = False
        #: Bytes per write, and the pause after each.
        self.slice_bytes, self.gap_s = 0, 0.0
        #: Accept no new connections.
        self.refuse = False

    def cut(self) -> None:
        """Nothing passes in either direction; connections stay."""
        self.hold_up = self.hold_down = True

    def reset_all(self) -> None:
        """RST for every open connection."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._reset_all)

    def _reset_all(self) -> None:
        for writer in list(self._open):
            raw = writer.get_extra_info("socket")
            if raw is not None and raw.fileno() >= 0:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABRUPTLY)
            writer.transport.abort()

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._reset_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = {writer}
        self._open |= ends
        try:
            if self.refuse:
                return
            # A frozen server accepts connections until its queue is full, and answers none.
            async with asyncio.timeout(_CONNECT_S):
                upstream_reader, upstream = await asyncio.open_connection(*self.upstream)
            ends.add(upstream)
            self._open.add(upstream)
            self.accepted += 1
            await _until_one_ends(
                self._pump(reader, upstream, up=True), self._pump(upstream_reader, writer, up=False)
            )
        except (OSError, TimeoutError, asyncio.CancelledError):
            return  # cancelled only when everything ends
        finally:
            self._open -= ends
            for end in ends:
                end.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, up: bool) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                if self.latency_s:
                    spread = self._random.uniform(-1, 1) * self.jitter_s
                    await asyncio.sleep(max(0.0, self.latency_s + spread))
                while self.hold_up if up else self.hold_down:
                    if sink.transport.is_closing():
                        return
                    await asyncio.sleep(_LOOK_AGAIN_S)
                for piece in _pieces(data, self.slice_bytes):
                    sink.write(piece)
                    await sink.drain()
                    if self.gap_s:
                        await asyncio.sleep(self.gap_s)
            # Data sent just before a close still arrives.
            sink.close()
            await sink.wait_closed()


async def _until_one_ends(*pumps: Coroutine[Any, Any, None]) -> None:
    """One end has closed: the other must learn it, whatever is still held."""
    tasks = [asyncio.ensure_future(pump) for pump in pumps]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _pieces(data: bytes, size: int) -> Iterator[bytes]:
    size = size or len(data)
    for start in range(0, len(data), size):
        yield data[start : start + size]


class Network:
    """The thread of all proxies of a run."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="faults-network", daemon=True)
        self._proxies: list[Proxy] = []
        #: How late everything is because this process had no CPU time.
        self.lag = LagSampler(lambda: None)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.lag.run(), self._loop)

    def proxy(self, upstream: tuple[str, int]) -> Proxy:
        proxy = Proxy(upstream, seed=len(self._proxies))
        self.start(proxy)
        self._proxies.append(proxy)
        return proxy

    def start(self, server: object) -> None:
        """Start anything with a coroutine ``start`` in this thread."""
        asyncio.run_coroutine_threadsafe(server.start(), self._loop).result(5)  # type: ignore[attr-defined]

    def drop(self, server: object) -> None:
        asyncio.run_coroutine_threadsafe(server.close(), self._loop).result(5)  # type: ignore[attr-defined]

    def heal(self) -> None:
        for proxy in self._proxies:
            proxy.heal()

    def close(self) -> None:
        for proxy in self._proxies:
            self.drop(proxy)
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def network() -> Iterator[Network]:
    thread = Network()
    try:
        yield thread
    finally:
        thread.close()
