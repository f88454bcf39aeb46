"""An application that leaves before its answer or without an end, and one that makes names from requests."""

import json
from typing import Any

import msgspec
import pytest

from fuseboard import agent
from fuseboard.contract.policy import Limit, Tier
from fuseboard.contract.words import Algorithm, Dimension
from fuseboard.serving.exchange import JSON, Answer, Request
from fuseboard.sidecar import permits
from fuseboard.sidecar.bodies import read_json
from tests.agents.servers import PATIENT, POLICY
from tests.sidecar.conftest import Beside
from tests.waiting import eventually

SLOTS = Limit(name="at-once", limit=1, window_ms=60_000, algorithm=Algorithm.CONCURRENCY)
TWO = Limit(name="requests", limit=2, window_ms=60_000, algorithm=Algorithm.SLIDING_WINDOW)


@pytest.mark.parametrize("limit", [SLOTS, TWO], ids=["with a hold", "without"])
async def test_a_request_whose_answer_was_not_sent_is_given_back(limit: Limit, beside: Beside) -> None:
    tiers = (Tier(name="free", quotas=(limit,)), Tier(name="unlimited"))
    async with beside(msgspec.structs.replace(POLICY, tiers=tiers, tuning=PATIENT)) as client:
        body = msgspec.json.encode({"tenant": "acme", "cost": limit.limit})
        asked = Request(method="POST", path="/v1/requests", headers={"content-type": JSON}, body=body)
        handled = client.sidecar.handle(asked)
        answer = handled if isinstance(handled, Answer) else await handled
        assert msgspec.json.decode(answer.body)["allowed"] is True
        assert answer.unsent is not None
        answer.unsent()
        assert len(client.sidecar.holds) == 0

        async def again() -> Any:
            return await client.post("/v1/requests", {"tenant": "acme"})

        assert (await eventually(again, accept=lambda found: found["allowed"]))["allowed"] is True


async def test_a_sidecar_that_stops_frees_the_slots_of_requests(beside: Beside) -> None:
    tiers = (Tier(name="free", quotas=(SLOTS,)), Tier(name="unlimited"))
    policy = msgspec.structs.replace(POLICY, tiers=tiers, tuning=PATIENT)
    for _ in range(2):
        async with beside(policy) as client:
            assert (await client.request())["hold"]


async def test_a_request_is_kept_for_as_long_as_its_slot(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = msgspec.structs.replace(SLOTS, window_ms=1_800_000)
    tiers = (Tier(name="free", quotas=(long,)), Tier(name="unlimited"))
    async with beside(msgspec.structs.replace(POLICY, tiers=tiers, tuning=PATIENT)) as client:
        assert (await client.request())["hold"]
        now, later_s = permits.monotonic(), 1_790.0
        monkeypatch.setattr(permits, "monotonic", lambda: now + later_s)
        client.sidecar.sweep()
        assert (len(client.sidecar.holds), client.sidecar.holds.expired) == (1, 0)
        later_s = 1_810.0
        client.sidecar.sweep()
        assert (len(client.sidecar.holds), client.sidecar.holds.expired) == (0, 1)


async def test_a_request_waits_no_longer_than_its_caller(beside: Beside) -> None:
    slow = msgspec.structs.replace(TWO, limit=1, window_ms=20_000)
    tiers = (Tier(name="free", quotas=(slow,)), Tier(name="unlimited"))
    async with beside(msgspec.structs.replace(POLICY, tiers=tiers, tuning=PATIENT)) as client:
        assert (await client.request())["allowed"] is True
        assert (await client.request(wait_ms=30_000, deadline_ms=50))["allowed"] is False


async def test_no_call_costs_more_than_100_times_its_estimate(beside: Beside) -> None:
    tokens = msgspec.structs.replace(TWO, limit=50_000, measure="tokens")
    tiers = (Tier(name="free", quotas=(tokens,)), Tier(name="unlimited"))
    async with beside(msgspec.structs.replace(POLICY, tiers=tiers, tuning=PATIENT)) as client:
        most = client.sidecar.reports.bounded({"tokens": 10**12, "pages": 10**12}, {"tokens": 20_000})
        assert most == {"tokens": 2_000_000, "pages": 1_000_000}
        hold = (await client.request(costs={"tokens": 20_000}))["hold"]
        cut = client.sidecar.reports.cut
        await client.post("/v1/finish", {"hold": hold, "settle": {"tokens": 2_000_000}})
        assert client.sidecar.reports.cut == cut


async def test_names_that_are_not_registered_leave_room_for_those_that_are(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "MAX_DEPENDENCIES", 2)
    async with beside(POLICY) as client:
        for name, status in (("one", 200), ("two", 200), ("three", 400), ("payments", 200)):
            answer = await client.http.post("/v1/calls", json={"dependency": name})
            assert answer.status_code == status


@pytest.mark.parametrize("path", ["/v1/calls", "/v1/reports", "/v1/requests"])
async def test_json_that_is_nested_too_deeply_is_malformed(path: str, beside: Beside) -> None:
    async with beside(POLICY) as client:
        content = "[" * 8_000 + "]" * 8_000
        for body in (content, f'{{"dependency": {content}}}', f"[{content}]"):
            answer = await client.http.post(path, content=body, headers={"content-type": JSON})
            if answer.status_code == 200:  # a report that cannot be read refuses no other
                assert len(answer.json()["invalid"]) == 1
            else:
                assert (answer.status_code, answer.json()["type"]) == (400, "urn:fuseboard:sidecar:malformed")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/calls", b'{"dependency": "payments", "caf\xe9": 1}'),
        ("/v1/calls", b'{"dependency": "caf\xe9"}'),
        ("/v1/calls", b'{"dependency": "payments", "costs": {"caf\xe9": 1}}'),
        ("/v1/reports", b"caf\xe9"),
    ],
)
async def test_names_that_are_not_utf8_are_malformed(path: str, body: bytes, beside: Beside) -> None:
    async with beside(POLICY) as client:
        answer = await client.http.post(path, content=body, headers={"content-type": JSON})
        assert (answer.status_code, answer.json()["type"]) == (400, "urn:fuseboard:sidecar:malformed")


