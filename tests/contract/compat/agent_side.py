"""What pods and shells depend on: commands, variables, keys. Needs neither Django nor a server.

Works on the code that is imported, which may be of an older version: everything is found by the name
that a user knows, not by its place in the source.
"""

import argparse
import contextlib
import importlib
import inspect
import io
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fuseboard
from fuseboard.contract import keys
from tests.contract.compat.parsers import tree

#: What the functions that make a key are given, by parameter.
_EXAMPLES = {
    "environment": "ENV",
    "number": 7,
    "tenant": "tenant",
    "root": "root",
    "dependency": "DEP",
    "limit": "LIMIT",
    "name": "NAME",
    "caller": "CALLER",
    "method": "POST",
    "path": "/PATH",
    "part": "PART",
    "key": "KEY",
    "quota": "QUOTA",
    "account": "ACCOUNT",
    "budget": "BUDGET",
    "subject": "ip=192.0.2.1",
    "limit_key": "fb1:ENV:{d:DEP}:limit:LIMIT",
}


class _Caught(Exception):
    """Stops a command before it does anything."""


def cli(root: Path) -> dict[str, Any]:
    """Every ``fuseboard ...`` command."""
    found: list[argparse.ArgumentParser] = []

    def catch(parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        found.append(parser)
        raise _Caught

    main = _entry_point(root)
    with patch.object(argparse.ArgumentParser, "parse_args", catch), contextlib.suppress(_Caught):
        main([])
    return {"fuseboard": tree(found[0])}


def variables(root: Path) -> dict[str, list[str]]:
    """The variables that a pod and ``fuseboard ctl`` ask for."""
    pod = _Environment(FUSEBOARD_REDIS_URL="redis://127.0.0.1:6379/0")
    fuseboard.AgentSettings.from_env(pod)
    shell = _Environment(FUSEBOARD_API_URL="http://127.0.0.1:1", FUSEBOARD_API_TOKEN="no-token")
    # Nothing listens there; the pauses before it is asked again are not ours to wait for.
    with (
        patch.object(os, "environ", shell),
        patch("time.sleep"),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        _entry_point(root)(["ctl", "breakers"])
    return {"pod": sorted(pod.asked), "fuseboard ctl": sorted(shell.asked)}


def redis_keys(_: Path) -> dict[str, str]:
    """Every key and channel, made of the same examples."""
    made: dict[str, str] = {}
    for name, function in inspect.getmembers(keys, inspect.isfunction):
        parameters = inspect.signature(function).parameters.values()
        if name[0] == "_" or not {"environment", "limit_key"} & {each.name for each in parameters}:
            continue
        plain = [_EXAMPLES[each.name] for each in parameters if each.kind is not each.VAR_POSITIONAL]
        made[name] = function(*plain)
        if len(plain) < len(parameters):
            made[f"{name} with values"] = function(*plain, "one", "two")
    # Which of the hashes a tenant's record is in.
    made["bucket of tenant"] = str(keys.tenant_bucket_number("tenant"))
    return made


#: Name of the file -> what is in it.
SURFACES: dict[str, Callable[[Path], Any]] = {
    "cli": cli,
    "variables_of_agents": variables,
    "redis_keys": redis_keys,
}


class _Environment(dict[str, str]):
    """Remembers which of our variables were asked for."""

    def __init__(self, **given: str) -> None:
        super().__init__(given)
        self.asked: set[str] = set()

    def _note(self, name: object) -> None:
        if isinstance(name, str) and name.startswith("FUSEBOARD_"):
            self.asked.add(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._note(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> str:
        self._note(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self._note(name)
        return super().__contains__(name)


def _entry_point(root: Path) -> Callable[[list[str]], Any]:
    """What the command ``fuseboard`` runs, as the wheel says."""
    scripts = tomllib.loads((root / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, name = scripts["fuseboard"].partition(":")
    found: Callable[[list[str]], Any] = getattr(importlib.import_module(module), name)
    return found
