"""Requests about the configuration as a whole."""

from typing import Annotated, Any, Literal

from pydantic import Field

from controlplane.api.schemas.edits_in import (
    Endpoint,
    ExpectedRevision,
    Moment,
    Parent,
    ReasonIn,
    Slug,
    Strict,
    Subject,
    Text,
)


class ScheduleIn(ReasonIn):
    due_at: Moment
    title: Text = ""
    document: Annotated[
        dict[str, Any], Field(max_length=10, description="The changes, in the form of a plan.")
    ]


class RollbackIn(ReasonIn):
    to_revision: Annotated[int, Field(ge=0, le=2**53)]
    expected_revision: ExpectedRevision | None = None


class RevertThing(Strict):
    """A thing that the revision changed, and which of its units to revert."""

    kind: Literal[
        "account",
        "budget",
        "dependency",
        "descriptors",
        "environment",
        "model",
        "template",
        "tenant",
        "tier",
    ]
    name: Subject
    units: Annotated[
        list[Annotated[str, Field(max_length=200)]],
        Field(max_length=200, description="As the preview names them; empty for all of them."),
    ] = []  # noqa: RUF012


class RevertIn(ReasonIn):
    things: Annotated[
        list[RevertThing] | None,
        Field(min_length=1, max_length=1_000, description="What to revert; omit it for the whole revision."),
    ] = None
    on_conflict: Annotated[
        Literal["keep", "overwrite", "fail"],
        Field(description="What to do with values that another edit has changed since."),
    ] = "keep"
    expected_revision: ExpectedRevision | None = None


class BulkFilter(Strict):
    """Tenants that match every given condition; without conditions, no tenant matches."""

    tier: Slug | Literal[""] = ""
    prefix: Subject | Literal[""] = ""
    has_quota: bool | None = None
    quota: Slug | Literal[""] = ""
    suspended: bool | None = None
    parent: Subject | Literal[""] = ""
    keys: Annotated[list[Subject], Field(max_length=1_000, description="Ids of tenants; empty for any.")] = []  # noqa: RUF012
    everybody: bool = False


class BulkChange(Strict):
    """The change to each tenant; omitted values stay as they are."""

    tier: Slug | None = None
    suspended: bool | None = None
    parent: Parent | None = None
    quotas: Annotated[
        dict[Slug, dict[Slug, int | bool | Text | list[Endpoint]]],
        Field(max_length=20, description="Quota name -> its columns, as in a plan."),
    ] = {}  # noqa: RUF012
    remove_quotas: Annotated[list[Slug], Field(max_length=20)] = []  # noqa: RUF012
    scale_percent: Annotated[
        dict[Slug, Annotated[int, Field(ge=1, le=10_000)]],
        Field(max_length=20, description="Quota name -> percent of its current value."),
    ] = {}  # noqa: RUF012


class BulkIn(ReasonIn):
    filter: BulkFilter
    change: BulkChange
    expected_revision: ExpectedRevision | None = None
