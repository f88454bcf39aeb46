"""The HTTP API of the sidecar stays as clients know it: golden files, OpenAPI, and any request."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import redis
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from fuseboard.contract import sidecar as contract
from fuseboard.contract.sidecar import (
    Accepted,
    AllowedCall,
    AllowedRequest,
    AskCall,
    AskCheck,
    AskedSubject,
    AskExplanation,
    AskRequest,
    CallError,
    Checked,
    DependencyState,
    ExplainedDecision,
    Finish,
    GiveBack,
    InvalidReport,
    LimitLeft,
    Problem,
    RefusedAnswer,
    Report,
)
from fuseboard.contract.words import BreakerState, CallTier, Mode, Outcome, OverrideMode, Reason
from fuseboard.sidecar.openapi import document
from tests.agents.published import publish
from tests.agents.servers import POLICY
from tests.sidecar.conftest import Beside
from tests.sidecar.processes import Process, sidecar

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"
OPENAPI = ROOT / "docs/examples/sidecar/openapi.json"

ASKED: dict[str, Any] = {
    "ask_call.json": AskCall(
        dependency="payments",
        tenant="acme",
        cost=2,
        costs={"tokens": 900},
        tier=CallTier.OPTIONAL,
        spend_quota=True,
        wait_ms=200,
        deadline_ms=1_500,
        reports=(Report(permit="p1", status=200, elapsed_ms=12.5),),
    ),
    "ask_call.smallest.json": AskCall(dependency="payments"),
    "ask_check.json": AskCheck(
        tenant="acme", subject=AskedSubject(ip="203.0.113.7"), cost=2, costs={"tokens": 900}
    ),
    "ask_explanation.json": AskExplanation(
        dependency="payments",
        tenant="acme",
        subject=AskedSubject(user="u1"),
        cost=2,
        costs={"tokens": 900},
    ),
    "ask_explanation.smallest.json": AskExplanation(),
    "ask_request.json": AskRequest(
        tenant="acme",
        subject=AskedSubject(user="u1", ip="203.0.113.7", api_key="k1", endpoint="POST /v1/orders"),
        cost=2,
        costs={"tokens": 900},
        wait_ms=200,
        deadline_ms=1_500,
    ),
    "ask_request.smallest.json": AskRequest(),
    "finish.json": Finish(hold="h1", settle={"tokens": 50}),
    "give_back.json": GiveBack(permit="p1"),
    "report.error.json": Report(permit="p1", error=CallError.TIMEOUT),
    "report.outcome.json": Report(permit="p1", outcome=Outcome.SLOW),
    "report.status.json": Report(
        permit="p1",
        status=429,
        code="rate_limit_exceeded",
        retry_after="7",
        elapsed_ms=41,
        settle={"tokens": 0},
    ),
}
ANSWERED: dict[str, msgspec.Struct] = {
    "accepted.json": Accepted(
        accepted=1, unknown=("p2",), invalid=(InvalidReport(place=1, detail="Object missing `permit`"),)
    ),
    "allowed_call.json": AllowedCall(
        permit="p1",
        timeout_ms=30_000,
        expires_ms=35_000,
        state=BreakerState.HALF_OPEN,
        mode=Mode.LOCAL,
        revision=42,
    ),
    "allowed_call.stream.json": AllowedCall(
        permit="p1", first_part_ms=20_000, between_parts_ms=7_000, expires_ms=600_000, revision=42
    ),
    "allowed_request.json": AllowedRequest(hold="h1", headers={"ratelimit": '"requests";r=1'}, revision=42),
    "checked.json": Checked(
        would="refused",
        reason=Reason.QUOTA,
        rule="requests",
        retry_after_ms=1_234,
        left=(LimitLeft(name="requests", limit=60, remaining=0, window_ms=60_000),),
        mode=Mode.SHARED,
        revision=42,
    ),
    "dependency_state.json": DependencyState(
        name="payments",
        state=BreakerState.OPEN,
        generation=3,
        override=OverrideMode.FORCED_OPEN,
        retry_after_ms=1_234,
    ),
    "explained_decision.json": ExplainedDecision(
        text="a call to 'payments'", explanation=msgspec.Raw(b'{"allowed":true}')
    ),
    "problem.json": Problem(type="urn:fuseboard:sidecar:busy", title="Busy", status=503, detail="wait"),
    "refused.json": RefusedAnswer(
        status=429,
        reason=Reason.QUOTA,
        rule="requests",
        retry_after_ms=1_234,
        headers={"retry-after": "2"},
        problem=msgspec.Raw(b'{"status":429}'),
        revision=42,
    ),
}


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes().rstrip(b"\n")


def test_no_golden_file_was_added_or_deleted_without_its_example() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == ASKED.keys() | ANSWERED.keys()


@pytest.mark.parametrize("name", ASKED)
def test_the_sidecar_reads_what_clients_send(name: str) -> None:
    example = ASKED[name]
    assert msgspec.json.decode(golden(name), type=type(example)) == example


@pytest.mark.parametrize("name", ANSWERED)
def test_the_sidecar_writes_what_clients_read(name: str) -> None:
    """Each member that a client may read is there, with its value. Others may be added."""
    written = json.loads(msgspec.json.encode(ANSWERED[name]))
    assert json.loads(golden(name)).items() <= written.items()


@pytest.mark.parametrize("name", ASKED)
def test_an_unknown_member_is_refused_with_its_name(name: str) -> None:
    later = json.dumps(json.loads(golden(name)) | {"invented": 1})
    with pytest.raises(msgspec.ValidationError, match="invented"):
        msgspec.json.decode(later, type=type(ASKED[name]))


@pytest.mark.parametrize(
    "wrong",
    [
        b'{"permit":"p1"}',
        b'{"permit":"p1","status":200,"error":"timeout"}',
        b'{"permit":"p1","status":99}',
        b'{"permit":"p1","status":1000}',
        b'{"permit":"","status":200}',
        b'{"permit":"p1","outcome":"good"}',
        b'{"permit":"p1","status":200,"settle":{"tokens":-1}}',
        b'{"permit":"p1","status":200,"settle":{"not a measure":1}}',
    ],
)
def test_a_report_says_one_thing_within_bounds(wrong: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(wrong, type=Report)


async def test_the_openapi_document_is_that_of_the_structs_and_is_served(beside: Beside) -> None:
    async with beside(POLICY) as client:
        served = (await client.http.get("/v1/openapi.json")).json()
    assert served == json.loads(OPENAPI.read_text()), "the file is what GET /v1/openapi.json answers"


@pytest.mark.parametrize("name", [*ASKED, *ANSWERED])
def test_the_openapi_document_describes_the_golden_files(name: str) -> None:
    kind = type({**ASKED, **ANSWERED}[name]).__name__
    schema = {"$ref": f"#/components/schemas/{kind}", "components": document()["components"]}
    jsonschema.validate(json.loads(golden(name)), schema)


def test_the_openapi_document_has_patterns_of_every_language() -> None:
    assert re.findall(r"\\\\Z|\(\?P", OPENAPI.read_text()) == []


@pytest.fixture(scope="module")
def process(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with redis.Redis.from_url(redis_url) as limits:
        limits.flushall()
        publish(limits, POLICY, revision=7)
    with sidecar(redis_url, tmp_path_factory.mktemp("process")) as one:
        yield one


#: A GET without a query has no wrong form.
ASKS = [
    *(("POST", path, mode) for path in contract.OPERATIONS for mode in GenerationMode),
    *(("GET", path, GenerationMode.POSITIVE) for path in contract.READS),
]


@pytest.mark.parametrize(("method", "path", "mode"), ASKS)
def test_whatever_is_asked_the_answer_is_described_and_no_defect(
    process: Process, method: str, path: str, mode: GenerationMode
) -> None:
    schema = schemathesis.openapi.from_dict(document() | {"security": []})
    operation = schema[path][method]
    headers = {"authorization": "Bearer secret"}

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=8,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Any) -> None:
        if isinstance(case.body, dict):
            case.body.pop("wait_ms", None)  # up to 30 s
        response = case.call(base_url=process.url, headers=headers)
        if path == contract.EXPLAIN_PATH and response.status_code == 503:
            assert response.json()["type"] == "urn:fuseboard:sidecar:busy"  # few are given in a second
            return
        assert response.status_code in (200, 400, 413, 415), response.text
        case.validate_response(
            response,
            checks=[
                not_a_server_error,
                status_code_conformance,
                content_type_conformance,
                response_schema_conformance,
            ],
        )

    ask()
    assert process.process.poll() is None
