"""The API against its own description: whatever is sent, the answer is one it describes, and never a 500."""

from datetime import timedelta
from typing import Any

import pytest
import schemathesis
from django.core.handlers.wsgi import WSGIHandler
from django.utils import timezone
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from controlplane.accounts import tokens
from controlplane.api.api import api

CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance]


def operations() -> list[Any]:
    schema = schemathesis.openapi.from_dict(api.get_openapi_schema())
    schema.app = WSGIHandler()
    return [found.ok() for found in schema.get_all_operations()]


@pytest.fixture
def bearer(production: str, alice: Any) -> dict[str, str]:
    text = tokens.create_api_token(
        name="fuzz",
        role="admin",
        expires_at=timezone.now() + timedelta(hours=1),
        reason="for a test",
        actor=alice,
    )
    return {"Authorization": f"Bearer {text}"}


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("operation", operations(), ids=lambda operation: operation.label)
def test_whatever_is_sent_the_answer_is_described(operation: Any, mode: Any, bearer: dict[str, str]) -> None:
    statuses: set[int] = set()

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=8,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def send(case: Any) -> None:
        # Almost no random name is that of an environment, and the rest would never be reached.
        case.path_parameters["environment"] = "production"
        answer = case.call_and_validate(headers=bearer, base_url="https://testserver", checks=CHECKS)
        statuses.add(answer.status_code)

    send()
    assert statuses <= {200, 201, 400, 401, 404, 405, 409, 422, 428}, statuses
    # Something got as far as the operation itself.
    assert statuses & {200, 201, 400, 404, 409, 422, 428}
