"""Seals payloads and results of a backlog with the option ``sealed``, with the keys of the service."""

from collections.abc import Callable

from fuseboard.errors import Misconfigured
from fuseboard.reporting.seals import Seals

#: Before each text: an empty one is sealed too.
_MARK = b"\0"


class Envelopes:
    """``seals`` returns those of the present run of the agent."""

    def __init__(self, seals: Callable[[], Seals], dependency: str, *, used: bool) -> None:
        self._seals, self._dependency, self.used = seals, dependency, used

    @property
    def ready(self) -> bool:
        """Whether there is a key, or none is needed."""
        return not self.used or self._seals().has_keys

    def close(self, what: str, job_id: str, text: bytes) -> bytes | None:
        """The text as Redis gets it; ``None`` before the first key. Raises ``Misconfigured``."""
        if not self.used:
            return text
        kept, sealed = self._seals().seal(self._about(what, job_id), _MARK + text)
        if kept and not sealed:
            raise Misconfigured(
                f"backlog {self._dependency!r} is sealed, and no gateway gives keys: set FUSEBOARD_URL,"
                " update the control plane, or leave out sealed"
            )
        return kept or None

    def open(self, what: str, job_id: str, kept: bytes) -> bytes | None:
        """The text; ``None`` if no pod of the service has sealed it for this job."""
        if not self.used:
            return kept
        seals = self._seals()
        # Without keys, a text counts as it is. Any pod of the environment could have written it.
        text = seals.open(self._about(what, job_id), kept) if seals.has_keys else b""
        return text.removeprefix(_MARK) if text.startswith(_MARK) else None

    def _about(self, what: str, job_id: str) -> bytes:
        # No name of a dependency contains a line end.
        return f"backlog {what}\n{self._dependency}\n{job_id}".encode()
