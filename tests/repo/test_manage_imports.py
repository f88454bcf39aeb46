"""Start-up imports stand inside functions, where no import check and no type checker looks."""

import ast
import importlib
import importlib.util
from pathlib import Path

MANAGE = Path(__file__).resolve().parents[2] / "manage.py"


def test_every_name_that_manage_imports_exists():
    found = [node for node in ast.walk(ast.parse(MANAGE.read_text())) if isinstance(node, ast.ImportFrom)]
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
