"""Completes ninja's OpenAPI document: problems, headers, examples."""

import re
from collections.abc import Container
from typing import Any

from controlplane.api.examples import examples
from controlplane.api.http.headers import REPLAYED
from controlplane.api.http.parsing import QueryIn
from controlplane.api.http.problems import CONTENT_TYPE

_DOCUMENT = {"$ref": "#/components/schemas/Problem"}

_PROBLEM_SCHEMA = {
    "title": "Problem",
    "description": "RFC 9457. ``type`` says what happened, for programs; ``detail`` what to do, for people.",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["field", "message"],
                "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
            },
        },
        "expected_version": {"type": "integer"},
        "current_version": {"type": "integer"},
        "changed": {
            "type": "object",
            "description": "What another person changed meanwhile: field and value.",
        },
        "changed_by": {"type": "string"},
        "changed_at": {"type": ["string", "null"]},
    },
    "example": {
        "type": "urn:fuseboard:problem:invalid",
        "title": "Unprocessable Entity",
        "status": 422,
        "detail": "limit: Enter a whole number.",
        "errors": [{"field": "limit", "message": "Enter a whole number."}],
    },
}

#: Status -> when it is sent. Every operation may also answer 5xx, which ``default`` describes.
_ALWAYS = {
    400: "The request cannot be read",
    401: "No valid token, and no session",
    403: "The role, or the token's scope or environment, does not allow it; or the CSRF token is missing",
    404: "The environment or resource does not exist",
    422: "Fields are not valid; ``errors`` names them",
    429: "Too many requests; see ``Retry-After``",
}
_OF_WRITES = {
    409: "Another person changed it meanwhile; or a request with this key is still in progress",
    413: "The body is too large",
    415: "The body is not JSON",
    428: "No version was sent, as If-Match or expected_version",
}

_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Chosen by you, new for each edit. The same request sent again within 24 hours gets the"
    " same response, with Idempotency-Replayed: true and Idempotent-Replayed: true, and changes nothing.",
    "schema": {"type": "string", "pattern": "^[!-+\\--~]{1,200}$"},
}
_IF_MATCH = {
    "name": "If-Match",
    "in": "header",
    "required": False,
    "description": "The ETag you have read, instead of expected_version or expected_revision.",
    "schema": {"type": "string", "pattern": '^"[0-9]{1,9}"$'},
}
_IF_NONE_MATCH = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "description": "The ETag you have; 304 when the content has not changed.",
    "schema": {"type": "string", "pattern": '^"[0-9a-f]{1,40}"$'},
}
_RATE_HEADERS = {
    "RateLimit": {"schema": {"type": "string"}, "description": "Remaining requests."},
    "RateLimit-Policy": {"schema": {"type": "string"}, "description": "The caller's rate limit."},
}
_TAG_HEADER = {"ETag": {"schema": {"type": "string"}, "description": "For If-None-Match and If-Match."}}
_REPLAYED = {
    name: {"schema": {"type": "string"}, "description": "true: this request changed nothing."}
    for name in REPLAYED
}


#: Below an environment: writes that become change requests where edits need approval.
_EDITS = re.compile(
    r"/api/v1/\{environment\}/((configuration|tenants|tiers|templates|subject-limits|dependencies|apply"
    r"|rollback|bulk)(/|$)|(schedules|approvals)$)"
)
_WAITS = {
    "description": "Edits need approval in this environment: the edit became a change request, and has"
    " changed nothing yet. ``Location`` is its path",
    "headers": _RATE_HEADERS
    | _REPLAYED
    | {"Location": {"schema": {"type": "string"}, "description": "Path of the change request."}},
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/RequestRow"}}},
}


def describe(schema: Any, reads: Container[str]) -> None:
    """Complete the document in place. ``reads`` has the ids of operations that change nothing.

    Some of them use POST because their input is long; they are marked with ``changes_nothing``.
    """
    schemas = schema["components"]["schemas"]
    # The fields of a query are parameters of its operation, and no operation refers to the query itself.
    for query in QueryIn.__subclasses__():
        schemas.pop(query.__name__, None)
    schemas["Problem"] = _PROBLEM_SCHEMA
    for name, example in examples().items():
        schemas[name]["example"] = example
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            edits = method != "get" and operation["operationId"] not in reads
            _describe_operation(path, method, operation, schemas, edits=edits)


def _describe_operation(path: str, method: str, operation: Any, schemas: Any, *, edits: bool) -> None:
    writes = method != "get"
    parameters = operation.setdefault("parameters", [])
    for answer in operation["responses"].values():
        answer["headers"] = _RATE_HEADERS | (_REPLAYED if writes else _TAG_HEADER)
    if writes:
        if edits:
            parameters.append(_IDEMPOTENCY_KEY)
        if _is_versioned(operation, schemas):
            parameters.append(_IF_MATCH)
    else:
        parameters.append(_IF_NONE_MATCH)
        operation["responses"][304] = {"description": "The content has not changed"}
    if edits and _EDITS.match(path):
        operation["responses"][202] = _WAITS
    for status, when in (_ALWAYS | (_OF_WRITES if writes else {})).items():
        operation["responses"][status] = _problem(when)
    operation["responses"]["default"] = _problem("Any other problem")


def _is_versioned(operation: Any, schemas: Any) -> bool:
    named = {parameter["name"] for parameter in operation["parameters"]}
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    reference = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    fields = named | schemas.get(reference, {}).get("properties", {}).keys()
    return bool(fields & {"expected_version", "expected_revision"})


def _problem(when: str) -> dict[str, Any]:
    return {"description": when, "content": {CONTENT_TYPE: {"schema": _DOCUMENT}}}
