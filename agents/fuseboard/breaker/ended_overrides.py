"""Notices overrides that were ended in Redis while the configuration still lists them.

Without Postgres there is no newer configuration, but a breaker may still be reset through Redis, which
then keeps `none 0 revision` in place of the override. Only such a text counts: a missing key may have
been lost, and an override must survive that.
"""

import asyncio
import random
import re
from collections.abc import Callable

import hiredis

from fuseboard.cancellation import STOP_S, stop_tasks, wait_for_event
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.contract import keys
from fuseboard.store.health import StoreHealth
from fuseboard.store.store import ConnectionLostError, NotServedError, Store

#: Pause between two looks while an override applies and there is no news.
LOOK_S = 5.0
ANSWER_S = 1.0

_ENDED = re.compile(rb"^none 0 (\d{1,16})$")
_FAILURES = (OSError, TimeoutError, hiredis.ReplyError, ConnectionLostError, NotServedError)


class EndedOverrides:
    """Belongs to the event loop. ``on_end`` is called with the dependency."""

    def __init__(
        self,
        *,
        configuration: Configuration,
        store: Store,
        health: StoreHealth,
        on_end: Callable[[str], None],
    ) -> None:
        self._configuration = configuration
        self._store = store
        self._health = health
        self._on_end = on_end
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._configuration.listen(lambda _: self.look())
        self._task = asyncio.get_running_loop().create_task(self._run(), name="fuseboard-ended-overrides")

    async def stop(self) -> None:
        task, self._task = self._task, None
        await stop_tasks(task, within_s=STOP_S)

    def look(self) -> None:
        """Look again now, because there may be news."""
        self._wake.set()

    async def _run(self) -> None:
        while True:
            overrides = self._in_force()
            for dependency, revision in overrides:
                if self._health.usable and await self._is_over(dependency, revision):
                    self._on_end(dependency)
            if await wait_for_event(self._wake, LOOK_S * random.uniform(0.8, 1.2) if overrides else None):
                self._wake.clear()

    def _in_force(self) -> list[tuple[str, int]]:
        """The dependencies with an override that applies, and the revision that made it."""
        configuration = self._configuration
        found = [
            (known.name, configuration.override_in_force(known.name))
            for known in configuration.snapshot.policy.dependencies
            if known.override is not None
        ]
        return [(name, override.revision) for name, override in found if override is not None]

    async def _is_over(self, dependency: str, revision: int) -> bool:
        key = keys.override(self._configuration.environment, dependency)
        try:
            text = await self._store.call("GET", key, timeout=ANSWER_S)
        except _FAILURES:
            return False  # decisions on the same store count its errors
        found = _ENDED.match(text) if isinstance(text, bytes) else None
        if found is None:
            return False
        return self._configuration.end_override(dependency, revision, int(found.group(1)))
