"""Returns the text of a runbook: the one that people wrote, or else the one that the release ships."""

from dataclasses import dataclass
from enum import StrEnum

from controlplane.policies.models import Runbook
from controlplane.runbooks.shipped import Text, shipped


class Origin(StrEnum):
    #: The text of this release.
    SHIPPED = "shipped"
    #: People changed the text of a release.
    EDITED = "edited"
    #: No release has a runbook of this name.
    OWN = "own"
    #: The text of this release, because Postgres cannot be read: people may have changed it.
    UNREAD = "unread"


@dataclass(frozen=True)
class Known:
    slug: str
    text: Text
    origin: Origin
    version: int = 0
    #: The text of this release, if people wrote another one.
    default: Text | None = None
    #: The text of a release with which the last editor compared this one.
    compared: Text | None = None

    @property
    def new_default(self) -> Text | None:
        """The text of this release, if the last editor has not compared it."""
        return self.default if self.default != self.compared else None


def known_runbooks() -> dict[str, Known]:
    """Slug -> each runbook that can be read, those of the release included."""
    found = {slug: Known(slug, text, Origin.SHIPPED) for slug, text in shipped().items()}
    return found | {row.slug: _known(row) for row in Runbook.objects.all()}


def known_runbook(slug: str) -> Known | None:
    row = Runbook.objects.filter(slug=slug).first()
    if row is not None:
        return _known(row)
    text = shipped().get(slug)
    return Known(slug, text, Origin.SHIPPED) if text is not None else None


def shipped_runbooks() -> dict[str, Known]:
    """Return the texts of the release, for the time in which Postgres cannot be read."""
    return {slug: Known(slug, text, Origin.UNREAD) for slug, text in shipped().items()}


def runbook_choices() -> list[tuple[str, str]]:
    """Slug and title of every runbook, sorted by title."""
    return sorted(
        ((slug, known.text.title) for slug, known in known_runbooks().items()), key=lambda one: one[1]
    )


def is_runbook(slug: str) -> bool:
    return slug in shipped() or Runbook.objects.filter(slug=slug).exists()


def runbook_row(slug: str) -> Runbook | None:
    """The row of a runbook. A shipped one gets its row when it is first used; needs a transaction."""
    row = Runbook.objects.filter(slug=slug).first()
    text = shipped().get(slug)
    if row is not None or text is None:
        return row
    row, _ = Runbook.objects.get_or_create(
        slug=slug, defaults={"title": text.title, "body": text.body, "source": source_of(slug)}
    )
    return row


def source_of(slug: str) -> str:
    return f"runbooks/{slug}.md"


def _known(row: Runbook) -> Known:
    default = shipped().get(row.slug)
    text = Text(row.title, row.body)
    if row.source and default is not None:
        return Known(row.slug, default, Origin.SHIPPED, row.version)
    if default is None:
        return Known(row.slug, text, Origin.OWN, row.version)
    compared = Text(row.default_title, row.default_body) if row.default_title else None
    return Known(row.slug, text, Origin.EDITED, row.version, default, compared)
