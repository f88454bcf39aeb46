"""Pods that report what a vendor states."""

import time
from typing import Any

from controlplane.editing import edits
from controlplane.policies.models import Dependency
from controlplane.suggestions.edits import look_for_suggestions
from tests.dashboard.fleet_rows import put_server
from tests.people import ADA

LIMIT: dict[str, Any] = {"environment": "production", "dependency": "openai", "name": "rate"}


def version() -> int:
    return Dependency.objects.get(name=LIMIT["dependency"]).version


def set_limit(number: int = 900, **values: Any) -> None:
    edits.set_vendor_limit(
        **LIMIT | {"algorithm": "sliding_window", "limit": number, "window_s": 60} | values,
        expected_version=version(),
        reason="as in the contract",
        actor=ADA,
    )


def report(
    said: int = 600, *, pods: int = 3, followed: int = 0, answers: int = 100, limit: str = "rate"
) -> None:
    """Each pod reports this of the limit, and 200 calls."""
    since = round(time.time()) - 3_600
    row = [LIMIT["dependency"], limit, said, followed, answers if said else 0, since, 40 if said else None]
    for number in range(pods):
        put_server(f"web-{number}", seen=[[*row, 200, 0, 0, 0]])


def suggest(said: int = 600, **options: Any) -> None:
    report(said, **options)
    look_for_suggestions()
