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
    contract.CHECK_PATH: "Say what would be decided of a request, and charge nothing.",
    contract.EXPLAIN_PATH: "Explain the next decision of a call or a request, and charge nothing.",
    contract.DEPENDENCIES_PATH: "List the dependencies and their breakers, from memory.",
}
_NO_DECISION = {
    "400": "The request is malformed: the detail names the member.",
    "401": "The token is missing or wrong.",
    "403": "The request is not the application's.",
    "404": "The path is unknown.",
    "405": "The path has another method.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "431": "The head is too large.",
    "500": "A defect of the sidecar: its log has the trace.",
    "503": "The sidecar is busy, or cannot answer now.",
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
        [*types, *answers, *contract.READS.values(), Problem], ref_template="#/components/schemas/{name}"
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
        "paths": {path: {"post": _operation(path)} for path in contract.OPERATIONS}
        | {path: {"get": _read(path)} for path in contract.READS},
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
    names = [_schema(answer) for answer in answers]
    return {
        "operationId": path.removeprefix("/v1/").replace("-", "_"),
        "summary": _SUMMARIES[path],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _schema(asked)}}},
        "responses": _responses(names[0] if len(names) == 1 else {"anyOf": names}),
    }


def _read(path: str) -> dict[str, Any]:
    return {
        "operationId": path.removeprefix("/v1/"),
        "summary": _SUMMARIES[path],
        "responses": _responses(_schema(contract.READS[path])),
    }


def _schema(kind: Any) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
    return schema


def _responses(schema: dict[str, Any]) -> dict[str, Any]:
    problem = {"application/problem+json": {"schema": _schema(Problem)}}
    return {
        "200": {
            "description": "A decision, an accepted report, or what was asked.",
            "content": {"application/json": {"schema": schema}},
        },
        **{status: {"description": text, "content": problem} for status, text in _NO_DECISION.items()},
    }
