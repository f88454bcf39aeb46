from controlplane.editing.revise import Revision
from controlplane.policies.models import Change


def first_version(revision: Revision, kind: str, name: str) -> int:
    """Return the version below the first one: an entity that returns gets one that no client has read."""
    was = Change.objects.filter(revision__environment=revision.environment, kind=kind, name=name).exists()
    return revision.number - 1 if was else 0
