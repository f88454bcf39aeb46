"""A value that is decided in one place is written in one place."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = [
    file
    for folder in ("agents/fuseboard", "controlplane", "dashboard")
    for file in sorted((ROOT / folder).rglob("*.py"))
    if "migrations" not in file.parts
]

#: A value, and the files that may spell it: the one that decides it, and documents that quote it.
ONCE = {
    "production": {"agents/fuseboard/contract/words.py"},
}


@pytest.mark.parametrize("value", ONCE)
def test_a_value_is_spelled_only_where_it_is_decided(value):
    spelled = {
        str(file.relative_to(ROOT))
        for file in PRODUCT
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and node.value == value
    }
    assert spelled == ONCE[value]
