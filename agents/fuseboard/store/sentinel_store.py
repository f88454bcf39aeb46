"""The primary that Sentinels agree on, followed through failovers."""

import asyncio

import hiredis

from fuseboard.cancellation import STOP_S, stop_tasks
from fuseboard.contract.store_url import Address, StoreUrl
from fuseboard.store.pipelined_connection import Pipe
from fuseboard.store.sentinels import Sentinels
from fuseboard.store.single_store import SingleStore
from fuseboard.store.store import Reply, Word


class SentinelStore(SingleStore):
    """A ``Store`` that connects to the current primary; see docs/adr/0010.

    It looks for a lost primary at once, and again when a Sentinel reports a failover. A server that
    does not call itself a primary is never asked for a decision. A server that stops being the primary
    is left when it first refuses to write.
    """

    def __init__(self, url: StoreUrl) -> None:
        super().__init__(url)
        self._sentinels = Sentinels(url)
        #: The server of the last connection or attempt.
        self._at: Address | None = None
        self._following: asyncio.Task[None] | None = None

    async def connect(self, timeout: float = 1.0) -> None:
        if self._following is None:
            self._following = asyncio.get_running_loop().create_task(
                self._sentinels.follow(self._use), name="fuseboard-sentinel"
            )
        await super().connect(timeout)

    async def close(self) -> None:
        following, self._following = self._following, None
        try:
            await stop_tasks(following, within_s=STOP_S)
        finally:
            await super().close()

    async def _address(self) -> Address | None:
        self._at = await self._sentinels.primary()
        return self._at

    async def _examine(self, pipe: Pipe) -> None:
        role = await pipe.insist("ROLE")
        if not isinstance(role, list) or not role or role[0] != b"master":
            raise ConnectionRefusedError(f"{self._at} is not a primary (yet)")

    async def call(self, *command: Word, timeout: float = 1.0) -> Reply:
        try:
            return await super().call(*command, timeout=timeout)
        except hiredis.ReplyError as error:
            self._refused(str(error))
            raise

    def _use(self, primary: Address) -> bool:
        """A Sentinel has named the primary. Returns whether this store is connected to it."""
        if self._pipe is not None and primary == self._at:
            return True
        if self._pipe is not None:
            self._pipe.abort()
        # Also when nothing has changed: it may have become ready since the last attempt.
        self._news()
        return False

    def _ended(self, pipe: Pipe, error: Exception | None) -> None:
        ours = pipe is self._pipe
        super()._ended(pipe, error)
        if ours:
            self._news()
            self._sentinels.look()

    def _refused(self, error: str) -> None:
        super()._refused(error)
        if error.startswith("READONLY") and self._pipe is not None:
            self._pipe.abort()
