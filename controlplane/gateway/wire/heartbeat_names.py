"""Checks what the types of a heartbeat cannot express."""

from controlplane.gateway.wire.problems import Problem, invalid_field
from fuseboard.contract.sync import SyncRequest
from fuseboard.contract.words import is_slug, is_subject

#: Names remembered: far more than fleets have, and a bound for a client that invents names.
MAX_NAMES = 200_000


def _repeated(names: list[str]) -> Problem:
    """Postgres compares the breakers of two heartbeats by name, so each name must occur once."""
    at = next(at for at, name in enumerate(names) if name in names[:at])
    return invalid_field(
        f"breakers[{at}].dependency", f"{names[at]!r} occurs twice: send one view per dependency"
    )


class HeartbeatNames:
    """Slugs that were checked before. Nearly all of a heartbeat's are, so each pattern is matched once."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def check(self, beat: SyncRequest) -> None:
        """Raises ``Problem`` (422) naming the field."""
        breakers = [view.dependency for view in beat.breakers]
        if len(set(breakers)) < len(breakers):
            raise _repeated(breakers)
        names = [beat.server, beat.service, beat.boot, *breakers]
        names += [counted.dependency for counted in beat.counters.dependencies]
        names += [calls.dependency for calls in beat.protection]
        names += [failed.dependency for failed in beat.failures]
        if not self._known.issuperset(names):
            self._look_at(beat)
        for at, tenant in enumerate(beat.want):
            if not is_subject(tenant):
                raise invalid_field(f"want[{at}]", "expected 1 to 200 characters without control characters")

    def _look_at(self, beat: SyncRequest) -> None:
        self._check(beat.server, "server")
        self._check(beat.service, "service")
        # Agents send hexadecimal digits. Documents of the contract have other letters too.
        self._check(beat.boot, "boot")
        for at, view in enumerate(beat.breakers):
            self._check(view.dependency, f"breakers[{at}].dependency")
        for at, counted in enumerate(beat.counters.dependencies):
            self._check(counted.dependency, f"counters.dependencies[{at}].dependency")
        for at, calls in enumerate(beat.protection):
            self._check(calls.dependency, f"protection[{at}].dependency")
        for at, failed in enumerate(beat.failures):
            self._check(failed.dependency, f"failures[{at}].dependency")

    def _check(self, name: str, field: str) -> None:
        if name in self._known:
            return
        if not is_slug(name):
            raise invalid_field(field, "expected a slug of at most 64 characters")
        if len(self._known) >= MAX_NAMES:
            self._known.clear()
        self._known.add(name)
