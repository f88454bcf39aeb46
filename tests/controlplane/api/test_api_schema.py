"""The API against its own description: every response to any request is described, and never a 5xx."""

import inspect
import json
from typing import Any

import jsonschema
import pytest
import schemathesis
from django.core.handlers.wsgi import WSGIHandler
from django.db import connection
from hypothesis import HealthCheck, Phase, given, settings
from ninja import Schema
from pydantic import BaseModel
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from controlplane.api.api import api
from controlplane.api.examples import examples
from controlplane.api.schemas import pod_load_out, protection
from tests.controlplane.calling import token_of

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]


def operations() -> dict[str, list[Any]]:
    """By tag: operations of one tag share an environment, which takes longer to create than they take."""
    schema = schemathesis.openapi.from_dict(api.get_openapi_schema())
    schema.app = WSGIHandler()
    found: dict[str, list[Any]] = {}
    for result in schema.get_all_operations():
        operation = result.ok()
        found.setdefault(operation.definition.raw["tags"][0], []).append(operation)
    return found


OPERATIONS = operations()


@pytest.fixture
def one_connection(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests share a connection, as with Django's own test client."""
    connection.close()
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", None)


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("tag", OPERATIONS)
def test_every_response_is_described(one_connection: None, production: str, tag: str, mode: Any) -> None:
    bearer = {"Authorization": f"Bearer {token_of('admin')}"}
    for operation in OPERATIONS[tag]:
        statuses = statuses_of(operation, mode, bearer)
        # Something reached the operation itself.
        assert statuses & {200, 201, 400, 404, 409, 422, 428}, operation.label


def statuses_of(operation: Any, mode: Any, bearer: dict[str, str]) -> set[int]:
    statuses: set[int] = set()

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=6,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def send(case: Any) -> None:
        # Random names almost never match an environment, and the operation would never be reached.
        case.path_parameters["environment"] = "production"
        answer = case.call_and_validate(headers=bearer, base_url="https://testserver", checks=CHECKS)
        statuses.add(answer.status_code)

    send()
    return statuses


#: Parts of documents that have an example of the whole, besides those of protection and load.
PARTS = {
    "AddressedOut",
    "AffectedTenantOut",
    "AlertStepOut",
    "BudgetLeftOut",
    "DependencyFiguresOut",
    "EscalationIn",
    "EscalationOut",
    "FindingOut",
    "IncidentAlertOut",
    "MutedAlertOut",
    "MutedOut",
    "Origin",
    "PresetsIn",
    "RuleFiguresOut",
    "SkipIn",
    "StoreFiguresOut",
    "TenantFiguresOut",
    "TripFiguresOut",
}


def test_every_document_has_a_valid_example() -> None:
    document = json.loads(json.dumps(api.get_openapi_schema()))
    described = document["components"]["schemas"]
    without = {name for name, schema in described.items() if "example" not in schema}
    assert without <= PARTS | {*vars(protection), *vars(pod_load_out)}
    for name, example in examples().items():
        assert described[name]["example"] == example
        assert not example.keys() - described[name]["properties"].keys(), name
        reference = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        jsonschema.validate(example, reference, cls=jsonschema.Draft202012Validator)


def test_every_operation_says_what_it_does_and_what_can_go_wrong() -> None:
    for path, methods in api.get_openapi_schema()["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], (method, path)
            assert {400, 401, 403, 404, 422, 429} <= operation["responses"].keys()
            named = {parameter["name"] for parameter in operation["parameters"]}
            only_asks = method == "get" or path.endswith(("/plan", "/preview", "/what-if", "/explain"))
            assert ("Idempotency-Key" in named) != only_asks, (method, path)


def test_the_reply_of_every_write_can_be_stored() -> None:
    """A row would be returned fine, and fail only with an Idempotency-Key."""
    for bound in api._get_bound_routers():
        for view in bound.path_operations.values():
            for operation in view.operations:
                if operation.methods != ["GET"]:
                    answer = inspect.signature(operation.view_func).return_annotation
                    assert issubclass(answer, BaseModel), operation.view_func


def test_a_stored_reply_is_not_read_again_like_a_row() -> None:
    """Its schema would look for what only the row has, and a repetition would fail."""
    left = [Schema]
    while left:
        schema = left.pop()
        left += schema.__subclasses__()
        assert not schema._ninja_resolvers, f"make {schema} a FromObject"
