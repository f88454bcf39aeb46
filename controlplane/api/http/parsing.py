"""Bodies and queries, read strictly."""

import inspect
import json
from collections.abc import Callable
from functools import wraps
from typing import Any, cast

from django.http import HttpRequest
from ninja.parser import Parser

from controlplane.errors import InvalidEdit

#: Told to whoever sends something else; ``curl --data`` calls itself a form.
WANTED = "application/json"


class UnreadableBody(ValueError):
    """The body is no JSON of ours; the message says why."""


class UnsupportedBody(ValueError):
    """The body is something else than JSON."""


class StrictParser(Parser):
    """JSON without keys that stand twice, where one reader sees the first and another the last."""

    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        if not is_json(request):
            raise UnsupportedBody(f"Send the body as {WANTED}, in UTF-8 and not compressed.")
        try:
            text = request.body.decode("utf-8")
            body = json.loads(text, object_pairs_hook=_unique, parse_int=_integer)
        except RecursionError:
            raise UnreadableBody("It is nested too deeply.") from None
        except UnicodeDecodeError:
            raise UnreadableBody("It is not UTF-8.") from None
        except json.JSONDecodeError as error:
            raise UnreadableBody(f"{error.msg} in line {error.lineno}, column {error.colno}.") from None
        return cast(dict[str, Any], body)


def known_query(view: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse what stands in the query and means nothing, or twice: it was meant to mean something."""
    names = inspect.signature(view).parameters.keys()

    @wraps(view)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        in_path = request.resolver_match.kwargs if request.resolver_match else {}
        errors = {}
        for name, values in request.GET.lists():
            if name not in names or name in in_path or name in ("request", "response"):
                errors[_shown(name)] = ["There is no such parameter."]
            elif len(values) > 1:
                errors[name] = ["It stands there more than once."]
        if errors:
            raise InvalidEdit(errors)
        return view(request, *args, **kwargs)

    return checked


def _shown(name: str) -> str:
    """What somebody sent as a name, fit to be repeated."""
    return name[:64] if name.isprintable() else "query"


def is_json(request: HttpRequest) -> bool:
    """Whether the body calls itself JSON in UTF-8, and nothing compressed."""
    charset = request.content_params.get("charset", "utf-8") if request.content_params else "utf-8"
    plain = request.headers.get("Content-Encoding", "identity") == "identity"
    return request.content_type == WANTED and charset.lower() in ("utf-8", "utf8") and plain


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise UnreadableBody("A key stands twice in one object.")
    return found


def _integer(digits: str) -> int:
    # Python refuses thousands of digits with an error that names no field. Twenty are too many
    # for any field of ours, so the schema refuses it by name.
    return int(digits[:20])
