"""Errors inside streams of server-sent events: found however the bytes are split, and nothing else is one."""

import json
from itertools import pairwise
from random import Random

import pytest

from fuseboard.calling import event_errors
from fuseboard.calling.classification import Verdict
from fuseboard.calling.event_errors import EventErrors, are_events
from fuseboard.calling.outcomes import outcome_of
from fuseboard.contract.words import Outcome

DELTA = 'data: {"choices": [{"delta": {"content": "an error is no error"}}], "error": null}'
OPENAI = 'data: {"error": {"message": "sorry", "type": "server_error", "code": null}}'
ANTHROPIC = 'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}'
RESPONSES = 'event: error\ndata: {"type": "error", "code": "server_error", "message": "sorry"}'
FAILED = (
    "event: response.failed\n"
    'data: {"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded"}}}'
)
GEMINI = 'data: {"error": {"code": 503, "message": "busy", "status": "UNAVAILABLE"}}'


def read(parts: list[bytes]) -> list[Verdict]:
    errors = EventErrors()
    found = [errors.feed(part) for part in parts]
    return [verdict for verdict in (*found, errors.finish()) if verdict is not None]


def stream(*events: str, line: str = "\n") -> bytes:
    return "".join(f"{event}\n\n" for event in events).replace("\n", line).encode()


def split(data: bytes, random: Random) -> list[bytes]:
    places = sorted({0, len(data), *(random.randrange(len(data)) for _ in range(random.randrange(1, 12)))})
    return [data[begin:end] for begin, end in pairwise(places)]


@pytest.mark.parametrize(
    ("event", "code", "outcome"),
    [
        (OPENAI, "server_error", Outcome.FAILURE),
        (ANTHROPIC, "overloaded_error", Outcome.FAILURE),
        (RESPONSES, "server_error", Outcome.FAILURE),
        (GEMINI, "UNAVAILABLE", Outcome.FAILURE),
        ('data: {"error": "worn out"}', "", Outcome.FAILURE),
        ('data: {"error": {"code": "no_such_code"}}', "no_such_code", Outcome.FAILURE),
        ('data: {"error": {"type": "invalid_request_error"}}', "invalid_request_error", Outcome.NEUTRAL),
        ('data: {"error": {"code": "insufficient_quota"}}', "insufficient_quota", Outcome.NEUTRAL),
        ("event: error\ndata: not JSON", "", Outcome.FAILURE),
        ("event: error\ndata:", "", Outcome.FAILURE),
    ],
)
@pytest.mark.parametrize("line", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_an_error_event_is_judged_by_its_code_however_it_is_split(
    event: str, code: str, outcome: Outcome, line: str
):
    data = stream(": hello", DELTA, event, "data: [DONE]", line=line)
    random = Random(7)
    for _ in range(300):
        (verdict,) = read(split(data, random))
        assert (verdict.code, outcome_of(verdict)) == (code, outcome)
    (verdict,) = read([data[place : place + 1] for place in range(len(data))])
    assert verdict.code == code


@pytest.mark.parametrize("line", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_events_that_only_mention_an_error_are_none(line: str):
    harmless = [
        DELTA,
        'data: {"type": "response.completed", "response": {"error": null, "text": "error"}}',
        'data: {"content": {"error": {"code": "server_error"}}}',
        "event: errors\ndata: {}",
        "event: message\ndata: error",
        'data: ["error"]',
        ": error",
        "data: {'error': 1}",
    ]
    data = stream(*harmless, line=line)
    random = Random(3)
    for _ in range(200):
        assert read(split(data, random)) == []


def test_a_failed_response_of_openai_is_judged_by_the_code_in_it():
    (verdict,) = read([stream(FAILED)])
    assert verdict.code == "rate_limit_exceeded"


def test_an_error_event_that_nothing_ends_counts_when_the_stream_is_over():
    (verdict,) = read([stream(DELTA), OPENAI.encode()])
    assert verdict.code == "server_error"


def test_long_events_use_bounded_memory_and_hide_no_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(event_errors, "MAX_BYTES", 1000)
    errors = EventErrors()
    long = json.dumps({"choices": ["error" * 5000]}).encode()
    for begin in range(0, len(long), 100):
        assert errors.feed((b"data: " if begin == 0 else b"") + long[begin : begin + 100]) is None
        assert len(errors._tail) <= 1100
    # The end of the long event, split inside, and an error behind it.
    assert errors.feed(b"\r\n\r") is None
    verdict = errors.feed(b"\n" + stream(ANTHROPIC, line="\r\n"))
    assert verdict is not None
    assert verdict.code == "overloaded_error"


@pytest.mark.parametrize(
    ("body", "expected"),
    [(b"data: 1", True), (b"\n\nevent: x", True), (b": ping", True), (b'{"data": 1}', False), (b"", False)],
)
def test_a_stream_of_events_is_known_by_its_beginning(body: bytes, expected: bool):
    assert are_events(body) is expected
