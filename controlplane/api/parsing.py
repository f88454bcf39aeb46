import json
from typing import Any, cast

from django.http import HttpRequest
from ninja.parser import Parser


class StrictParser(Parser):
    """JSON without keys that stand twice, where one reader sees the first and another the last."""

    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        try:
            body = json.loads(request.body, object_pairs_hook=_unique, parse_int=_integer)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        return cast(dict[str, Any], body)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice")
    return found


def _integer(digits: str) -> int:
    # Python refuses thousands of digits with an error that names no field. Twenty are too many
    # for any field of ours, so the schema refuses it by name.
    return int(digits[:20])
