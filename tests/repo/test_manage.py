"""manage.py imports inside its functions, where no import check and no type checker looks."""

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
        # A name may be a module of a package.
        if not hasattr(importlib.import_module(node.module), alias.name)
        and importlib.util.find_spec(f"{node.module}.{alias.name}") is None
    ]
    assert found
    assert missing == []
