"""The number of approvals that an environment requires."""

import structlog
from django.contrib.auth import get_user_model
from django.db import transaction

from controlplane.accounts.given_access import COUNTS_FOR, different_people
from controlplane.accounts.permissions import may
from controlplane.approvals import proposals
from controlplane.approvals.models import MAX_NEEDED, PENDING, ChangeRequest, Rule
from controlplane.audit.actor import FUSEBOARD, Actor
from controlplane.audit.record import AuditLine, acting, record
from controlplane.errors import InvalidEdit
from controlplane.policies.document import environment_of
from controlplane.policies.models import Environment
from controlplane.validation import Problems

log = structlog.get_logger(__name__)


def set_approvals(*, environment: str, needed: int, reason: str, actor: Actor) -> int:
    """Set how many approvals every edit needs there. Return the number that now applies.

    A higher number applies at once. A lower one needs approval, like any edit: raises ``proposals.Proposed``.
    """
    problems = Problems()
    problems.whole("needed", needed, 0, MAX_NEEDED)
    problems.reason(reason)
    problems.settle()
    head = environment_of(environment).revision
    now = proposals.needed_in(environment)
    if needed == now:
        raise InvalidEdit({"needed": [f"It is {now} already."]})
    if needed > now:
        _check_enough(environment, needed)
        put_needed(environment=environment, needed=needed, reason=reason, actor=actor)
        recount(environment)
        return needed
    with transaction.atomic():
        proposal = proposals.Proposal(
            environment=environment,
            base=head,
            actor=actor,
            reason=reason,
            audit_lines=[
                AuditLine("approvals.set", "environment", environment, {"needed": now}, {"needed": needed})
            ],
            changes=[],
            lowers_to=needed,
        )
        row = proposals.propose(proposal)
    raise proposals.Proposed(row)


def put_needed(*, environment: str, needed: int, reason: str, actor: Actor) -> int:
    """Write the number: after its change was approved, or from a shell on the server."""
    with transaction.atomic():
        acting(actor)
        # Waits for the edits in progress. They use the old number.
        Environment.objects.select_for_update().get(pk=environment)
        before = proposals.needed_in(environment)
        Rule.objects.update_or_create(environment=environment, defaults={"needed": needed})
        record(
            actor=actor,
            action="approvals.set",
            target_kind="environment",
            target_name=environment,
            before={"needed": before},
            after={"needed": needed},
            reason=reason,
            environment=environment,
        )
    log.warning("approvals.set", environment=environment, before=before, needed=needed, by=actor.name)
    return needed


def recount(environment: str) -> None:
    """Update the state of pending requests after the number changed. The caller must hold no lock."""
    rows = ChangeRequest.objects.filter(environment=environment, state__in=PENDING)
    for pk in list(rows.order_by("pk").values_list("pk", flat=True)):
        with transaction.atomic():
            acting(FUSEBOARD)
            row = rows.select_for_update().filter(pk=pk).first()
            if row is not None:
                proposals.count(row)


def approvers(environment: str) -> list[str]:
    """Return the usernames of everyone who may approve there."""
    users = get_user_model()._default_manager.filter(is_active=True).order_by("username")
    return [user.get_username() for user in users if may(user, "approve_change", environment)]


def _check_enough(environment: str, needed: int) -> None:
    """Raise ``InvalidEdit`` if there are too few approvers, because no edit could be made any more."""
    everyone = approvers(environment)
    found = len(different_people(everyone))
    if found < needed + 1:
        linked = (
            f" Of {len(everyone)} accounts, some were given access by another one in the last"
            f" {COUNTS_FOR.days} days."
            if found < len(everyone)
            else ""
        )
        raise InvalidEdit(
            {
                "needed": [
                    f"{needed + 1} people must be able to approve, because an author cannot approve:"
                    f" there are {found} in {environment}.{linked}"
                ]
            }
        )
