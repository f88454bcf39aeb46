"""Work with Postgres that goes on through its outages: one connection, one log line per outage, pauses."""

from collections.abc import Awaitable, Callable, Mapping

import structlog
from psycopg import AsyncConnection

from controlplane.gateway.counts import RefusedValue
from controlplane.gateway.postgres.connections import Backoff, Unreachable, close, connect

log = structlog.get_logger(__name__)


class KeepTrying:
    """Runs attempts. After a failed one it drops the connection and pauses, longer each time."""

    def __init__(
        self,
        purpose: str,
        *,
        failed: str,
        recovered: str,
        count_failure: Callable[[], None] | None = None,
        count_refusal: Callable[[BaseException], None] | None = None,
        passing: tuple[type[Exception], ...] = Unreachable,
        most_s: float = 5.0,
        about: Mapping[str, str] | None = None,
    ) -> None:
        """`failed` and `recovered` are events for the log, which have `about` too; `passing` are the errors
        of an outage. A value that Postgres refuses is not an outage: it goes to `count_refusal`, the
        connection stays, and nothing pauses for long.
        """
        self._purpose = purpose
        self._failed, self._recovered = failed, recovered
        self._count_failure, self._count_refusal = count_failure, count_refusal
        refused: tuple[type[Exception], ...] = RefusedValue if count_refusal is not None else ()
        self._passing = (*passing, *refused)
        self._backoff = Backoff(most_s=most_s)
        self._failing = False
        self._about = dict(about or {})
        self._connection: AsyncConnection | None = None

    async def connection(self) -> AsyncConnection:
        """The open connection, or a new one. Raises one of `Unreachable`."""
        if self._connection is None:
            self._connection = await connect(self._purpose)
        return self._connection

    async def attempt(self, work: Awaitable[object]) -> bool:
        """Await `work`. Returns whether it succeeded; if not, returns after a pause."""
        try:
            await work
        except self._passing as error:
            if self._count_refusal is not None and isinstance(error, RefusedValue):
                self._count_refusal(error)
                await Backoff().pause()
                return False
            if self._count_failure is not None:
                self._count_failure()
            if not self._failing:
                log.warning(self._failed, error=str(error), kind=type(error).__name__, **self._about)
            self._failing = True
            await self.disconnect()
            await self._backoff.pause()
            return False
        if self._failing:
            log.info(self._recovered, **self._about)
        self._failing = False
        self._backoff.reset()
        return True

    async def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        await close(connection)
