"""What clients depend on of the control plane, as far as it shows without a server. Needs Django.

Works on the code that is imported, and on the source below ``root``: both are of one version.
"""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from celery.app.utils import find_app
from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand
from django.urls import resolve, reverse

from tests.contract.compat.openapi import compact
from tests.contract.compat.parsers import tree
from tests.contract.compat.python_api import python_api

_VARIABLE = re.compile(r"FUSEBOARD_[A-Z0-9_]*[A-Z0-9]|DATABASE_URL")
#: ``tenant_quota.set``: what, and what became of it.
_ACTION = re.compile(r"[a-z_]+\.[a-z_]+")


def openapi(_: Path) -> dict[str, Any]:
    # The view of the API's root is the only one that no decorator hides its API from.
    api = resolve(reverse("api:api-root")).func.keywords["api"]
    return compact(api.get_openapi_schema())


def manage(_: Path) -> dict[str, Any]:
    """``manage.py``'s own commands."""
    usual = frozenset(
        name for action in BaseCommand().create_parser("", "")._actions for name in action.option_strings
    )
    ours = {
        name: app
        for name, app in get_commands().items()
        if app.startswith(("controlplane", "dashboard", "tools"))
    }
    return {
        name: tree(load_command_class(app, name).create_parser("manage.py", name), without=usual)
        for name, app in sorted(ours.items())
    }


def variables(root: Path) -> list[str]:
    """Every variable whose name stands in the source as a text of its own."""
    return sorted({text for module in _modules(root) for text in _texts(module) if _VARIABLE.fullmatch(text)})


def audit_actions(root: Path) -> list[str]:
    """What is given to a parameter named ``action``, and what the pages have words for."""
    modules = _modules(root)
    known = {pair for module in modules for pair in _action_parameters(module) if pair[0][0] != "_"}
    found = {
        text for module in modules for text in _given_actions(module, known | {*_action_parameters(module)})
    }
    found |= {text for module in modules for text in _action_words(module)}
    return sorted(text for text in found if _ACTION.fullmatch(text))


def celery(_: Path) -> dict[str, Any]:
    """Tasks by name, and what is due when."""
    app = celery_app()
    schedule = {name: {"task": each["task"]} for name, each in app.conf.beat_schedule.items()}
    return {
        "tasks": sorted(name for name in app.tasks if not name.startswith("celery.")),
        "beat": schedule,
    }


def celery_app() -> Any:
    """The application that ``celery -A controlplane`` finds, with its tasks."""
    app = find_app("controlplane")
    app.loader.import_default_modules()
    return app


#: Name of the file -> what is in it.
SURFACES: dict[str, Callable[[Path], Any]] = {
    "openapi": openapi,
    "manage": manage,
    "variables_of_control_plane": variables,
    "audit_actions": audit_actions,
    "celery": celery,
    # Of the agent: its integrations need Django and more.
    "python_api": python_api,
}


@cache
def _modules(root: Path) -> list[ast.Module]:
    files = [root / "manage.py", *(root / "controlplane").rglob("*.py"), *(root / "dashboard").rglob("*.py")]
    ours = [path for path in files if not {"migrations"} & set(path.relative_to(root).parts)]
    return [ast.parse(path.read_text()) for path in ours]


def _texts(node: ast.AST) -> Iterator[str]:
    for below in ast.walk(node):
        if isinstance(below, ast.Constant) and isinstance(below.value, str):
            yield below.value


def _action_parameters(module: ast.Module) -> Iterator[tuple[str, int]]:
    """Functions with such a parameter -> where in a call it stands."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef):
            names = [each.arg for each in node.args.args if each.arg not in ("self", "cls")]
            if "action" in names:
                yield node.name, names.index("action")


def _action_words(module: ast.Module) -> Iterator[str]:
    """The table that has a heading and a verb for each action."""
    for node in ast.walk(module):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple):
                    yield str(key.value)


def _given_actions(module: ast.Module, places: set[tuple[str, int]]) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef):
            arguments = [*node.args.args, *node.args.kwonlyargs]
            defaults = [*node.args.defaults, *node.args.kw_defaults]
            for argument, default in zip(arguments[-len(defaults) :], defaults, strict=False):
                if argument.arg == "action" and default is not None:
                    yield from _texts(default)
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == "action":
                    yield from _texts(keyword.value)
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            for place, argument in enumerate(node.args):
                if (name, place) in places:
                    yield from _texts(argument)
