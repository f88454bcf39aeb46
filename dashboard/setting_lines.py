"""What an edit of settings would change, one line for each field."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from controlplane.policies.fields import Fields, different

#: A line: the field, and its values before and after.
Line = tuple[str, str, str]


def setting_lines(before: Fields, after: Fields) -> list[Line]:
    found = different(before, after)
    return [(setting_words(field), said(field, was), said(field, now)) for field, (was, now) in found.items()]


def wrong_lines(errors: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"{setting_words(field)}: {' '.join(texts)}" for field, texts in errors.items()]


def setting_words(field: str) -> str:
    """``protection.bulkhead.max_concurrent`` to "bulkhead max concurrent"."""
    words = field.removeprefix("protection.").removeprefix("observe_for_s.")
    return words.removesuffix("_until_us").replace(".", " ").replace("_", " ")


def said(field: str, value: Any) -> str:
    if value is None or (field.endswith("_until_us") and not value):
        return "off"
    if field.endswith("_until_us"):
        return f"until {datetime.fromtimestamp(value / 1_000_000, UTC):%-d %b %H:%M} UTC"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(said("", one) for one in value) or "none"
    if isinstance(value, dict):
        # A route.
        return f"{value['pattern']} {value['sla_ms']:,} ms"
    return f"{value:,}" if isinstance(value, int) else str(value) or "empty"
