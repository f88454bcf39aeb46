"""One example for each document of the API. A test validates each of them with its schema."""

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def examples() -> dict[str, Any]:
    """Name of a schema -> its example. ``{"$ref": name}`` is another example, with the other keys changed."""
    written: dict[str, Any] = {}
    for file in Path(__file__).parent.glob("*.json"):
        written |= json.loads(file.read_text())

    def whole(part: Any) -> Any:
        if isinstance(part, list):
            return [whole(item) for item in part]
        if not isinstance(part, dict):
            return part
        base = whole(written[part["$ref"]]) if "$ref" in part else {}
        return base | {name: whole(value) for name, value in part.items() if name != "$ref"}

    return {name: whole(example) for name, example in written.items()}
