"""Two people, one thing: the second is told what the first has changed."""

from controlplane.audit.models import Entry
from controlplane.policies.errors import EditConflict
from controlplane.policies.fields import Fields


def check_version(
    *, environment: str, target_kind: str, target_name: str, expected: int | None, now: Fields
) -> None:
    """Raise ``EditConflict`` unless ``now`` is the version the edit was made on.

    ``None`` is for callers that want the newest, whatever it is: commands and seeds.
    """
    if expected is None or expected == now["version"]:
        return
    entries = Entry.objects.filter(
        environment=environment, target_kind=target_kind, target_name=target_name
    ).order_by("-id")
    latest = entries.first()
    base = entries.filter(after__version=expected).first()
    known: Fields = (base.after if base else None) or {}
    raise EditConflict(
        expected_version=expected,
        current_version=now["version"],
        changed={
            field: now.get(field)
            for field in sorted(known.keys() | now.keys())
            if field != "version" and known.get(field) != now.get(field)
        },
        by=latest.actor if latest else "",
        at=latest.at if latest else None,
    )
