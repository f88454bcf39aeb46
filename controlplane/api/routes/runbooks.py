"""Runbooks, which all environments share: those of the release, and what people made of them."""

from datetime import datetime
from typing import Annotated

from django.http import HttpRequest, HttpResponse
from ninja import Router, Schema
from pydantic import AfterValidator, Field

from controlplane.api.http.auth import actor_of, needs
from controlplane.api.http.versions import version_read
from controlplane.api.schemas.configuration_out import Done
from controlplane.api.schemas.edits_in import Reason, ReasonIn, RowId, Slug, Title, lines
from controlplane.editing import edits
from controlplane.editing.edits.runbooks import LONGEST_BODY
from controlplane.errors import NotFound
from controlplane.policies.models import RunbookRevision
from controlplane.policies.runbook_texts import Known, Origin, known_runbook, known_runbooks, source_of
from controlplane.runbooks.format import SECTIONS

router = Router()

ExpectedVersion = Annotated[int, Field(ge=0, le=2**31 - 1)]


class RunbookOut(Schema):
    slug: str
    title: str
    #: Markdown.
    body: str
    #: The file of the release with this text; empty if people wrote it.
    source: str
    #: ``shipped``: the text of the release. ``edited``: people changed it. ``own``: no release has it.
    origin: Origin
    #: 0 if it was never edited.
    version: int
    #: Whether the release has a text that the last editor has not compared.
    new_default: bool


class RunbookIn(ReasonIn):
    title: Title
    body: Annotated[
        str,
        Field(
            max_length=LONGEST_BODY,
            description=f"Markdown with the sections {', '.join(SECTIONS)}.",
        ),
        AfterValidator(lines),
    ]
    expected_version: Annotated[
        ExpectedVersion | None,
        Field(description="The version you have read, 0 for a new one. Without it, any text is replaced."),
    ] = None


class RunbookEditIn(ReasonIn):
    expected_version: ExpectedVersion | None = None


class RestoreRunbookIn(RunbookEditIn):
    number: Annotated[int, Field(ge=0, le=2**31 - 1, description="The revision whose text is saved again.")]


class RunbookVersionOut(Schema):
    version: int


class RunbookRevisionOut(Schema):
    #: 0 is the text before the first edit.
    number: int
    title: str
    #: Whether the runbook applied the text of the release from then on.
    shipped: bool
    #: Empty for the text before the first edit.
    by: str
    at: datetime
    reason: str


class WholeRunbookRevisionOut(RunbookRevisionOut):
    body: str


@router.get("", response=list[RunbookOut], operation_id="controlplane_api_configuration_list_runbooks")
def list_runbooks(request: HttpRequest) -> list[RunbookOut]:
    return [_out(known) for _, known in sorted(known_runbooks().items())]


@router.get("/{runbook}", response=RunbookOut, operation_id="controlplane_api_configuration_get_runbook")
def get_runbook(request: HttpRequest, response: HttpResponse, runbook: Slug) -> RunbookOut:
    known = known_runbook(runbook)
    if known is None:
        raise NotFound("runbook", runbook)
    response["ETag"] = f'"{known.version}"'
    return _out(known)


@router.put(
    "/{runbook}",
    response=Done,
    auth=needs("edit_runbook"),
    operation_id="controlplane_api_configuration_save_runbook",
)
def save_runbook(request: HttpRequest, response: HttpResponse, runbook: Slug, values: RunbookIn) -> Done:
    """Create or replace a runbook. Earlier texts stay as its revisions, and releases do not replace it.

    A text is refused if it lacks a section, or names a value or an action that does not exist. The new
    version is in the header `ETag`.
    """
    given = values.expected_version
    version = edits.save_runbook(
        runbook=runbook,
        title=values.title,
        body=values.body,
        reason=values.reason,
        actor=actor_of(request),
        expected_version=version_read(request, given) if _is_given(request, given) else None,
    )
    response["ETag"] = f'"{version}"'
    return Done()


@router.delete("/{runbook}", response=Done, auth=needs("edit_runbook"))
def remove_runbook(
    request: HttpRequest, runbook: Slug, reason: Reason, expected_version: RowId | None = None
) -> Done:
    """Remove a runbook that no release has and no dependency uses, with its revisions."""
    edits.remove_runbook(
        runbook=runbook,
        expected_version=version_read(request, expected_version),
        reason=reason,
        actor=actor_of(request),
    )
    return Done()


@router.get("/{runbook}/revisions", response=list[RunbookRevisionOut])
def list_runbook_revisions(request: HttpRequest, runbook: Slug) -> list[RunbookRevision]:
    """The newest first, at most 100. A runbook that was never edited has none."""
    if known_runbook(runbook) is None:
        raise NotFound("runbook", runbook)
    return list(RunbookRevision.objects.filter(runbook=runbook).defer("body").order_by("-number"))


@router.get("/{runbook}/revisions/{number}", response=WholeRunbookRevisionOut)
def get_runbook_revision(request: HttpRequest, runbook: Slug, number: int) -> RunbookRevision:
    row = RunbookRevision.objects.filter(runbook=runbook, number=min(max(number, 0), 2**31 - 1)).first()
    if row is None:
        raise NotFound("revision of this runbook", str(number))
    return row


@router.post("/{runbook}/restore", response=RunbookVersionOut, auth=needs("edit_runbook"))
def restore_runbook(request: HttpRequest, runbook: Slug, values: RestoreRunbookIn) -> RunbookVersionOut:
    """Save the text of an earlier revision again, as a new revision."""
    version = edits.restore_runbook(
        runbook=runbook,
        number=values.number,
        expected_version=version_read(request, values.expected_version),
        reason=values.reason,
        actor=actor_of(request),
    )
    return RunbookVersionOut(version=version)


@router.post("/{runbook}/use-shipped", response=RunbookVersionOut, auth=needs("edit_runbook"))
def use_shipped_runbook(request: HttpRequest, runbook: Slug, values: RunbookEditIn) -> RunbookVersionOut:
    """Apply the text of the release again, also that of later releases."""
    version = edits.use_shipped_runbook(
        runbook=runbook,
        expected_version=version_read(request, values.expected_version),
        reason=values.reason,
        actor=actor_of(request),
    )
    return RunbookVersionOut(version=version)


@router.post("/{runbook}/keep", response=Done, auth=needs("edit_runbook"))
def keep_edited_runbook(request: HttpRequest, runbook: Slug, values: RunbookEditIn) -> Done:
    """Keep the edited text: the present text of the release is offered no more."""
    edits.keep_edited_runbook(
        runbook=runbook,
        expected_version=version_read(request, values.expected_version),
        reason=values.reason,
        actor=actor_of(request),
    )
    return Done()


def _is_given(request: HttpRequest, version: int | None) -> bool:
    return version is not None or "If-Match" in request.headers


def _out(known: Known) -> RunbookOut:
    follows = known.origin is Origin.SHIPPED
    return RunbookOut(
        slug=known.slug,
        title=known.text.title,
        body=known.text.body,
        source=source_of(known.slug) if follows else "",
        origin=known.origin,
        version=known.version,
        new_default=known.new_default is not None,
    )
