"""How a record is written: what fits into a line stands in one, so that a difference is one line."""

import json
from typing import Any

_WIDTH = 108


def pretty(value: Any, indent: int = 0) -> str:
    """JSON, sorted by key."""
    line = json.dumps(value, ensure_ascii=False, sort_keys=True)
    if len(line) + indent <= _WIDTH or not isinstance(value, dict | list) or not value:
        return line
    pad = " " * (indent + 1)
    if isinstance(value, dict):
        parts = [f"{pad}{json.dumps(key)}: {pretty(value[key], indent + 1)}" for key in sorted(value)]
    else:
        parts = [f"{pad}{pretty(item, indent + 1)}" for item in value]
    opens, closes = "{}" if isinstance(value, dict) else "[]"
    return opens + "\n" + ",\n".join(parts) + "\n" + " " * indent + closes
