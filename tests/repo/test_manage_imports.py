"""Start-up imports stand inside functions, where no import check and no type checker looks."""

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("file", ["manage.py", "controlplane/command_line.py"])
def test_every_name_that_a_start_imports_exists(file):
    text = (ROOT / file).read_text()
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    missing = [
        f"{node.module}.{alias.name}"
        for node in found
        for alias in node.names
        if not _has(importlib.import_module(node.module), alias.name)
    ]
    assert found
    assert missing == []


def _has(module, name):
    """Whether a module has a name, or as a package a module of that name."""
    if hasattr(module, name):
        return True
    return hasattr(module, "__path__") and importlib.util.find_spec(f"{module.__name__}.{name}") is not None
