"""The range of time of a question about stored figures or samples."""

from datetime import datetime, timedelta
from typing import Annotated

from django.utils import timezone
from ninja import Query

from controlplane.api.schemas.edits_in import Moment
from controlplane.errors import InvalidEdit
from controlplane.series.reading import MAX_RANGE

Since = Annotated[Moment | None, Query(description="By default an hour before `until`.")]
Until = Annotated[Moment | None, Query(description="By default now.")]


def range_of(since: Moment | None, until: Moment | None) -> tuple[datetime, datetime]:
    end = until or timezone.now()
    start = since or end - timedelta(hours=1)
    if start >= end:
        raise InvalidEdit({"since": ["Enter a time before the end of the range."]})
    if end - start > MAX_RANGE:
        raise InvalidEdit({"since": [f"Ask for at most {MAX_RANGE.days} days."]})
    return start, end
