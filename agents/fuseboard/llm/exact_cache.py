"""Answers to requests that were asked before, word by word, in the memory of one process."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from hashlib import sha256
from threading import Lock
from time import monotonic
from typing import Any, NamedTuple

import msgspec

from fuseboard.agent_api.arguments import usage_of
from fuseboard.calling.current_tenant import current_tenant
from fuseboard.decision import Amounts
from fuseboard.errors import Misconfigured


class _Kept(NamedTuple):
    answer: Any
    at: float
    usage: dict[str, int]


class ExactCache:
    """At most ``most`` answers, none older than ``max_age_s``. The one that was not used longest is dropped.

    ``request`` is what the client is called with: model, messages and parameters. Each tenant has its own
    answers: that of ``fuseboard.tenant`` or of the request that is served, unless ``tenant`` names one. Only
    requests with ``temperature`` 0 are cached, because others want a new answer each time; with
    ``any_temperature``, all are. An answer is kept as it is, so do not change it. Safe from any thread.

    ::

        found = cache.get(request)
        chain = agent.fallback("llm", [Cached(lambda: cache.get(request), max_age_s=600)])
    """

    def __init__(
        self,
        *,
        most: int = 1_000,
        max_age_s: float = 3_600.0,
        any_temperature: bool = False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        if type(most) is not int or most < 1:
            raise Misconfigured(f"most is a number of answers of at least 1, not {most!r}")
        if not max_age_s > 0:
            raise Misconfigured(f"max_age_s must be more than 0 seconds, not {max_age_s!r}")
        self._most, self._max_age_s, self._any = most, max_age_s, any_temperature
        self._clock = clock
        self._lock = Lock()
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        #: Requests that were answered from here, and those that were not.
        self.hits = self.misses = 0
        #: The usage of the answers that were not asked for again, by measure.
        self.saved: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, request: Mapping[str, Any], *, tenant: str | None = None) -> tuple[Any, float] | None:
        """The answer and its age in seconds, as ``Cached`` takes them; ``None`` if there is none."""
        if not self._caches(request):
            return None
        key = _key(request, tenant)
        with self._lock:
            kept = self._kept.get(key)
            age_s = self._clock() - kept.at if kept is not None else 0.0
            if kept is None or age_s > self._max_age_s:
                self._kept.pop(key, None)
                self.misses += 1
                return None
            self._kept.move_to_end(key)
            self.hits += 1
            for measure, amount in kept.usage.items():
                self.saved[measure] = self.saved.get(measure, 0) + amount
            return kept.answer, age_s

    def put(
        self,
        request: Mapping[str, Any],
        answer: Any,
        *,
        usage: Amounts | Mapping[str, int] | None = None,
        tenant: str | None = None,
    ) -> None:
        """Keep an answer. ``usage``: what it has used, in the units of its measures, for ``saved``."""
        if not self._caches(request):
            return
        kept = _Kept(answer, self._clock(), usage_of(usage) if usage is not None else {})
        key = _key(request, tenant)
        with self._lock:
            self._kept[key] = kept
            self._kept.move_to_end(key)
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)

    def clear(self) -> None:
        """Forget all answers, of all tenants. The figures stay."""
        with self._lock:
            self._kept.clear()

    def _caches(self, request: Mapping[str, Any]) -> bool:
        return self._any or request.get("temperature") == 0


def _key(request: Mapping[str, Any], tenant: str | None) -> bytes:
    """Requests with the same fields in another order are the same."""
    whose = current_tenant() if tenant is None else tenant
    return sha256(msgspec.json.encode([whose, dict(request)], order="deterministic")).digest()
