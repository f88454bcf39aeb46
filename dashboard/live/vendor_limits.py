"""The content of *Vendor limits* on the page of a dependency: who uses them up, and what is suggested."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import InterfaceError, OperationalError
from django.urls import reverse

from controlplane.phrases import amount_words, window_words
from controlplane.suggestions.models import Suggestion, SuggestionKind
from controlplane.suggestions.reading import Learned, LearnedLimit, read_learned
from controlplane.validation import LONGEST_REASON

#: *Follow* fills this in: limits may fall to this part of the configured number, in percent.
FLOOR_PERCENT = 10


@dataclass(frozen=True, kw_only=True)
class VendorLimitRow:
    limit: LearnedLimit
    #: The limit that is used most of those that are used at all.
    is_nearest: bool

    @property
    def rate(self) -> str:
        if self.limit.is_slots:
            return f"{self.limit.configured:,} at once"
        amount = amount_words(self.limit.configured, self.limit.measure)
        return f"{amount} per {window_words(self.limit.window_s)}"


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A suggestion with its buttons."""

    suggestion: Suggestion
    title: str
    #: The form of the limit, filled in; empty if no number is suggested.
    use_url: str
    #: The form of the environment, filled in; empty if limits follow already.
    follow_url: str


@dataclass(frozen=True, kw_only=True)
class VendorLimits:
    learned: Learned
    rows: Sequence[VendorLimitRow]
    offers: Sequence[Offer]
    declined: Sequence[Suggestion]


def vendor_limits_of(environment: str, dependency: str) -> VendorLimits | None:
    """``None`` while Postgres, which has them, is unavailable: the rest of the page stays."""
    try:
        learned = read_learned(environment, dependency)
    except (OperationalError, InterfaceError):
        return None
    nearest = max(learned.limits, key=lambda limit: limit.share or 0.0, default=None)
    by_name = {limit.name: limit for limit in learned.limits}
    return VendorLimits(
        learned=learned,
        rows=[
            VendorLimitRow(limit=limit, is_nearest=limit is nearest and bool(limit.share))
            for limit in learned.limits
        ],
        offers=[
            _offer(learned, row, by_name[row.limit]) for row in learned.suggestions if not row.is_declined
        ],
        declined=[row for row in learned.suggestions if row.is_declined],
    )


def title_of(suggestion: Suggestion) -> str:
    """The suggestion in a few words."""
    name = f"\u201c{suggestion.limit}\u201d"
    match suggestion.kind:
        case SuggestionKind.LIMIT:
            return f"The vendor allows less than the limit {name}"
        case SuggestionKind.TOO_LOW:
            return f"The vendor allows more than the limit {name}"
        case SuggestionKind.SLOTS:
            return f"The vendor allows fewer calls at once than the limit {name}"
        case SuggestionKind.OTHERS:
            return f"Others use {suggestion.number} % of the limit {name}"
        case _:
            return f"The vendor refuses {suggestion.number} % of the calls below the limit {name}"


def _offer(learned: Learned, row: Suggestion, limit: LearnedLimit) -> Offer:
    reason = row.evidence[:LONGEST_REASON]
    use_url = ""
    if row.kind in (SuggestionKind.LIMIT, SuggestionKind.TOO_LOW, SuggestionKind.SLOTS):
        query = {"key": row.dependency, f"limit.{row.limit}.limit": str(row.number), "reason": reason}
        if limit.burst == limit.configured:
            # A bucket that may be emptied at once stays one.
            query[f"limit.{row.limit}.burst"] = str(row.number)
        use_url = reverse("edit", args=["dependency"], query=query)
    follow_url = ""
    if not learned.floor_percent:
        query = {"own.tuning.vendor_floor_percent": str(FLOOR_PERCENT), "reason": reason}
        follow_url = reverse("edit", args=["environment"], query=query)
    return Offer(suggestion=row, title=title_of(row), use_url=use_url, follow_url=follow_url)
