"""Change requests that are neither applied nor refused, as the frame and the first page display them."""

from dataclasses import dataclass

from django.db.models import Count, Q

from controlplane.approvals.models import PENDING, ChangeRequest, RequestState
from controlplane.audit.action_words import proposal_words

#: The first page lists so many.
_NEWEST = 3


@dataclass(frozen=True)
class PendingRequest:
    number: int
    action: str
    target: str
    author: str
    state: str

    @property
    def words(self) -> str:
        return proposal_words(self.action, self.target)

    @property
    def is_approved(self) -> bool:
        return self.state == RequestState.APPROVED


@dataclass(frozen=True, kw_only=True)
class Pending:
    #: How many need another approval, and how many have all of them and wait until an admin applies them.
    open: int = 0
    approved: int = 0
    #: A few of them, the newest first.
    newest: tuple[PendingRequest, ...] = ()


def pending_in(environment: str) -> Pending:
    rows = ChangeRequest.objects.filter(environment=environment, state__in=PENDING)
    is_approved = Q(state=RequestState.APPROVED)
    found = rows.aggregate(open=Count("pk", filter=~is_approved), approved=Count("pk", filter=is_approved))
    if not any(found.values()):
        return Pending()
    newest = rows.order_by("-pk").values_list("pk", "action", "target", "author", "state")[:_NEWEST]
    return Pending(**found, newest=tuple(PendingRequest(*values) for values in newest))
