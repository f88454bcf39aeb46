"""CSV: tenants and their quotas, one quota per row. Prevents spreadsheets from executing cells."""

import csv
import re
from collections.abc import Iterator
from typing import Any

from controlplane.editing.plans.plan import MAX_BYTES, MAX_ROWS, Errors, Plan
from controlplane.editing.plans.schema import Reading
from controlplane.editing.plans.yaml_reading import MAX_SCALAR
from fuseboard.contract.limit_fields import BY_NAME, FIELDS, LISTS, QUOTAS, Flag, Number, Patterns, fields_of

TENANT_COLUMNS = ("tenant", "tier", "title", "suspended", "parent")
QUOTA_COLUMNS = ("quota", *(field.name for field in fields_of(QUOTAS)), "expires_at", "template")
COLUMNS = TENANT_COLUMNS + QUOTA_COLUMNS
_WHOLE = frozenset(field.name for field in FIELDS if isinstance(field, Number))
_FLAGS = frozenset({"suspended", *(field.name for field in FIELDS if isinstance(field, Flag))})

#: Text that a spreadsheet reads as a formula, guarded or not.
_FORMULA = re.compile("'*[=+\\-@\t\r\x00]")
_GUARDED = re.compile("'+[=+\\-@\t\r\x00]")
_NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)


def guard(cell: str) -> str:
    """Return the cell in a form that a spreadsheet displays and does not execute."""
    return f"'{cell}" if _FORMULA.match(cell) else cell


def looks_like_csv(start: bytes) -> bool:
    first = start.removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0].strip().split(b",")
    return first[0].strip(b'"') == b"tenant" and b":" not in first[0]


def read_csv(stream: Any, errors: Errors) -> Plan:
    plan = Plan(sections={"tenant"})
    rows = csv.reader(_lines(stream, errors), strict=True)
    quotas: dict[str, set[str]] = {}
    try:
        header = [name.strip() for name in next(rows)]
        unknown = [name for name in header if name not in COLUMNS]
        if unknown or len(set(header)) != len(header):
            errors.add(1, "", f"The columns are {', '.join(COLUMNS)}, each at most once.")
            return plan
        for cells in rows:
            if cells:
                _row(plan, errors, quotas, header, cells, rows.line_num)
            if len(plan.things) > MAX_ROWS or rows.line_num > 2 * MAX_ROWS:
                errors.add(rows.line_num, "", f"A plan has at most {MAX_ROWS:,} tenants.")
                return plan
    except csv.Error as error:
        errors.add(rows.line_num, "", f"This is not valid CSV: {error}.")
    except UnicodeDecodeError:
        errors.add(rows.line_num + 1, "", "This is not UTF-8.")
    return plan


def _row(
    plan: Plan, errors: Errors, quotas: dict[str, set[str]], header: list[str], cells: list[str], line: int
) -> None:
    if len(cells) != len(header):
        errors.add(line, "", f"{len(cells)} cells, but the header has {len(header)}.")
        return
    given = {name: _bare(cell) for name, cell in zip(header, cells, strict=True) if cell != ""}
    if any(len(cell) > MAX_SCALAR for cell in given.values()):
        errors.add(line, "", f"A cell is longer than {MAX_SCALAR:,} characters.")
        return
    key, quota = given.pop("tenant", ""), given.pop("quota", "")
    value: dict[str, Any] = {name: _value(name, given.pop(name)) for name in TENANT_COLUMNS if name in given}
    if quota:
        if quota in quotas.setdefault(key, set()):
            errors.add(line, f"tenants.{key}.quotas.{quota}", "This quota appears twice.")
        quotas[key].add(quota)
        value["quotas"] = {quota: {name: _value(name, cell) for name, cell in given.items()}}
    elif given:
        errors.add(line, f"tenants.{key}", "Enter the quota that these values are for.")
    fields = Reading(errors, f"tenants.{key}", {}, line).entity("tenant", key, value)
    known = plan.things.setdefault(("tenant", key), {})
    for name in TENANT_COLUMNS:
        if name in fields and name in known and fields[name] != known[name]:
            errors.add(line, f"tenants.{key}.{name}", "An earlier row of this tenant has another value.")
    known.update(fields)
    plan.lines.setdefault(("tenant", key), line)


def _bare(cell: str) -> str:
    return cell[1:] if _GUARDED.match(cell) else cell


def _value(name: str, cell: str) -> Any:
    """Convert a cell. Anything but a number or a flag stays text, which the checks then refuse."""
    if name in _WHOLE:
        return int(cell) if _NUMBER.fullmatch(cell) else cell
    if name in LISTS:
        # One pattern per line where a pattern has spaces, as ``export`` writes it. An editor may write CRLF.
        lines = re.split("[\r\n]+", cell) if isinstance(BY_NAME[name], Patterns) else []
        return [line for line in lines if line] if len(lines) > 1 else cell.split()
    return {"true": True, "false": False}.get(cell, cell) if name in _FLAGS else cell


def _lines(stream: Any, errors: Errors) -> Iterator[str]:
    """Yield lines with their line breaks, as ``csv`` needs them, up to ``MAX_BYTES`` in total."""
    rest, read, first = b"", 0, True
    while part := stream.read():
        read += len(part)
        if read > MAX_BYTES:
            errors.add(0, "", f"The file is larger than {MAX_BYTES // 1024 // 1024} MiB.")
            return
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            text = (line + b"\n").decode()
            yield text.removeprefix("\ufeff") if first else text
            first = False
        if len(rest) > 1_048_576:
            errors.add(0, "", "A line is longer than 1 MiB.")
            return
    if rest:
        yield rest.decode().removeprefix("\ufeff" if first else "")
