"""The addresses of all gateways, from ``FUSEBOARD_GATEWAY_URL``.

``dns+http://gateway:8001`` stands for each address that the name has, so gateways come and go without a
restart of those who ask them. ``http://gateway-1:8001`` stands for itself.
"""

import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from urllib.parse import urlsplit

import structlog
from django.conf import settings

from controlplane.env import LOOKED_UP

#: Seconds for which the addresses of a name count before they are looked up again.
KEPT_S = 5.0
#: Seconds for which a caller waits for the name server. Then the last addresses count.
WAIT_S = 1.0

log = structlog.get_logger(__name__)


class Names:
    """Looks each name up in a thread, so that a caller waits for at most ``WAIT_S``."""

    def __init__(self) -> None:
        self._lock = Lock()
        #: URL -> when its name was looked up (monotonic), also in vain, and what it stands for.
        self._known: dict[str, tuple[float, list[str]]] = {}
        self._under_way: dict[str, Future[list[str]]] = {}
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="look-up-gateways")

    def each(self, url: str) -> list[str]:
        """One URL for each address. The URL with the name, if no address is known: who asks it says why."""
        with self._lock:
            at, known = self._known.get(url, (float("-inf"), [url.removeprefix(LOOKED_UP)]))
            if time.monotonic() - at < KEPT_S:
                return known
            asked = self._under_way.get(url)
            if asked is None:
                asked = self._under_way[url] = self._threads.submit(self._look_up, url)
        try:
            return asked.result(WAIT_S)
        except TimeoutError:
            # Others do not wait for it, too, until KEPT_S have passed.
            return self._failed(url, "no answer in time")

    def _failed(self, url: str, problem: str) -> list[str]:
        """The last addresses count for ``KEPT_S`` more, so that not each caller asks and logs again."""
        with self._lock:
            at, known = self._known.get(url, (float("-inf"), [url.removeprefix(LOOKED_UP)]))
            if time.monotonic() - at < KEPT_S:
                return known
            self._known[url] = time.monotonic(), known
        log.warning("fleet.gateways_not_looked_up", url=url, error=problem)
        return known

    def _look_up(self, url: str) -> list[str]:
        try:
            parts = urlsplit(url)
            found = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
            # A gateway with addresses of two families is one gateway.
            family = found[0][0]
            hosts = sorted({str(address[0]) for of, *_, address in found if of == family})
            shown = (f"[{host}]" if family == socket.AF_INET6 else host for host in hosts)
            urls = [f"http://{host}:{parts.port or 80}" for host in shown]
            with self._lock:
                self._known[url] = time.monotonic(), urls
            return urls
        except OSError as error:
            return self._failed(url, str(error))
        finally:
            with self._lock:
                del self._under_way[url]


_names = Names()


def gateway_urls() -> list[str]:
    """``http://host:port`` of every gateway, each once; empty when the variable is not set."""
    named: list[str] = settings.GATEWAY_URLS
    found = (_names.each(url) if url.startswith(LOOKED_UP) else [url] for url in named)
    return list(dict.fromkeys(url for urls in found for url in urls))
