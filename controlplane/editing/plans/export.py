"""Exports the configuration as a file. Applying it unmodified changes nothing."""

import csv
import io
import re
from collections.abc import Iterator
from typing import Any

from controlplane.editing.plans.csv_reading import COLUMNS, QUOTA_COLUMNS, guard
from controlplane.policies.fields import Fields, limits_in
from controlplane.policies.limits import columns_of_edit
from controlplane.policies.protection import CALL, completed, protection_in
from controlplane.policies.state import State, read_state

#: Text that needs no quotes in YAML.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*", re.ASCII)
_RESERVED = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
_DERIVED = ("returns_to",)


def export_plan(environment: str) -> Iterator[str]:
    """Yield YAML, part by part. Raises ``NotFound`` at once."""
    state = read_state(environment)
    return _yaml(environment, state)


def export_csv(environment: str) -> Iterator[str]:
    """Yield tenants and their own quotas as CSV. Cells that a spreadsheet would execute are guarded."""
    state = read_state(environment)
    return _csv(state)


def _yaml(environment: str, state: State) -> Iterator[str]:
    own = state["environment", environment]
    yield f"environment: {_scalar(environment)}\ndefault_tier: {_scalar(own['default_tier'])}\n"
    yield f"tuning: {_flow(_below('tuning', own))}\n"
    if protection := protection_in(own):
        yield f"protection: {_scalar(protection)}\n"
    yield from _limits("subject_limits", own, "")
    yield from _section("templates", "template", state)
    yield from _section("tiers", "tier", state)
    yield from _section("dependencies", "dependency", state)
    yield from _section("models", "model", state)
    yield from _section("accounts", "account", state)
    yield from _section("descriptors", "descriptors", state)
    yield from _section("tenants", "tenant", state)
    yield from _section("budgets", "budget", state)


def _section(section: str, kind: str, state: State) -> Iterator[str]:
    names = sorted(name for found, name in state if found == kind)
    yield f"{section}:\n" if names else f"{section}: {{}}\n"
    for name in names:
        yield "".join(_entity(kind, name, state[kind, name]))


def _entity(kind: str, name: str, fields: Fields) -> Iterator[str]:
    yield f"  {_scalar(name)}:\n"
    for field, value in fields.items():
        if kind == "descriptors":
            yield f"    {field}: {_file(value)}"
        elif "." not in field:
            yield f"    {field}: {_scalar(value if value is not None else '')}\n"
    if kind == "dependency":
        # A field that is 0 is absent, and a new dependency gets another value.
        fields = {"breaker.window_calls": 0} | fields
    if breaker := _below("breaker", fields):
        yield f"    breaker: {_flow(breaker)}\n"
    if kind == "dependency":
        protection = protection_in(fields)
        # Every value is exported: an older row lacks some, and a new one would get others.
        yield f"    protection: {_scalar(completed(protection, CALL) if protection else 'off')}\n"
    if kind == "model":
        yield from _prices(fields)
    elif kind not in ("template", "account", "budget", "descriptors"):
        yield from _limits("vendor_limits" if kind == "dependency" else "quotas", fields, "    ")


def _limits(prefix: str, fields: Fields, indent: str) -> Iterator[str]:
    limits = limits_in(prefix, fields)
    if limits or not indent:
        yield f"{indent}{prefix}:\n" if limits else f"{indent}{prefix}: {{}}\n"
    for name, columns in limits.items():
        said = {column: value for column, value in columns_of_edit(columns).items() if column not in _DERIVED}
        yield f"{indent}  {_scalar(name)}: {_flow(said)}\n"


def _prices(fields: Fields) -> Iterator[str]:
    prices = limits_in("prices", fields)
    yield "    prices:\n" if prices else "    prices: {}\n"
    for start, columns in prices.items():
        yield f"      {_scalar(start)}: {_flow(columns)}\n"


def _flow(values: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{_scalar(name)}: {_scalar(value)}" for name, value in values.items()) + "}"


def _file(text: str) -> str:
    """A text of lines as a person wrote them. What YAML would read as another text is quoted."""
    *lines, last = text.split("\n")
    if last or not lines or not all(map(str.isprintable, lines)):
        return f"{_scalar(text)}\n"
    return "|2+\n" + "".join(f"      {line}\n" if line else "\n" for line in lines)


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, dict):
        return _flow(value)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return _flow({route["pattern"]: route["sla_ms"] for route in value})
    if isinstance(value, list):
        return "[" + ", ".join(map(_scalar, value)) + "]"
    text = str(value)
    plain = _PLAIN.fullmatch(text) and text.lower() not in _RESERVED
    return text if plain else '"' + "".join(map(_quoted, text)) + '"'


def _quoted(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    return letter if " " <= letter <= "~" else f"\\U{ord(letter):08x}"


def _below(prefix: str, fields: Fields) -> dict[str, Any]:
    mark = f"{prefix}."
    return {field.removeprefix(mark): value for field, value in fields.items() if field.startswith(mark)}


def _csv(state: State) -> Iterator[str]:
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\r\n")
    writer.writeheader()
    for (kind, key), fields in sorted(state.items()):
        if kind != "tenant":
            continue
        own: Fields = {
            name: fields[name] for name in ("tier", "title", "suspended", "parent") if name in fields
        }
        row: dict[str, Any] = {"tenant": key, **own}
        quotas = [
            {"quota": name, **{column: said[column] for column in QUOTA_COLUMNS if column in said}}
            for name, columns in limits_in("quotas", fields).items()
            for said in [columns_of_edit(columns)]
        ]
        for quota in quotas or [{}]:
            writer.writerow({name: _cell(value) for name, value in {**row, **quota}.items()})
        if out.tell() > 65_536:
            yield out.getvalue()
            out.seek(0)
            out.truncate()
    yield out.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        # One line per value. A single value has a line break, too, so that it is not split at its spaces.
        spaced = any(each.split() != [each] for each in value)
        return guard("".join(f"{each}\n" for each in value) if spaced else " ".join(value))
    return guard(str(value))
