"""The name and the values of a field, as differences and errors show them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from controlplane.policies.limit_fields import WORDS
from controlplane.policies.setting_labels import (
    BREAKER,
    CALL_PARTS,
    LABELS,
    POD_PARTS,
    SCALES,
    name_and_unit,
)
from dashboard.words.entity_fields import OWN
from dashboard.words.money_words import PRICE_LABELS, price_text
from fuseboard.contract.protection_fields import CALL_SETTINGS, TIERS

#: Fields of a budget whose names do not say enough.
_BUDGET = {"at_100": "When it is spent", "warn_percent": "Warn at, %"}
_OWN = {own.name: own.label.partition(":")[0] for each in OWN.values() for own in each}
#: Prefixes that a form or a plan writes before the name of a limit.
_LIMITS = frozenset(("limit", "quotas", "vendor_limits", "subject_limits"))
#: Columns of a limit that are no field of its contract.
_COLUMNS = {
    "expires_at": "Ends",
    "own": "Own values beside its template",
    "returns_to": "Afterwards",
    "template": "Template",
}
#: Unit of a label -> as it stands after a number, as in all tables.
_UNIT_OF_VALUES = {"per second": "/s", "calls per second": "calls/s"}
_SWITCHES = {f"protection.{part}.on": name for part, name in {**CALL_PARTS, **POD_PARTS}.items()}
_FOR_EACH_TIER = frozenset(
    f"protection.{setting.path}" for setting in CALL_SETTINGS if setting.kind in ("numbers", "words")
)


def wrong_lines(errors: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"{setting_words(field)}: {' '.join(texts)}" for field, texts in errors.items()]


def setting_words(field: str) -> str:
    """``protection.bulkhead.max_concurrent`` to "Bulkhead: calls at once"."""
    return _name_and_unit(field)[0]


def column_label(column: str) -> str:
    """``window_s``, a column of a limit, to "Window"."""
    return _column(column)[0]


def value_text(field: str, value: Any) -> str:
    """Return a value with the unit of its field."""
    column = field.rpartition(".")[2]
    if field.startswith("prices.") and column in PRICE_LABELS and isinstance(value, int):
        return price_text(column, value)
    if field == "pool" and not value:
        return "by host"
    if field in ("runbook", "parent", "raised_until", "instead_of") and not value:
        return "none"
    if field == "raised_until":
        return f"{datetime.fromisoformat(value).astimezone(UTC):%-d %b %Y %H:%M} UTC"
    if value is None or (field.endswith("_until_us") and not value):
        return "off"
    if field.endswith("_until_us"):
        return f"until {datetime.fromtimestamp(value / 1_000_000, UTC):%-d %b %H:%M} UTC"
    if isinstance(value, bool):
        return "yes" if value else "no"
    unit = _name_and_unit(field)[1]
    unit = _UNIT_OF_VALUES.get(unit, unit)
    if isinstance(value, list):
        of = [f"{tier} " for tier in TIERS] if field in _FOR_EACH_TIER else [""] * len(value)
        after = f" {unit}" if unit else ""
        return (
            ", ".join(f"{who}{value_text('', one)}{after}" for who, one in zip(of, value, strict=False))
            or "none"
        )
    if isinstance(value, dict):
        # A route.
        return f"{value['pattern']} {value['sla_ms']:,} ms"
    if not isinstance(value, int):
        return str(value) or "empty"
    amount = f"{value / SCALES[field]:,g}" if field in SCALES else f"{value:,}"
    return f"{amount}{unit}" if unit.startswith("/") else f"{amount} {unit}".rstrip()


def _name_and_unit(field: str) -> tuple[str, str]:
    field = field.removeprefix("own.")
    first, _, rest = field.partition(".")
    limit, _, column = rest.rpartition(".")
    if first == "prices" and column in PRICE_LABELS:
        start = limit.replace("T", " ").replace("Z", " UTC")
        return f"Price from {start}, {PRICE_LABELS[column]}", ""
    if first == "new":
        return _column(rest)
    if first in _LIMITS and limit:
        name, unit = _column(column)
        return f"{limit}, {lower_first(name)}", unit
    if first == "observe_for_s":
        return _name_and_unit(f"protection.observe.{rest}_until_us")
    label = LABELS.get(field) or _OWN.get(field) or _SWITCHES.get(field) or _BUDGET.get(field)
    # The inputs of a setting with a value for each tier of calls.
    if label is None and field.rpartition(".")[2] in TIERS:
        label = LABELS.get(field.rpartition(".")[0])
    if label is None and field in BREAKER:
        label = LABELS[f"breaker.{field}"]
    return name_and_unit(label) if label else (field.replace(".", " ").replace("_", " ").capitalize(), "")


def _column(column: str) -> tuple[str, str]:
    label = WORDS[column].label if column in WORDS else _COLUMNS.get(column, column.capitalize())
    name, unit = name_and_unit(label)
    return name, {"seconds": "s", "percent": "%"}.get(unit, unit)


def lower_first(text: str) -> str:
    """``Without Redis`` to "without Redis"."""
    return text[:1].lower() + text[1:]
