from collections.abc import Collection

from controlplane.editing.revise import Revision
from controlplane.policies.models import Change


def first_version(revision: Revision, kind: str, name: str) -> int:
    """Return the version below the first one: an entity that returns gets one that no client has read."""
    return first_versions(revision, kind, [name])[name]


def first_versions(revision: Revision, kind: str, names: Collection[str]) -> dict[str, int]:
    """Return the version below the first one of each of these new entities, with one statement."""
    if not names:
        return {}
    rows = Change.objects.filter(revision__environment=revision.environment, kind=kind, name__in=list(names))
    known = set(rows.values_list("name", flat=True).distinct())
    return {name: revision.number - 1 if name in known else 0 for name in names}
