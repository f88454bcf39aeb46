"""The OpenAPI document of the sidecar, from the structs that it reads and writes."""

from functools import cache
from typing import Any

import msgspec

from fuseboard.contract import sidecar as contract
from fuseboard.contract.sidecar import Problem

PATH = "/v1/openapi.json"
#: The version of the API, not of the release: members are added within it.
VERSION = "1"

_SUMMARIES = {
    contract.REQUESTS_PATH: "Decide a request that enters the application.",
    contract.CALLS_PATH: "Decide a call that leaves the application, and take reports of calls before it.",
    contract.REPORTS_PATH: "Take reports of how calls ended.",
    contract.FINISH_PATH: "Free the slots of a request that has ended, and settle its costs.",
    contract.GIVE_BACK_PATH: "Refund a call that was not made, or a request that was not served.",
}
_NO_DECISION = {
    "400": "The request is malformed: the detail names the member.",
    "401": "The token is missing or wrong.",
    "403": "The request is not the application's.",
    "404": "The path is unknown.",
    "405": "The method is not POST.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "431": "The head is too large.",
    "500": "A defect of the sidecar: its log has the trace.",
    "503": "The sidecar is busy.",
}


@cache
def encoded() -> bytes:
    """The document as JSON."""
    return msgspec.json.encode(document())


def document() -> dict[str, Any]:
    """OpenAPI 3.1. The answers of a path with 200 are decisions, and all others are none."""
    types = [asked for asked, _ in contract.OPERATIONS.values()]
    answers = [answer for _, answers in contract.OPERATIONS.values() for answer in answers]
    _, schemas = msgspec.json.schema_components(
        [*types, *answers, Problem], ref_template="#/components/schemas/{name}"
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Fuseboard sidecar",
            "version": VERSION,
            "description": "A decision is always 200. With any other status there is no decision.",
        },
        "servers": [{"url": "http://127.0.0.1:7480"}],
        "security": [{"token": []}],
        "paths": {path: {"post": _operation(path)} for path in contract.OPERATIONS},
        "components": {
            "schemas": _portable(schemas),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _portable(schema: Any) -> Any:
    """Patterns as every language reads them: the end of a text is ``$``, which is ``\\Z`` in Python alone."""
    if isinstance(schema, dict):
        return {
            key: value.replace(r"\Z", "$") if key == "pattern" else _portable(value)
            for key, value in schema.items()
        }
    return [_portable(one) for one in schema] if isinstance(schema, list) else schema


def _operation(path: str) -> dict[str, Any]:
    asked, answers = contract.OPERATIONS[path]
    (body,), _ = msgspec.json.schema_components([asked], ref_template="#/components/schemas/{name}")
    names = [{"$ref": f"#/components/schemas/{answer.__name__}"} for answer in answers]
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        "operationId": path.removeprefix("/v1/").replace("-", "_"),
        "summary": _SUMMARIES[path],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {
            "200": {
                "description": "A decision, or an accepted report.",
                "content": {
                    "application/json": {"schema": names[0] if len(names) == 1 else {"anyOf": names}}
                },
            },
            **{status: {"description": text, "content": problem} for status, text in _NO_DECISION.items()},
        },
    }
