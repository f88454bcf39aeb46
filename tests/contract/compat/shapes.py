"""The form of a JSON document: its fields and their types, without the values."""

from functools import reduce
from typing import Any


def shape(value: Any) -> Any:
    """A list is one item that has every field of any; a number is a number, whole or not."""
    if isinstance(value, dict):
        return {name: shape(found) for name, found in value.items()}
    if isinstance(value, list):
        shapes = [shape(item) for item in value]
        return [reduce(merged, shapes)] if shapes else []
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "flag"
    return "number" if isinstance(value, int | float) else "text"


def merged(one: Any, other: Any) -> Any:
    """What is known of a document that was seen twice."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one | {name: merged(one.get(name), found) for name, found in other.items()}
    return one if other in ("null", []) and one is not None else other
