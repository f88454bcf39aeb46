"""The five-minute example of the README, pasted as it is."""

import re
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]


async def test_the_service_of_the_readme_runs(monkeypatch, limits, redis_url):
    monkeypatch.setenv("FUSEBOARD_REDIS_URL", redis_url)
    monkeypatch.setenv("FUSEBOARD_STATE_DIR", "off")
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    service: dict = {}
    exec(compile(snippet, "README.md", "exec"), service)  # noqa: S102 - our own text
    async with service["agent"], service["payments"]:
        transport = httpx.ASGITransport(service["app"])
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            answer = await client.get("/openapi.json", headers={"x-tenant": "acme"})
    assert answer.status_code == 200
    assert "/orders" in answer.json()["paths"]
    assert service["agent"].defects == 0
