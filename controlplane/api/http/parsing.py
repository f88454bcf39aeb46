"""Strict parsing of bodies and query strings."""

import inspect
import json
import re
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, cast, get_args

from django.http import HttpRequest
from ninja import Schema
from ninja.parser import Parser

from controlplane.errors import InvalidEdit

#: Part of the error for other types; ``curl --data`` declares a form.
WANTED = "application/json"

_SURROGATE = re.compile("[\ud800-\udfff]")


class UnreadableBody(ValueError):
    """The body is not valid JSON; the message says why."""


class UnsupportedBody(ValueError):
    """The body is not JSON."""


class StrictParser(Parser):
    """JSON without duplicate keys, of which one parser takes the first and another the last."""

    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        if not is_json(request):
            raise UnsupportedBody(f"Send the body as {WANTED}, in UTF-8 and without compression.")
        try:
            text = request.body.decode("utf-8")
            body = json.loads(text, object_pairs_hook=_unique, parse_int=_integer)
        except RecursionError:
            raise UnreadableBody("It is nested too deeply.") from None
        except UnicodeDecodeError:
            raise UnreadableBody("It is not UTF-8.") from None
        except json.JSONDecodeError as error:
            raise UnreadableBody(f"{error.msg} in line {error.lineno}, column {error.colno}.") from None
        if not all(map(_is_text, _texts(body))):
            raise UnreadableBody("A text in it contains a NUL character, or half of a surrogate pair.")
        return cast(dict[str, Any], body)


class QueryIn(Schema):
    """Several parameters of a query, which operations take together: ``wanted: Query[RefusalsQuery]``."""


def _query_names(view: Callable[..., Any]) -> Iterator[str]:
    for name, parameter in inspect.signature(view).parameters.items():
        of = next(iter(get_args(parameter.annotation)), None)
        yield from of.model_fields if isinstance(of, type) and issubclass(of, QueryIn) else (name,)


def known_query(view: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse unknown and repeated query parameters: the caller meant something by them."""
    names = set(_query_names(view))

    @wraps(view)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        in_path = request.resolver_match.kwargs if request.resolver_match else {}
        errors = {}
        for name, values in request.GET.lists():
            if name not in names or name in in_path or name in ("request", "response"):
                errors[_shown(name)] = ["Unknown parameter."]
            elif len(values) > 1:
                errors[name] = ["Repeated parameter."]
        if errors:
            raise InvalidEdit(errors)
        return view(request, *args, **kwargs)

    return checked


def _shown(name: str) -> str:
    """A name from the request, safe to repeat in an error."""
    return name[:64] if name.isprintable() else "query"


def is_json(request: HttpRequest) -> bool:
    """Whether the body is declared as JSON in UTF-8, without compression."""
    charset = request.content_params.get("charset", "utf-8") if request.content_params else "utf-8"
    plain = request.headers.get("Content-Encoding", "identity") == "identity"
    return request.content_type == WANTED and charset.lower() in ("utf-8", "utf8") and plain


def _texts(body: Any) -> Iterator[str]:
    """Every text in a body, keys too."""
    left = [body]
    while left:
        match left.pop():
            case str(text):
                yield text
            case list(items):
                left.extend(items)
            case dict(fields):
                left.extend(fields)
                left.extend(fields.values())


def _is_text(text: str) -> bool:
    """Whether Postgres stores it."""
    return "\0" not in text and not _SURROGATE.search(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise UnreadableBody("A key occurs twice in one object.")
    return found


def _integer(digits: str) -> int:
    # Python refuses thousands of digits with an error that names no field. Twenty digits are too many for
    # every field, so the schema refuses them by name.
    return int(digits[:20])
