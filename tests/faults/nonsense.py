"""Servers that accept connections and answer nonsense."""

import asyncio
import time

import hiredis

_ERRORS = (
    "READONLY You can't write against a read only replica.",
    "LOADING Redis is loading the dataset in memory",
    "BUSY Redis is busy running a script.",
    "MASTERDOWN Link with MASTER is down",
    "CLUSTERDOWN The cluster is down",
    "MISCONF Errors writing to disk",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "NOREPLICAS Not enough good replicas to write.",
    "NOPERM this user has no permissions",
    "NOAUTH Authentication required.",
    "WRONGTYPE Operation against a key holding the wrong kind of value",
    "MOVED 3999 127.0.0.1:1",
    "ASK 3999 127.0.0.1:1",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "EXECABORT Transaction discarded",
    "ERR unknown command",
)

#: The answer to everything but the greeting.
REPLIES = {error.split(" ")[0]: f"-{error}\r\n".encode() for error in _ERRORS} | {
    "nil": b"$-1\r\n",
    "ok": b"+OK\r\n",
    "number": b":7\r\n",
    "nested": b"*2\r\n*1\r\n*1\r\n:1\r\n$3\r\nabc\r\n",
    "empty": b"*0\r\n",
    "floats": b"*4\r\n$3\r\n1.5\r\n$3\r\nNaN\r\n$4\r\n-inf\r\n$1\r\n0\r\n",
    "huge": b"$999999999999\r\nabc",
    "half": b"*4\r\n:1\r\n:2\r\n",
    "html": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>",
    "bytes": bytes(range(256)),
}


class NonsenseStore:
    """Greets like a Redis, accepts every password, and answers ``reply`` to everything after that.

    A ``polite`` one also answers TIME and loads scripts, so that pods return to it and ask.
    """

    def __init__(self) -> None:
        self.port = 0
        self._server: asyncio.Server | None = None
        self.say(REPLIES["nil"], polite=True)

    def say(self, reply: bytes, *, polite: bool) -> None:
        self.reply, self.polite = reply, polite
        #: How often it has answered nonsense.
        self.said = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        commands = hiredis.Reader()
        try:
            while data := await reader.read(65_536):
                commands.feed(data)
                while (command := commands.gets()) is not False:
                    writer.write(self._answer(command))
                await writer.drain()
        except OSError:
            return
        finally:
            writer.transport.abort()

    def _answer(self, command: object) -> bytes:
        word = bytes(command[0]).upper() if isinstance(command, list) and command else b""
        if word in (b"AUTH", b"SELECT", b"CLIENT"):
            return b"+OK\r\n"
        if self.polite and word in (b"SCRIPT", b"SET", b"GET"):
            return b"+OK\r\n"
        if self.polite and word == b"TIME":
            return b"*2\r\n$10\r\n%d\r\n$1\r\n0\r\n" % time.time()
        self.said += word in (b"TIME", b"EVAL", b"EVALSHA", b"SCRIPT")
        return self.reply
