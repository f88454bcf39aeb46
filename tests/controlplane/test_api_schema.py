"""The API against its own description: every response to any request is described, and never a 5xx."""

import inspect
import json
from typing import Any

import pytest
import schemathesis
from django.core.handlers.wsgi import WSGIHandler
from django.db import connection
from hypothesis import HealthCheck, Phase, given, settings
from ninja import Schema
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from controlplane.api.api import api
from controlplane.api.routes import change_requests, drills, people, series, usage
from controlplane.api.schemas import (
    backlogs,
    bulk_in,
    configuration_out,
    edits_in,
    limits,
    locks_out,
    operations_out,
    pod_load_out,
    proposals,
    protection,
    refusals,
)
from controlplane.api.schemas.examples import EXAMPLES
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


def test_every_document_has_a_valid_example() -> None:
    described = api.get_openapi_schema()["components"]["schemas"]
    classes = {
        name: found
        for module in (
            backlogs,
            edits_in,
            limits,
            bulk_in,
            configuration_out,
            locks_out,
            operations_out,
            protection,
            refusals,
            drills,
            usage,
            series,
            people,
            proposals,
            change_requests,
        )
        for name, found in inspect.getmembers(module, inspect.isclass)
        if issubclass(found, Schema) and found not in (Schema, edits_in.Strict)
    }
    without = {name for name in classes if name in described and "example" not in described[name]}
    # The documents that contain them have examples of these parts.
    parts = {
        name
        for module in (protection, pod_load_out)
        for name, found in vars(module).items()
        if inspect.isclass(found)
    } - EXAMPLES.keys()
    assert without - parts <= {
        "TenantFiguresOut",
        "RuleFiguresOut",
        "DependencyFiguresOut",
        "StoreFiguresOut",
        "TripFiguresOut",
    }
    assert EXAMPLES.keys() <= classes.keys()
    for name in classes.keys() & described.keys() - without:
        example = described[name]["example"]
        read = classes[name].model_validate_json(json.dumps(example))
        assert not set(example) - set(type(read).model_fields), name


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
                    assert issubclass(answer, Schema), operation.view_func
