"""Named ways to repeat calls. An admin selects one for a dependency, an application for some of its calls."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

#: Name -> fields of ``Retry``; the other fields stay as they are.
RETRY_PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "user-facing": {"attempts": 2, "base_ms": 500, "cap_ms": 2_000},
        "background": {"attempts": 5, "base_ms": 2_000, "cap_ms": 60_000},
        # A repeated question to a model costs money and does no harm. Most models name no wait with a 429.
        "llm": {
            "attempts": 3,
            "base_ms": 1_000,
            "cap_ms": 60_000,
            "default_retry_after_ms": 60_000,
            "idempotent": True,
        },
        "rate-limited": {"attempts": 3, "base_ms": 2_000, "cap_ms": 120_000},
    }
)
