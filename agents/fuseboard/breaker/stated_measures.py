"""Notes the measures that calls to a dependency state, and those that its limits count but no call states."""

import logging
from collections.abc import Iterable

from fuseboard.contract.policy import Limit

logger = logging.getLogger("fuseboard.limits")

#: The most measures that are noted. An application may make a name from each request.
MAX_MEASURES = 1_000


class StatedMeasures:
    """Warns of the first call that misses a measure, unless not ``warns``."""

    def __init__(self, dependency: str, *, warns: bool) -> None:
        self._dependency, self._warns = dependency, warns
        self._warned: set[str] = set()
        self.forget()

    def forget(self) -> None:
        """The limits have changed."""
        self._missed, self._stated = set[str](), set[str]()

    @property
    def uncharged(self) -> list[str]:
        """Measures that limits count, and in which no call has stated a cost since the limits changed."""
        return sorted(self._missed - self._stated)

    def state(self, stated: set[str]) -> None:
        """Costs in these measures are charged."""
        if len(self._stated) < MAX_MEASURES:
            self._stated |= stated

    def note(self, stated: set[str], limits: Iterable[Limit]) -> None:
        """A call states costs in these measures. A limit of another measure does not count it."""
        self.state(stated)
        for limit in limits:
            if limit.measure in stated or limit.measure in self._missed:
                continue
            self._missed.add(limit.measure)
            if self._warns and limit.measure not in self._warned:
                self._warned.add(limit.measure)
                logger.warning(
                    "limits.not_counted dependency=%s limit=%s: a call stated no cost in %s, so the limit did"
                    " not count it: pass costs={%r: estimate}",
                    self._dependency,
                    limit.name,
                    limit.measure,
                    limit.measure,
                )
