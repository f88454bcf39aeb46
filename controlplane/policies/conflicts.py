"""Detects that another person edited the same thing, and reports what they changed."""

from collections.abc import Iterable

from controlplane.audit.models import Entry
from controlplane.errors import EditConflict
from controlplane.policies.document import environment_of
from controlplane.policies.fields import Fields, different
from controlplane.policies.history import changed_since, changes_of, first_recorded
from controlplane.policies.models import Change


def check_version(
    *, environment: str, target_kind: str, target_name: str, expected: int | None, now: Fields
) -> None:
    """Raise ``EditConflict`` unless ``now`` has the version that the edit is based on.

    ``None`` skips the check, for commands and seeds.
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


def check_revision(*, environment: str, expected: int | None, making: int | None = None) -> None:
    """Raise ``EditConflict`` when the configuration was changed after revision ``expected``.

    Revisions without changes of the configuration, such as an override, do not conflict. ``None``
    skips the check. ``making`` is the revision being made, which does not conflict with itself.
    """
    now = environment_of(environment).revision if making is None else making - 1
    if expected is None or expected == now:
        return
    changes = changed_since(environment, expected)
    first = first_recorded(environment)
    if not changes and first is not None and first <= expected + 1 and expected < now:
        return
    latest = changes[0].revision if changes else None
    raise EditConflict(
        expected_version=expected,
        current_version=now,
        changed=describe_changes(changes),
        by=latest.actor if latest else "",
        at=latest.at if latest else None,
    )


def describe_changes(changes: Iterable[Change]) -> dict[str, str]:
    """Return thing -> the fields that its newest change changed, or "removed". ``changes``: newest first."""
    found: dict[str, str] = {}
    for change in changes:
        text = "removed" if change.after is None else ", ".join(different(change.before, change.after))
        found.setdefault(f"{change.kind} {change.name}", text)
    return found


def check_section(environment: str, section: str, *, expected: int, head: int, now: Fields) -> None:
    """Raise ``EditConflict`` when a section of the environment was changed after revision ``expected``.

    ``head`` is the newest revision, and ``now`` has the fields of the environment.
    """
    if expected == head:
        return
    prefix = f"{section}."
    later = [
        change
        for change in changes_of(environment, "environment", environment, after=expected)
        if _part(change.before, prefix) != _part(change.after, prefix)
    ]
    first = first_recorded(environment)
    is_known = first is not None and first <= expected + 1 and expected <= head
    if is_known and not later:
        return
    was = _part(later[0].before, prefix) if later else {}
    is_now = _part(now, prefix)
    if is_known and was == is_now:
        return
    latest = later[-1].revision if later else None
    raise EditConflict(
        expected_version=expected,
        current_version=head,
        changed={field: after for field, (_, after) in different(was, is_now).items()},
        by=latest.actor if latest else "",
        at=latest.at if latest else None,
    )


def _part(fields: Fields | None, prefix: str) -> Fields:
    return {field: value for field, value in (fields or {}).items() if field.startswith(prefix)}
