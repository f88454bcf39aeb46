"""Revisions that pods report and Postgres never made.

A token of a pod must not stop publishing, so such a report is an alert and nothing more. It is believed
only when Redis has a newer head too, see ``publish``, or when the history in Postgres has that revision.
Even then a number of a pod counts only within these bounds.
"""

from dataclasses import dataclass

from django.db import connection

from fuseboard.contract.policy import ConfigHead

#: The largest revision and epoch that is stored of a heartbeat: JSON and Lua count exactly up to here.
LARGEST = 2**53

#: How far above the head a pod can be after a restore.
NEAR_REVISIONS = 1_000_000
NEAR_EPOCHS = 1_000

#: Pods listed per environment.
MAX_LISTED = 100

# One statement, so that head and pods are of one moment: a pod applies a revision after its commit.
SELECT = f"""
    SELECT s.name, s.epoch, s.revision, r.number IS NOT NULL
    FROM fleet_server s
    JOIN policies_environment e ON e.slug = s.environment
    LEFT JOIN policies_revision r
      ON r.environment = s.environment AND r.epoch = s.epoch AND r.number = s.revision
    WHERE s.environment = %s AND s.state <> 'gone' AND (s.epoch, s.revision) > (e.epoch, e.revision)
    ORDER BY r.number IS NULL, s.name LIMIT {MAX_LISTED}
"""  # noqa: S608 - a number of this code


@dataclass(frozen=True, order=True)
class UnknownRevision:
    """The report of one pod."""

    server: str
    epoch: int
    revision: int
    #: Whether the history in Postgres has it, although the environment is at an older one.
    in_history: bool = False

    def is_near(self, head: ConfigHead) -> bool:
        """Whether it can come from a restore of ``head``, and not from a pod that makes up numbers."""
        return self.epoch <= head.epoch + NEAR_EPOCHS and self.revision <= head.revision + NEAR_REVISIONS


_LARGEST_NEAR = """
    SELECT max(s.epoch), max(s.revision)
    FROM fleet_server s
    JOIN policies_environment e ON e.slug = s.environment
    WHERE s.environment = %s AND s.state <> 'gone' AND (s.epoch, s.revision) > (e.epoch, e.revision)
      AND s.epoch <= %s AND s.revision <= %s
"""


def largest_near(environment: str, head: ConfigHead) -> tuple[int, int] | None:
    """The largest epoch, and the largest revision, of all pods that are near the head and above Postgres."""
    with connection.cursor() as cursor:
        cursor.execute(_LARGEST_NEAR, [environment, head.epoch + NEAR_EPOCHS, head.revision + NEAR_REVISIONS])
        epoch, revision = cursor.fetchone()
    return None if epoch is None else (epoch, revision)


def unknown_revisions(environment: str) -> list[UnknownRevision]:
    """The pods with a revision above that of Postgres, by name, at most ``MAX_LISTED``."""
    with connection.cursor() as cursor:
        cursor.execute(SELECT, [environment])
        return sorted(UnknownRevision(*row) for row in cursor.fetchall())
