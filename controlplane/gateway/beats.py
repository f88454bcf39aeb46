"""What the types of a beat cannot say."""

from controlplane.gateway.problems import invalid_field
from fuseboard.contract.sync import SyncRequest
from fuseboard.contract.words import is_slug, is_subject

#: The largest number Postgres keeps in a bigint.
_LARGEST = 2**63 - 1


def check_names(beat: SyncRequest) -> None:
    """For a server heard for the first time. Raises ``Problem`` (422) naming the field."""
    # A pattern's $ also matches before a final newline, so the types let one through.
    for field, name in (("server", beat.server), ("service", beat.service)):
        if not is_slug(name):
            raise invalid_field(field, "expected a slug of at most 64 characters")


def check_beat(beat: SyncRequest) -> None:
    """Raises ``Problem`` (422) naming the field."""
    if beat.applied.revision > _LARGEST or beat.applied.epoch > _LARGEST:
        raise invalid_field("applied", "epoch and revision are below 2^63")
    for at, view in enumerate(beat.breakers):
        if view.generation > _LARGEST:
            raise invalid_field(f"breakers[{at}].generation", "expected a number below 2^63")
    for at, tenant in enumerate(beat.want):
        if not is_subject(tenant):
            raise invalid_field(f"want[{at}]", "expected 1 to 200 characters without control characters")
