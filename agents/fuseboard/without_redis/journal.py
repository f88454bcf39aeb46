"""Decisions without Redis, on disk, so that they count even if the pod dies before Redis is back.

One file per segment: a line with its name, then lines of counts, each with a checksum. A torn or
damaged line is not counted; the others are. Files are bounded: when a file is full, it is rewritten as
one line of totals. What still does not fit stays in memory only. A disk that is full or read-only is
counted as a failure, and changes nothing else.
"""

import asyncio
import itertools
import logging
import os
import threading
import time
from collections import deque
from pathlib import Path
from zlib import crc32

import msgspec

from fuseboard.without_redis.offline_counts import OfflineCounts, Segment

try:
    import fcntl
except ImportError:  # without such locks, no orphans are adopted
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("fuseboard.journal")

#: The largest file of a segment, whatever the tuning says. The pod that adopts it reads no more.
MAX_FILE_BYTES = 8 * 1024 * 1024
#: Files that were not reported by then are deleted. Redis remembers names for twice as long.
KEPT_S = 6 * 86_400
#: Files of dead pods that are read at a time.
MAX_ORPHANS = 100
#: How long a stopping process waits for the last line.
FINISH_S = 0.2
#: Counts are collected for this time.
WRITE_S = 1.0


class Journal:
    """A thread of its own writes while there is something to write. Everything else belongs to the loop."""

    def __init__(self, directory: Path, *, environment: str, service: str, counts: OfflineCounts) -> None:
        self._directory = directory
        # No slug contains "@", so two pairs never share a name.
        self._prefix = f"{environment}@{service}"
        self._counts = counts
        self._lock_file: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: One writer at a time. The lock also prevents writing a file after it was forgotten.
        self._writing = threading.Lock()
        self._forgotten: deque[str] = deque(maxlen=100)
        self._writer: threading.Thread | None = None
        #: Writes are numbered, because threads may write in another order.
        self._numbers = itertools.count(1)
        #: Segment -> the number of the write that was all of its file. Earlier lines are in it.
        self._whole: dict[str, int] = {}
        #: The size of one file, by the fleet's tuning.
        self.most_bytes = MAX_FILE_BYTES
        self.failures = 0
        #: Expired journal files. Their counts are lost.
        self.expired = 0

    # On the loop

    def noted(self) -> None:
        """There is something to write."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WRITE_S, self.flush_soon)

    def finish(self) -> None:
        """Write what is left and let others adopt it. A disk that hangs delays this for a moment only."""
        self.flush_soon(whole=self._counts.lowered)
        if self._writer is not None:
            self._writer.join(FINISH_S)
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def flush_soon(self, *, whole: bool = False) -> None:
        """Write what is not written yet, in the background; or the whole file again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        changed, self._counts.changed = self._counts.changed, {}
        if changed or whole:
            segment = self._counts.segment
            self._writer = threading.Thread(
                target=self._write,
                args=(next(self._numbers), segment.name, changed, dict(segment.totals), whole),
                name="fuseboard-journal",
                daemon=True,
            )
            self._writer.start()

    def forget(self, name: str) -> None:
        """The whole segment was reported: delete its file."""
        threading.Thread(target=self._delete, args=(name,), name="fuseboard-journal", daemon=True).start()

    async def orphans(self) -> list[Segment]:
        """The segments that dead pods left behind."""
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[Segment]] = loop.create_future()

        def look() -> None:
            segments = self._find_orphans()
            try:
                loop.call_soon_threadsafe(lambda: None if found.done() else found.set_result(segments))
            except RuntimeError:
                logger.debug("journal.read_too_late")

        threading.Thread(target=look, name="fuseboard-journal", daemon=True).start()
        return await found

    # In threads

    def _write(
        self, number: int, name: str, changed: dict[bytes, int], totals: dict[bytes, int], whole: bool = False
    ) -> None:
        with self._writing:
            if name in self._forgotten or number < self._whole.get(name, 0):
                return
            try:
                self._own()
                path = self._path(name)
                line = _line(changed)
                size = path.stat().st_size if path.exists() else 0
                is_full = size + len(line) > self.most_bytes
                if (whole or is_full) and self._rewrite(path, name, totals):
                    self._whole[name] = number
                    return
                if is_full:
                    return
                if not size:
                    path.touch(mode=0o600)
                with path.open("ab") as file:
                    file.write(line if size else _line(name) + line)
            except OSError as error:
                self._failed(error)

    def _rewrite(self, path: Path, name: str, totals: dict[bytes, int]) -> bool:
        """Returns whether they fit into the file."""
        content = _line(name) + _line(totals)
        if len(content) > self.most_bytes:
            return False
        temporary = path.with_suffix(".new")
        temporary.touch(mode=0o600)
        temporary.write_bytes(content)
        os.replace(temporary, path)
        return True

    def _own(self) -> None:
        """Hold a lock for the lifetime of this process, so that no other pod adopts its files."""
        if self._lock_file is not None or fcntl is None:
            return
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        boot = self._counts.segment.name.rpartition("-")[0]
        descriptor = os.open(self._directory / f"{self._prefix}.{boot}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._lock_file = descriptor

    def _delete(self, name: str) -> None:
        with self._writing:
            self._forgotten.append(name)
            self._whole.pop(name, None)
            try:
                self._path(name).unlink(missing_ok=True)
            except OSError as error:
                self._failed(error)

    def _find_orphans(self) -> list[Segment]:
        if fcntl is None:
            return []
        found = []
        try:
            locks = sorted(self._directory.glob(f"{self._prefix}.*.lock"))[:MAX_ORPHANS]
            for lock in locks:
                boot = lock.name[len(self._prefix) + 1 : -len(".lock")]
                if boot == self._counts.segment.name.rpartition("-")[0] or _is_alive(lock):
                    continue
                files = list(self._directory.glob(f"{self._prefix}.{boot}-*.journal"))
                if not files:
                    lock.unlink(missing_ok=True)
                found += [segment for path in files if (segment := self._read(path)) is not None]
        except OSError as error:
            self._failed(error)
        return found

    def _read(self, path: Path) -> Segment | None:
        """The counts in a file. ``None`` when it has none or is too old; then it is deleted."""
        if time.time() - path.stat().st_mtime > KEPT_S:
            logger.warning("journal.too_old path=%s: deleted, and never counted", path)
            path.unlink(missing_ok=True)
            self.expired += 1
            return None
        segment = _counts_in(path)
        if not segment.totals:
            path.unlink(missing_ok=True)
            return None
        return segment

    def _path(self, name: str) -> Path:
        return self._directory / f"{self._prefix}.{name}.journal"

    def _failed(self, error: OSError) -> None:
        self.failures += 1
        if self.failures == 1:
            logger.warning(
                "journal.not_kept dir=%s: %s; the agent continues", self._directory, error.strerror
            )


def _line(content: str | dict[bytes, int]) -> bytes:
    """Begins with a line break, so that a torn line before it damages nothing else."""
    body = msgspec.json.encode(content if isinstance(content, str) else _with_sums(content))
    return b"\n%08x %b\n" % (crc32(body), body)


def _with_sums(counts: dict[bytes, int]) -> dict[str, int]:
    """The sum of each limit, as in version 0.1; then each span of time, with the place of its limit.

    An agent of version 0.1 that adopts the file ignores what has no brace, and counts the sums.
    """
    sums: dict[str, int] = {}
    for key, amount in counts.items():
        limit = key.decode().partition("@")[0]
        sums[limit] = sums.get(limit, 0) + amount
    places = {limit: place for place, limit in enumerate(sums)}
    for key, amount in counts.items():
        limit, timed, span = key.decode().partition("@")
        if timed:
            sums[f"{places[limit]}@{span}"] = amount
    return sums


def _without_sums(line: dict[str, int]) -> dict[str, int]:
    """The spans of time in a line, and what a limit counted beyond them."""
    counts = {name: amount for name, amount in line.items() if "}" in name}
    limits = list(counts)
    for name, amount in line.items():
        place, timed, span = name.partition("@")
        if timed and place.isdecimal() and int(place) < len(limits):
            limit = limits[int(place)]
            counts[f"{limit}@{span}"] = amount
            counts[limit] -= amount
    return counts


def _counts_in(path: Path) -> Segment:
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    segment = Segment(path.name.rpartition(".journal")[0].rpartition(".")[2], adopted=True)
    for line in content.split(b"\n"):
        checksum, _, body = line.partition(b" ")
        if not body or checksum != b"%08x" % crc32(body):
            continue
        try:
            counts = msgspec.json.decode(body, type=dict[str, int] | str)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if isinstance(counts, dict):
            for key, amount in _without_sums(counts).items():
                if amount > 0:
                    segment.totals[key.encode()] = segment.totals.get(key.encode(), 0) + amount
    return segment


def _is_alive(lock: Path) -> bool:
    """Whether the process that made this file still holds its lock."""
    descriptor = os.open(lock, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
