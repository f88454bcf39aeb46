"""The documents about what is known of the limits of a vendor."""

from datetime import datetime
from typing import Literal

from ninja import Schema
from pydantic import Field

from controlplane.api.schemas import FromObject
from controlplane.api.schemas.edits_in import Reason, Slug
from controlplane.suggestions.models import Suggestion

SuggestionWord = Literal["limit", "too_low", "slots", "others", "refused"]


class DeclinedOut(Schema):
    """Why a person declined a suggestion. It comes back when its number changes by 10 %."""

    number: int
    by: str
    reason: str
    at: datetime


class SuggestionOut(FromObject):
    """`limit`, `too_low` and `slots` suggest a number for the limit. That of `others` and `refused` is a
    part of the calls, in percent.
    """

    limit: str
    kind: SuggestionWord
    number: int
    configured: int
    evidence: str
    first_at: datetime
    last_at: datetime
    #: `null` unless it was declined, and has not come back.
    declined: DeclinedOut | None

    @staticmethod
    def resolve_declined(row: Suggestion) -> DeclinedOut | None:
        if not row.is_declined or row.declined_at is None or row.declined_number is None:
            return None
        return DeclinedOut(
            number=row.declined_number, by=row.declined_by, reason=row.declined_reason, at=row.declined_at
        )


class LearnedLimitOut(FromObject):
    """`null` is unknown; in `followed`, the configured number applies."""

    name: str
    measure: str
    window_s: int
    configured: int
    followed: int | None
    spent: int | None
    stated: int | None
    stated_by: int = Field(description="Pods that report the stated number.")
    stated_of: int = Field(description="Pods that report any number.")
    answers: int
    since: datetime | None
    left: int | None
    others: int = Field(description="Spent by others with the same key in the last 10 minutes.")
    took_ms: int | None = Field(description="What calls take, where the limit follows it.")
    lowest_ms: int | None = Field(description="The lowest time of calls, where the limit follows it.")


class LearnedOut(FromObject):
    """Reports of pods about the limits of a vendor. Calls are those of the last 10 minutes."""

    dependency: str
    floor_percent: int
    sent: int
    refused: int
    blocked: int
    limits: list[LearnedLimitOut]
    suggestions: list[SuggestionOut]


class DeclineIn(Schema):
    limit: Slug
    kind: SuggestionWord
    reason: Reason
