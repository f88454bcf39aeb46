"""Reads the figures of backlogs that a worker keeps in Postgres. Blocking: call it in a thread."""

from controlplane.backlogs.figures import BacklogSeen, from_document
from controlplane.backlogs.models import Backlog


def read_backlogs(environment: str) -> tuple[BacklogSeen, ...]:
    rows = Backlog.objects.filter(environment=environment).order_by("dependency")
    return tuple(from_document(row.dependency, row.document, row.read_at.timestamp()) for row in rows)
