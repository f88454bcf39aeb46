"""All rows, in the order of the matrix."""

import re

# Importing them adds their rows.
from tests.faults import (
    rows_backup,
    rows_both,
    rows_breaker,
    rows_desk,
    rows_gone,
    rows_invented,
    rows_jobs,
    rows_limits,
    rows_locks,
    rows_misled,
    rows_models,
    rows_network,
    rows_pod,
    rows_poisoned,
    rows_pooler,
    rows_profiles,
    rows_sidecar,
    rows_start,
    rows_stores,
    rows_trust,
    rows_truth,
    rows_upgrade,
)
from tests.faults.matrix import ROWS, Row

__all__ = [
    "ROWS",
    "Row",
    "rows_backup",
    "rows_both",
    "rows_breaker",
    "rows_desk",
    "rows_gone",
    "rows_invented",
    "rows_jobs",
    "rows_limits",
    "rows_locks",
    "rows_misled",
    "rows_models",
    "rows_network",
    "rows_pod",
    "rows_poisoned",
    "rows_pooler",
    "rows_profiles",
    "rows_sidecar",
    "rows_start",
    "rows_stores",
    "rows_trust",
    "rows_truth",
    "rows_upgrade",
]


def _place(row: Row) -> tuple[bool, int, str]:
    # A fleet remembers its size for minutes: it can be doubled only before other pods were added.
    return row.name != "doubling", int(re.sub(r"\D", "", row.number)), row.number


ROWS.sort(key=_place)
