"""A file -> a plan. Each entity is checked by itself, and every error has its line."""

import io
from collections.abc import Mapping
from typing import IO, Any

from controlplane.editing.plans.csv_reading import looks_like_csv, read_csv
from controlplane.editing.plans.plan import MAX_ROWS, Errors, Plan
from controlplane.editing.plans.schema import SECTIONS, Reading
from controlplane.editing.plans.yaml_reading import Lines, Nodes
from controlplane.policies.fields import Fields
from controlplane.policies.protection import POD, PROTECTION

#: Sections of the environment itself.
_OWN = ("default_tier", "tuning", PROTECTION, "subject_limits")


def read_plan(stream: IO[bytes] | IO[str] | bytes | str) -> Plan:
    """Read YAML or CSV without access to the database. Raises ``PlanErrors``."""
    if isinstance(stream, bytes | str):
        stream = io.BytesIO(stream.encode() if isinstance(stream, str) else stream)
    errors = Errors()
    opening = stream.read(4_096)
    start = opening.encode() if isinstance(opening, str) else bytes(opening)
    joined = _Joined(start, stream)
    plan = read_csv(joined, errors) if looks_like_csv(start) else _read_yaml(joined, errors)
    errors.settle()
    return plan


def plan_from_document(document: Mapping[str, Any]) -> Plan:
    """Read a plan from plain data. Raises ``PlanErrors``."""
    errors, plan = Errors(), Plan()
    for section, value in document.items():
        if section in SECTIONS and isinstance(value, Mapping):
            _take(plan, errors, section, "", None, {}, 0)
            for name, fields in value.items():
                _take(plan, errors, section, str(name), fields, {}, 0)
        elif section in SECTIONS:
            errors.add(0, section, "This must be a mapping.")
        else:
            _take(plan, errors, str(section), "", value, {}, 0)
    errors.settle()
    return plan


def _read_yaml(stream: Any, errors: Errors) -> Plan:
    plan = Plan()
    for section, name, value, lines, line in Nodes(stream, errors).entries(frozenset(SECTIONS)):
        _take(plan, errors, section, name, value, lines, line)
    return plan


def _take(plan: Plan, errors: Errors, section: str, name: str, value: Any, lines: Lines, line: int) -> None:
    kind = SECTIONS.get(section)
    if kind is not None:
        plan.sections.add(kind)
        if name or value is not None:
            reading = Reading(errors, f"{section}.{name}", lines, line)
            _put(plan, (kind, name), reading.entity(kind, name, value), line)
        if len(plan.things) > MAX_ROWS:
            errors.add(line, section, f"A plan has at most {MAX_ROWS:,} rows.")
            errors.settle()
    elif section == "environment":
        plan.environment = value if isinstance(value, str) else ""
        if not plan.environment:
            errors.add(line, section, "Enter the name of the environment.")
    elif section in _OWN:
        plan.sections.add(section)
        _put(
            plan,
            ("environment", ""),
            _own(Reading(errors, section, _below(lines), line), section, value),
            line,
        )
    else:
        errors.add(
            line, section, f"There is no such section. The sections are {', '.join((*_OWN, *SECTIONS))}."
        )


def _own(reading: Reading, section: str, value: Any) -> Fields:
    if section == "default_tier":
        if not isinstance(value, str):
            reading.error((), "Enter the name of the tier.")
        return {"default_tier": value}
    if section == "tuning":
        reading.tuning(value)
    elif section == PROTECTION:
        reading.protection(value, POD)
    else:
        reading.limits(section, value)
    return reading.fields


def _put(plan: Plan, thing: tuple[str, str], fields: Fields, line: int) -> None:
    if thing in plan.things:
        plan.things[thing].update(fields)
    else:
        plan.things[thing], plan.lines[thing] = fields, line


def _below(lines: Lines) -> Lines:
    return lines | {path[1:]: line for path, line in lines.items() if len(path) > 1}


class _Joined:
    """A stream of the part that was read already and the rest."""

    def __init__(self, start: bytes, rest: Any) -> None:
        self._start, self._rest = start, rest

    def read(self, size: int = -1) -> bytes:
        if self._start:
            part, self._start = self._start, b""
            return part
        more = self._rest.read(65_536)
        return more.encode() if isinstance(more, str) else bytes(more)
