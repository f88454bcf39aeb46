"""The tabs of Changes: five lists of what happened, is proposed, and will happen."""

from dataclasses import dataclass

from django.http import HttpRequest
from django.urls import reverse

from controlplane.accounts.permissions import environment_in, may
from controlplane.approvals.pending import pending_in
from controlplane.schedules.models import Schedule, ScheduleState
from dashboard.navigation import SECTIONS

#: Name of the page -> what it lists.
_WORDS = {
    "changes": "All",
    "revisions": "Edits",
    "requests": "Waiting for approval",
    "schedules": "Scheduled",
    "audit": "Audit",
}


@dataclass(frozen=True, kw_only=True)
class Tab:
    word: str
    link: str
    here: bool
    #: How many wait there; ``None`` for a list of the past.
    waiting: int | None = None
    #: How many are approved, and wait until an admin applies them.
    approved: int = 0
    #: How many failed, and no operator has acknowledged it.
    failed: int = 0


@dataclass(frozen=True, kw_only=True)
class ChangeTabs:
    #: The name of the page that is open, as the side bar has it.
    heading: str
    tabs: tuple[Tab, ...]
    #: Pages of the reader that make changes: the words and the address of each.
    buttons: tuple[tuple[str, str], ...]


def change_tabs(request: HttpRequest, here: str) -> ChangeTabs:
    """The tabs as the page with this name draws them."""
    environment = environment_in(request)
    due = Schedule.objects.filter(environment=environment)
    requests = pending_in(environment)
    waiting = {
        "requests": requests.open,
        "schedules": due.filter(state=ScheduleState.WAITING).count(),
    }
    failed = due.filter(state=ScheduleState.FAILED, seen=False).count()
    buttons = (("edit_quota", "Import", "import"), ("freeze_edits", "Freeze edits", "edit_freeze"))
    return ChangeTabs(
        heading=next(entry.name for entry in SECTIONS["Changes"] if entry.view == here),
        tabs=tuple(
            Tab(
                word=word,
                link=reverse(page),
                here=page == here,
                waiting=waiting.get(page),
                approved=requests.approved if page == "requests" else 0,
                failed=failed if page == "schedules" else 0,
            )
            for page, word in _WORDS.items()
        ),
        buttons=tuple(
            (words, reverse(page))
            for action, words, page in buttons
            if may(request.user, action, environment)
        ),
    )
