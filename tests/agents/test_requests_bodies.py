"""Bodies that a session of ``requests`` reads: they end the permit, and an error in one is a failure."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from fuseboard import blocking
from fuseboard.integrations.requests import GuardedAdapter
from fuseboard.settings import AgentSettings
from tests.agents.alone import settings_with
from tests.agents.streaming import OPENAI_ERROR, StreamingVendor, chat, streaming_vendor
from tests.agents.test_streams import held, outcomes, rules
from tests.waiting import wait_until

PARTS = [(0.0, chat("one")), (0.0, chat("two"))]
WHOLE = b"".join(part for _, part in PARTS)


@pytest.fixture
def vendor() -> Iterator[StreamingVendor]:
    with streaming_vendor() as vendor:
        vendor.parts = list(PARTS)
        yield vendor


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[blocking.Agent]:
    settings: AgentSettings = settings_with(tmp_path, rules())
    with blocking.Agent(settings=settings) as agent:
        yield agent


@pytest.fixture
def session(agent: blocking.Agent) -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.mount("http://", GuardedAdapter(agent, dependency="llm"))
        yield session


def ends(agent: blocking.Agent, expected: dict[str, int]) -> None:
    inner = agent._started()
    wait_until(lambda: outcomes(inner) == expected and held(inner) == 0)


READERS: dict[str, Any] = {
    "content": lambda response: response.content,
    "iter_content": lambda response: b"".join(response.iter_content(7)),
    "iter_lines": lambda response: b"".join(response.iter_lines()),
    "decoded": lambda response: "".join(response.iter_content(None, decode_unicode=True)).encode(),
    "for": b"".join,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())
@pytest.mark.parametrize("stream", [False, True])
def test_an_error_event_is_a_failure_and_the_reader_gets_every_byte(
    agent: blocking.Agent, session: requests.Session, vendor: StreamingVendor, read: Any, stream: bool
):
    vendor.parts = [*PARTS, (0.0, OPENAI_ERROR[:9]), (0.0, OPENAI_ERROR[9:])]
    response = session.post(vendor.url, stream=stream)
    assert read(response).replace(b"\n", b"") == (WHOLE + OPENAI_ERROR).replace(b"\n", b"")
    ends(agent, {"failure": 1})


def test_a_compressed_stream_is_looked_at_as_well(
    agent: blocking.Agent, session: requests.Session, vendor: StreamingVendor
):
    vendor.headers["Content-Encoding"] = "gzip"
    vendor.parts = [(0.0, gzip.compress(WHOLE + OPENAI_ERROR))]
    assert session.post(vendor.url).content == WHOLE + OPENAI_ERROR
    ends(agent, {"failure": 1})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["text/event-stream", "application/octet-stream"])
def test_a_body_that_the_vendor_cuts_is_a_failure(
    agent: blocking.Agent, session: requests.Session, vendor: StreamingVendor, stream: bool, kind: str
):
    vendor.headers, vendor.cuts = {"Content-Type": kind}, True
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        session.post(vendor.url, stream=stream).content  # noqa: B018 - reads
    ends(agent, {"failure": 1})


@pytest.mark.parametrize("way", ["read", "left", "unread", "dropped"])
def test_a_good_answer_ends_its_call_once_however_it_ends(
    agent: blocking.Agent, session: requests.Session, vendor: StreamingVendor, way: str
):
    vendor.parts = [*PARTS, (0.0 if way == "read" else 30.0, chat("end"))]
    response = session.post(vendor.url, stream=True)
    assert held(agent._started()) == 1
    if way == "read":
        assert response.content == WHOLE + chat("end")
        assert response.content == b"".join(response.iter_content(5))
    elif way == "left":
        next(response.iter_content(1))
        response.close()
    elif way == "unread":
        with response:
            """Closed at once."""
    del response
    ends(agent, {"ok": 1})
    vendor.ended.set()


def test_an_answer_without_a_body_ends_its_call(
    agent: blocking.Agent, session: requests.Session, vendor: StreamingVendor
):
    vendor.parts, vendor.headers = [], {}
    assert session.post(vendor.url).content == b""
    ends(agent, {"ok": 1})
