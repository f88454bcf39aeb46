"""Runs the code of docs/frameworks.md, with Redis off."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("grpc")

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "frameworks.md").read_text()


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of all Python blocks of the page, run one after the other."""
    monkeypatch.setenv("FUSEBOARD_REDIS_URL", "off")
    names: dict[str, Any] = {}
    for code in re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL):
        exec(compile(code, "docs/frameworks.md", "exec"), names)  # noqa: S102 - our own page
    return names


def test_the_application_of_asgi_answers_its_probe(page: dict[str, Any]):
    from starlette.testclient import TestClient

    with TestClient(page["app"]) as client:
        assert client.get("/readyz").status_code == 200
        assert client.get("/other").status_code == 404
        assert page["agent"].running
    assert not page["agent"].running


def test_the_application_of_wsgi_answers(page: dict[str, Any]):
    seen: list[str] = []
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "HTTP_X_TENANT": "acme"}
    answer = page["application"](environ, lambda status, headers, *_: seen.append(status))
    assert (b"".join(answer), seen) == (b"hello", ["200 OK"])
    page["worker"].stop()


def test_both_scripts_call(page: dict[str, Any]):
    async def send() -> str:
        return "sent"

    assert asyncio.run(page["main"](send)) == "sent"
    assert page["charge"](lambda: "sent") == "sent"
    page["worker"].stop()


async def test_both_channels_of_grpc_call(page: dict[str, Any]):
    from tests.agents.grpc_vendor import GrpcVendor, stub

    vendor = GrpcVendor()
    with page["ledger_of"](vendor.target) as channel:
        method = stub(channel, "unary_unary")
        assert await asyncio.to_thread(method, "ok") == "fine"
    page["worker"].stop()
    async with page["agent"], page["ledger_on_a_loop"](vendor.target) as channel:
        assert await stub(channel, "unary_unary")("ok") == "fine"
    assert vendor.calls == 2
    vendor.stop()
