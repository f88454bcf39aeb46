"""What the types of a beat cannot say."""

from controlplane.gateway.problems import invalid_field
from fuseboard.contract.sync import SyncRequest
from fuseboard.contract.words import is_slug, is_subject

#: Names remembered: far more than fleets have, and an end to what a token run wild may fill.
MOST_NAMES = 200_000


class Names:
    """Slugs that were looked at before: nearly all of a beat's, so that its patterns are matched once."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def check(self, beat: SyncRequest) -> None:
        """Raises ``Problem`` (422) naming the field."""
        known = self._known
        if beat.server not in known:
            self._meet(beat.server, "server")
        if beat.service not in known:
            self._meet(beat.service, "service")
        for view in beat.breakers:
            if view.dependency not in known:
                self._meet(view.dependency, f"breakers[{beat.breakers.index(view)}].dependency")
        counted = beat.counters.dependencies
        for dependency in counted:
            if dependency.dependency not in known:
                where = f"counters.dependencies[{counted.index(dependency)}].dependency"
                self._meet(dependency.dependency, where)
        for at, tenant in enumerate(beat.want):
            if not is_subject(tenant):
                raise invalid_field(f"want[{at}]", "expected 1 to 200 characters without control characters")

    def _meet(self, name: str, field: str) -> None:
        if not is_slug(name):
            raise invalid_field(field, "expected a slug of at most 64 characters")
        if len(self._known) >= MOST_NAMES:
            self._known.clear()
        self._known.add(name)
