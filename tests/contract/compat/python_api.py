"""What a service imports from the agent: names, parameters, fields. Needs every integrated library."""

import enum
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack, get_args, get_origin

_PROTOCOLS = {"__aenter__", "__aexit__", "__call__", "__enter__", "__exit__"}
#: Each of these libraries has its own environment, because it excludes others.
_APART = {"arq", "dramatiq", "langchain"}
#: Without an underscore, because another module of the package needs them. No page names them.
_INTERNAL = {"acheck", "loop", "made", "settled", "settler", "soon", "tally"}


def python_api(_: Path) -> dict[str, Any]:
    """Module -> name -> what it is called with, or what it has."""
    import fuseboard
    from fuseboard import integrations

    found = {
        "fuseboard": {name: getattr(fuseboard, name) for name in fuseboard.__all__ if name != "blocking"}
    }
    below = [
        f"fuseboard.integrations.{module.name}"
        for module in pkgutil.iter_modules(integrations.__path__)
        if module.name not in _APART
    ]
    for name in ("fuseboard.blocking", *below):
        module = importlib.import_module(name)
        found[name] = {
            each: value
            for each, value in vars(module).items()
            if each[0] != "_" and getattr(value, "__module__", "") == name
        }
    return {name: {each: _described(value) for each, value in names.items()} for name, names in found.items()}


def _described(value: Any) -> Any:
    if isinstance(value, type) and issubclass(value, enum.Enum):
        return {"values": sorted(member.value for member in value)}
    if isinstance(value, type):
        members = {name: _member(value, name) for name in _names(value)}
        parameters = _parameters(value)
        # The agent alone makes those that need something internal.
        made = {} if _INTERNAL & set(parameters) else {"made with": parameters}
        return {**made, "has": members}
    return _parameters(value) if callable(value) else "value"


def _names(of: type) -> list[str]:
    """Public ones that our own classes define, and fields."""
    ours = [each for each in of.__mro__ if each.__module__.startswith("fuseboard")]
    named = {name for each in ours for name in [*vars(each), *vars(each).get("__annotations__", {})]}
    return sorted(name for name in named - _INTERNAL if name[0] != "_" or name in _PROTOCOLS)


def _member(of: type, name: str) -> Any:
    found = getattr(of, name, None)
    if isinstance(found, cached_property) or not inspect.isroutine(found):
        return "value"
    return _parameters(found)[0 if inspect.ismethod(found) else 1 :]


def _parameters(function: Any) -> list[str]:
    """``cost=`` has a default; those after ``*`` are given by name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # made by C
        return []
    written, by_name = [], False
    for each in parameters:
        if get_origin(each.annotation) is Unpack:  # options: all by name, and none is required
            options = get_args(each.annotation)[0].__annotations__
            written += [*([] if by_name else ["*"]), *(f"{name}=" for name in options)]
            continue
        if each.kind is each.KEYWORD_ONLY and not by_name:
            written.append("*")
        by_name = by_name or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        written.append(f"{stars}{each.name}{'' if each.default is each.empty else '='}")
    return written


def broken(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """Both as ``python_api`` makes them."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name, before in old.items():
            if name in new:
                yield from broken(before, new[name], f"{where}{name}: ")
            else:
                yield f"  {where}{name} is missing"
    elif where.endswith("values: "):
        yield from (f"  {where}{value} is missing" for value in old if value not in new)
    elif isinstance(old, list) and isinstance(new, list):
        yield from _broken_call(old, new, where)
    elif old != new:
        yield f"  {where}was {old!r}, is {new!r}"


def _broken_call(old: list[str], new: list[str], where: str) -> Iterator[str]:
    places, names = _places(old), _places(new)
    anything = any(name.startswith("**") for name in new)
    for name, (place, optional) in places.items():
        if name not in names:
            if not anything:
                yield f"  {where}{name} is missing"
        elif place is not None and names[name][0] != place:
            yield f"  {where}{name} is no longer argument {place + 1}"
        elif optional and not names[name][1]:
            yield f"  {where}{name} is required now"
    yield from (
        f"  {where}{name} is new and required"
        for name, (_, optional) in names.items()
        if name not in places and not optional
    )


def _places(parameters: list[str]) -> dict[str, tuple[int | None, bool]]:
    """Name -> where it stands in a call (``None``: given by name), and whether it may be left out."""
    found: dict[str, tuple[int | None, bool]] = {}
    by_name = False
    for place, written in enumerate(parameters):
        if written.startswith("*"):
            by_name = True
        else:
            found[written.rstrip("=")] = None if by_name else place, written.endswith("=")
    return found
