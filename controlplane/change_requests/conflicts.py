"""Whether the configuration that a request changes is still the one it was made from."""

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from controlplane.approvals import gate
from controlplane.approvals.models import ChangeRequest, ProposedChange
from controlplane.errors import EditConflict, InvalidEdit
from controlplane.policies.conflicts import describe_changes
from controlplane.policies.document import environment_of
from controlplane.policies.fields import different
from controlplane.policies.models import Change
from controlplane.policies.state import read_state

#: Kinds that other things refer to: without one of them, an edit may no longer be valid.
_NAMED = ("tier", "dependency", "template")


def changed_since(row: ChangeRequest) -> QuerySet[Change]:
    """Changes made after the request that affect it, newest first."""
    found = Change.objects.filter(revision__environment=row.environment, revision__number__gt=row.base)
    mine = ProposedChange.objects.filter(request=row)
    # References to a removed thing, or followers of a changed template, may have been added since.
    wide = mine.filter(Q(kind="template") | Q(kind__in=_NAMED, after__isnull=True)).exists()
    if not (row.whole or wide):
        same = Exists(mine.filter(kind=OuterRef("kind"), name=OuterRef("name")))
        found = found.filter(same | Q(kind__in=_NAMED, after__isnull=True))
    return found.select_related("revision").order_by("-revision__number", "kind", "name")


def check_base(row: ChangeRequest, *, making: int | None = None) -> None:
    """Raise ``EditConflict`` when it cannot be applied as it is; ``making`` is the revision being made."""
    if row.lowers_to is not None:
        return
    if found := list(changed_since(row)[:5]):
        latest = found[0].revision
        now = environment_of(row.environment).revision if making is None else making - 1
        raise EditConflict(
            expected_version=row.base,
            current_version=now,
            changed=describe_changes(found),
            by=latest.actor,
            at=latest.at,
        )
    if row.due_at is not None and row.due_at <= timezone.now():
        raise InvalidEdit({"request": ["Its scheduled time has passed: withdraw it and schedule it again."]})
    _check_rows(row)


def _check_rows(row: ChangeRequest) -> None:
    """Rows that were not written by an edit are in no revision."""
    changes = gate.changes_of(row)
    tenants = {change.name for change in changes if change.kind == "tenant"}
    now = read_state(row.environment, tenants=tenants)
    for change in changes:
        if different(change.before, now.get((change.kind, change.name))):
            raise InvalidEdit({"request": [f"{change.kind} {change.name} has changed: rebase the request."]})
