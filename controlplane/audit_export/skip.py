"""Leaves out one entry that a target refuses for ever, so that the entries after it arrive.

It cannot be used to hide anything else: only the entry that the target refuses now is left out, after several
attempts, and the entry that says so, with its number and hash, is exported in its place.
"""

from django.db import transaction
from django.db.models import F

from controlplane.audit.actor import Actor
from controlplane.audit.models import Entry
from controlplane.audit.record import record
from controlplane.audit_export.models import Export
from controlplane.errors import InvalidEdit, NotFound
from controlplane.validation import check_reason

#: Refusals of one entry before it can be left out: with the pauses between them, 2 and a half minutes.
MIN_ATTEMPTS = 4


def skip_refused(*, target: str, environment: str, sequence: int, reason: str, actor: Actor) -> Entry:
    """Leave out the entry that ``target`` refuses. Returns the entry that says so.

    Raises ``NotFound`` or ``InvalidEdit``.
    """
    check_reason(reason)
    with transaction.atomic():
        row = Export.objects.select_for_update().filter(pk=target).first()
        refusals = dict(row.refusals) if row is not None else {}
        refused, attempts, problem = refusals.pop(environment, (None, 0, ""))
        if row is None or refused != sequence:
            raise NotFound("refused audit entry", str(sequence))
        if attempts < MIN_ATTEMPTS:
            tried = f"The target refused it {attempts} of {MIN_ATTEMPTS} times."
            raise InvalidEdit({"sequence": [f"{tried} Wait for the next attempt."]})
        left_out = Entry.objects.get(environment=environment, sequence=sequence)
        entry = record(
            actor=actor,
            action="audit_export.skipped",
            target_kind="audit_export",
            target_name=target,
            after={"sequence": sequence, "hash": left_out.hash, "problem": problem, "attempts": attempts},
            reason=reason,
            environment=environment,
        )
        # A process that exports at this moment has an older fence, and moves nothing any more.
        Export.objects.filter(pk=target).update(
            positions=row.positions | {environment: [sequence, left_out.hash]},
            refusals=refusals, fence=F("fence") + 1,
            lease_until=None, not_before=None, failures=0, problem="",
        )  # fmt: skip
    return entry
