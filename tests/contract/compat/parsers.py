"""The options of a command, as data: what a script types, and none of the help it may read."""

import argparse
from typing import Any

#: What a plain parser has by itself.
_USUAL = {"-h", "--help"}


def tree(parser: argparse.ArgumentParser, *, without: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Options by name, positional arguments in order, sub commands below."""
    options: dict[str, Any] = {}
    positionals: list[Any] = []
    commands: dict[str, Any] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands = {name: tree(found, without=without) for name, found in sorted(action.choices.items())}
        elif not action.option_strings:
            positionals.append({"name": action.metavar or action.dest, **_described(action)})
        elif not (_USUAL | without) & set(action.option_strings):
            options |= {name: _described(action) for name in action.option_strings}
    one_of = [
        {"options": sorted(name for each in group._group_actions for name in each.option_strings)}
        | {"required": group.required}
        for group in parser._mutually_exclusive_groups
    ]
    found = {"options": options, "arguments": positionals, "one_of": one_of, "commands": commands}
    return {name: value for name, value in found.items() if value}


def _described(action: argparse.Action) -> dict[str, Any]:
    described: dict[str, Any] = {"takes": _takes(action)}
    if action.required:
        described["required"] = True
    if action.choices is not None:
        described["choices"] = sorted(map(str, action.choices))
    # A default of several words is prose.
    if action.default not in (None, "", False, argparse.SUPPRESS) and " " not in str(action.default):
        described["default"] = action.default
    if action.metavar is not None and action.option_strings:
        described["metavar"] = action.metavar
    return described


def _takes(action: argparse.Action) -> str:
    """``nothing``, ``text`` or ``number``, and how often."""
    if action.nargs == 0:
        return "nothing"
    kind = "number" if action.type in (int, float) else "text"
    return kind if action.nargs is None else f"{kind} {action.nargs}"
