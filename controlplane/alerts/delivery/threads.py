"""Threads of a worker that send: a receiver that hangs delays neither another one nor a task."""

import threading
from collections.abc import Callable

import structlog
from django.db import connections

from controlplane.alerts.delivery.claim import MAX_AT_ONCE, send_waiting

log = structlog.get_logger(__name__)


class DeliveryThreads:
    """At most ``most`` threads. Each sends until nothing waits, or for about 10 s, and ends.

    A task starts one more thread per second while deliveries are due, so a slow receiver blocks only its own.
    The end of the process waits for the attempts that are made, at most 40 s (``claim.send_waiting``).
    """

    def __init__(self, most: int, send: Callable[[], object]) -> None:
        self._send = send
        self._free = threading.BoundedSemaphore(most)

    def begin(self) -> bool:
        """Begin to send in another thread; ``False`` if all are busy."""
        if not self._free.acquire(blocking=False):
            return False
        try:
            threading.Thread(target=self._run, name="delivery").start()
        except BaseException:
            self._free.release()
            raise
        return True

    def _run(self) -> None:
        try:
            self._send()
        except Exception:
            # Any worker sends its claimed deliveries again after its lease, by any worker.
            log.exception("alert.delivery_failed")
        finally:
            connections.close_all()
            self._free.release()


#: The threads of this process.
DELIVERY_THREADS = DeliveryThreads(MAX_AT_ONCE, send_waiting)
