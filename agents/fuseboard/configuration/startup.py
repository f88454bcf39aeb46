"""The order of the sources at start, and the copy that is kept for the next start.

The disk is read first although it is trusted last. A newer answer from HTTP or Redis replaces it; an
older one, from a restored store, does not. The bootstrap file counts only when nothing else answered.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from time import monotonic
from typing import TypeVar

import msgspec

from fuseboard.configuration.checked_config import ConfigError
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.configuration.disk import Disk, DiskError, SavedConfig, read_bootstrap
from fuseboard.contract.policy import ConfigHead
from fuseboard.contract.words import ConfigSource

logger = logging.getLogger("fuseboard.configuration")

T = TypeVar("T")

#: A change of the kept tenants alone is written at most this often; a new head at once.
TENANTS_WRITE_S = 30.0
#: After a write that failed, the next try comes after this time.
RETRY_WRITE_S = 5.0


async def apply_from_disk(configuration: Configuration, disk: Disk, *, timeout_s: float) -> None:
    """Start with the last good configuration, if there is one that can be read in time."""
    try:
        found = await read_in_time(disk.read, timeout_s=timeout_s)
    except (DiskError, ConfigError, TimeoutError) as error:
        logger.error("config.disk_refused path=%s: %s", disk.path, error)
        return
    if found is not None:
        offer, live_servers = found
        configuration.apply(offer)
        configuration.live_servers = max(configuration.live_servers, live_servers)


async def apply_bootstrap(configuration: Configuration, path: Path, *, timeout_s: float) -> None:
    """Decide by the bootstrap file, unless a better source applies already."""
    if configuration.snapshot.source is not ConfigSource.BUILT_IN:
        return
    environment = configuration.environment
    try:
        offer = await read_in_time(lambda: read_bootstrap(path, environment=environment), timeout_s=timeout_s)
    except (DiskError, ConfigError, TimeoutError) as error:
        logger.error("config.bootstrap_refused path=%s: %s", path, error)
        return
    configuration.apply(offer)


class DiskWriter:
    """Decides on the loop when the copy on disk is out of date. The calling thread writes it.

    Only a write that succeeded counts: the answer of a busy loop can be too late for the thread that asked.
    """

    def __init__(self, configuration: Configuration, disk: Disk | None) -> None:
        self._configuration = configuration
        self._disk = disk
        #: The content of the file: the head, how many tenants, and how many live servers.
        self._written: tuple[ConfigHead, int, int] | None = None
        self._tried_at = -TENANTS_WRITE_S
        self._failed = False

    def due(self) -> SavedConfig | None:
        """On the loop: what to write now, or ``None``."""
        configuration, snapshot, written = self._configuration, self._configuration.snapshot, self._written
        if self._disk is None or not configuration.document or not configuration.complete:
            return None
        if (snapshot.head, len(snapshot.tenants), configuration.live_servers) == written:
            return None
        newer = written is None or snapshot.head != written[0]
        pause_s = RETRY_WRITE_S if self._failed else 0.0 if newer else TENANTS_WRITE_S
        if monotonic() - self._tried_at < pause_s:
            return None
        return SavedConfig(
            environment=configuration.environment,
            head=snapshot.head,
            policy=msgspec.Raw(configuration.document),
            tenants=snapshot.tenants.as_dict(),
            live_servers=configuration.live_servers,
        )

    def write(self, kept: SavedConfig) -> None:
        """In any thread except the loop's: a disk may be slow, or full. Then it is tried again later."""
        if self._disk is None:
            return
        self._failed = not self._disk.write(kept)
        self._tried_at = monotonic()
        if not self._failed:
            self._written = kept.head, len(kept.tenants), kept.live_servers


async def read_in_time(read: Callable[[], T], *, timeout_s: float) -> T:
    """Call ``read`` in a daemon thread, so that a file system that hangs delays neither start nor exit."""
    result: Future[T] = Future()
    # It counts as running, so that a timeout cannot cancel it: a cancelled future takes no result.
    result.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result.set_result(read())
        except Exception as error:  # raised in the caller
            result.set_exception(error)

    threading.Thread(target=run, name="fuseboard-read", daemon=True).start()
    async with asyncio.timeout(timeout_s):
        return await asyncio.wrap_future(result)
