"""When each alert began. The status itself comes first, because all processes agree on it."""

from collections.abc import Iterable
from dataclasses import replace

from controlplane.alerts.findings import Finding


class FirstSeen:
    """Remembers, for one observer, when it first saw an alert whose beginning the status does not show."""

    def __init__(self) -> None:
        self._moments: dict[str, float] = {}

    def dated(self, findings: Iterable[Finding], now: float) -> tuple[Finding, ...]:
        """Every finding with a beginning. Alerts that no longer fire are forgotten."""
        findings = tuple(findings)
        self._moments = {one.key: self._moments.get(one.key, now) for one in findings if one.since is None}
        return self.peek(findings, now)

    def peek(self, findings: Iterable[Finding], now: float) -> tuple[Finding, ...]:
        """The same without remembering anything."""
        return tuple(
            one if one.since is not None else replace(one, since=self._moments.get(one.key, now))
            for one in findings
        )
