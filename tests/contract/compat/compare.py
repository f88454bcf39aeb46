"""Finds what is recorded and is missing or different today. Additions are allowed."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RECORD = Path(__file__).parent / "v0.1.0"

_WHAT_TO_DO = """
Version 0.1.0 has it, so a client may depend on it. Keep the old name beside the new one for a release, mark
it deprecated and count its use: see tests/contract/compat/README.md. Do not change the record to make this
pass.
"""


def recorded(name: str) -> Any:
    return json.loads((RECORD / f"{name}.json").read_text())


def check(name: str, today: Any, differences: Callable[[Any, Any], Iterator[str]]) -> None:
    """Fail with every difference between the record and today."""
    found = list(differences(recorded(name), json.loads(json.dumps(today))))
    assert not found, f"{name}: not as in version 0.1.0\n" + "\n".join(found) + _WHAT_TO_DO


def missing_names(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Of lists, texts; of mappings, names with equal values below."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name, value in old.items():
            if name not in new:
                yield f"  {where}{name} is missing"
            else:
                yield from missing_names(value, new[name], f"{where}{name}: ")
    elif isinstance(old, list) and isinstance(new, list):
        yield from (f"  {where}{item} is missing" for item in old if item not in new)
    elif old != new:
        yield f"  {where}was {old!r}, is {new!r}"


def missing_values(old: dict[str, str], new: dict[str, str]) -> Iterator[str]:
    """Values alone: the names in the record are those of functions, which may change."""
    there = set(new.values())
    yield from (f"  {value} ({name}) is missing" for name, value in old.items() if value not in there)


def broken_commands(old: dict[str, Any], new: dict[str, Any], where: str = "") -> Iterator[str]:
    """Of trees as ``parsers.tree`` makes them, by the name of the command."""
    for name, before in old.items():
        if name not in new:
            yield f"  {where}{name}: there is no such command"
        else:
            yield from _broken_command(before, new[name], f"{where}{name}")


def _broken_command(old: dict[str, Any], new: dict[str, Any], where: str) -> Iterator[str]:
    options, now = old.get("options", {}), new.get("options", {})
    for name, before in options.items():
        if name not in now:
            yield f"  {where}: {name} is missing"
        else:
            yield from _broken_argument(before, now[name], f"{where} {name}")
    yield from (
        f"  {where}: {name} is new and required" for name in now.keys() - options.keys() if _needed(now[name])
    )
    arguments, today = old.get("arguments", []), new.get("arguments", [])
    for number, before in enumerate(arguments):
        if number >= len(today):
            yield f"  {where}: argument {number + 1} ({before['name']}) is missing"
        else:
            yield from _broken_argument(before, today[number], f"{where} argument {number + 1}")
    yield from (
        f"  {where}: argument {each['name']} is new and required"
        for each in today[len(arguments) :]
        if _needed(each)
    )
    yield from _broken_groups(old.get("one_of", []), new.get("one_of", []), where)
    yield from broken_commands(old.get("commands", {}), new.get("commands", {}), f"{where} ")


def _broken_argument(old: dict[str, Any], new: dict[str, Any], where: str) -> Iterator[str]:
    """How it is called in the help (``name``, ``metavar``) is for people."""
    for what in ("takes", "required", "default"):
        if old.get(what) != new.get(what):
            yield f"  {where}: {what} was {old.get(what)!r}, is {new.get(what)!r}"
    choices = new.get("choices")
    if choices is not None:
        if "choices" not in old:
            yield f"  {where}: only some values are allowed now"
        yield from (
            f"  {where}: {choice} cannot be chosen"
            for choice in old.get("choices", [])
            if choice not in choices
        )


def _needed(argument: dict[str, Any]) -> bool:
    return bool(argument.get("required"))


def _broken_groups(old: list[Any], new: list[Any], where: str) -> Iterator[str]:
    """Options of which only one, or exactly one, may be given."""
    was = {option: group for group in old for option in group["options"]}
    for group in new:
        known = [option for option in group["options"] if option in was]
        if len(known) > 1 and len({id(was[option]) for option in known}) > 1:
            yield f"  {where}: {', '.join(known)} exclude each other now"
        if group["required"] and not any(was.get(option, {}).get("required") for option in known):
            yield f"  {where}: one of {', '.join(group['options'])} is required now"


def broken_shapes(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Of documents as ``shapes.shape`` makes them. ``null`` was all that was seen, and promises nothing."""
    if old == "null":
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for name, value in old.items():
            if name not in new:
                yield f"  {where}{name} is missing"
            else:
                yield from broken_shapes(value, new[name], f"{where}{name}.")
    elif isinstance(old, list) and isinstance(new, list):
        if old and new:
            yield from broken_shapes(old[0], new[0], f"{where}[].")
        elif old:
            yield f"  {where}[] was seen with items, is empty"
    elif old != new:
        yield f"  {where.rstrip('.')} was {old!r}, is {new!r}"