@pytest.mark.parametrize(
    "key", [b"x" * 201, b"x" * 5_000, b"caf\xe9", b"\\ud83d", b"\\u0000", b"\xed\xa0\x80", b"x" * 200]
)
async def test_no_key_of_a_client_escapes_its_limit(key: bytes, beside: Beside) -> None:
    """The application goes on without a decision, so there must be one."""
    keys = (msgspec.structs.replace(TWO, per=(Dimension.API_KEY,)),)
    async with beside(msgspec.structs.replace(POLICY, subject_limits=keys, tuning=PATIENT)) as client:
        body = b'{"tenant": null, "subject": {"api_key": "%b"}, "deadline_ms": 1%b}' % (key, b"0" * 15)
        found = []
        for _ in range(3):
            answer = await client.http.post("/v1/requests", content=body, headers={"content-type": JSON})
            found.append((answer.status_code, answer.json().get("allowed")))
        assert found == [(200, True), (200, True), (200, False)]


@pytest.mark.parametrize(
    "code",
    [
        b'"caf\xe9"',
        # JavaScript has cut within a surrogate pair.
        b'"\\ud83d"',
        b'"\\udE00\\uD83D"',
        b'"\\\\\\ud83d \\n"',
    ],
)
async def test_a_vendors_word_that_is_no_text_costs_no_report(code: bytes, beside: Beside) -> None:
    async with beside(POLICY) as client:
        first, second = [(await client.call())["permit"].encode() for _ in range(2)]
        odd = b'{"permit": "%b", "status": 503, "code": %b}' % (first, code)
        reports = b'[%b, {"permit": "%b", "status": 200}, {"permit": "p", "status": 1000}]' % (odd, second)
        call = b'{"dependency": "payments", "reports": %b}' % reports
        answer = await client.http.post("/v1/reports", content=reports, headers={"content-type": JSON})
        assert (answer.json()["accepted"], len(answer.json()["invalid"])) == (2, 1)
        answer = await client.http.post("/v1/calls", content=call, headers={"content-type": JSON})
        assert answer.json()["allowed"] is True


def test_whole_pairs_and_other_escapes_stay() -> None:
    text = '["\\ud83d\\ude00 \\u00e9 \\\\ud83d \\\\\\\\ud83d \\"", %s]'
    with_half, without = text % '"a\\ud83d\\n"', text % '"a?\\n"'
    assert read_json(msgspec.json.decode, with_half.encode()) == json.loads(without)
