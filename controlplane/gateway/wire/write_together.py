"""Answers of one turn of the event loop, sent together when every request of the turn is read.

Sent one by one, each wakes whoever waits for it, and on a machine where both ends run that costs as
much as reading a beat. Whoever waits is waiting for the turn anyway.
"""

from asyncio import AbstractEventLoop, Transport


class Outbox:
    """Of one process and its loop."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Transport, bytes]] = []

    def put(self, transport: Transport, answer: bytes, loop: AbstractEventLoop) -> None:
        if not self._waiting:
            loop.call_soon(self.send)
        self._waiting.append((transport, answer))

    def send(self) -> None:
        """Now: before anything else is written to one of the same connections."""
        waiting, self._waiting = self._waiting, []
        for transport, answer in waiting:
            if not transport.is_closing():
                transport.write(answer)
