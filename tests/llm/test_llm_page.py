"""Runs the code in docs/llm.md as it is: real clients, a real Redis, and a vendor of the tests."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from fuseboard import Mode
from fuseboard.contract.models import Model
from fuseboard.contract.policy import Tier
from fuseboard.llm.usage import SETTLED
from tests.agents.limit_kinds import window
from tests.agents.published import publish
from tests.llm.pods import MONTH_S, RULES, billed, dependency, outcomes, spent
from tests.llm.vendor import Vendor
from tests.waiting import eventually

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "llm.md").read_text()
#: The second call of a tenant has no room.
QUOTA = window(700, MONTH_S, name="monthly-tokens", measure="tokens")


@pytest.fixture
async def page(
    limits: redis.Redis, redis_url: str, tmp_path: Path, vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[dict[str, Any]]:
    """The names of the page's Python blocks, its agent running."""
    rules = replace(
        RULES,
        tiers=(Tier(name="free", quotas=(QUOTA,)),),
        dependencies=(dependency("gpt-5.2"), dependency("127.0.0.1")),
        models=(Model(name="gpt-5.2", pool="gpt-5.2"),),
    )
    publish(limits, rules, revision=1)
    for name in ("URL", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"FUSEBOARD_{name}", raising=False)
    monkeypatch.setenv("FUSEBOARD_REDIS_URL", redis_url)
    monkeypatch.setenv("FUSEBOARD_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("OPENAI_API_KEY", "made-up")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{vendor.url}/v1")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "made-up")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", vendor.url)
    names: dict[str, Any] = {}
    for code in re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL):
        exec(compile(code, "docs/llm.md", "exec"), names)  # noqa: S102 - our own page
    async with names["agent"] as agent, names["gpt"], names["claude"], names["client"]:
        await eventually(
            lambda: agent.mode is Mode.SHARED and agent.configuration.snapshot.head.revision == 1
        )
        yield names


async def test_one_line_counts_the_tokens_of_a_client(page: dict[str, Any], vendor: Vendor):
    async with page["claude"].messages.stream(
        model="claude-sonnet-4-6", max_tokens=300, messages=[{"role": "user", "content": "Hello"}]
    ) as stream:
        assert "word" in await stream.get_final_text()
    bill = billed(*vendor.bill, counts_cached=False)
    # The policy has no model of this name: the dependency of the host counts.
    assert outcomes(page["agent"], "127.0.0.1") == {"ok": 1}
    await eventually(lambda: spent(page["agent"], "127.0.0.1"), accept=lambda found: found == bill)


async def test_a_job_spends_the_quota_of_its_tenant_until_that_refuses(page: dict[str, Any], vendor: Vendor):
    vendor.usual.words = 400
    assert "word" in await page["summary_or_none"]("acme", "a long text")
    assert outcomes(page["agent"], "gpt-5.2") == {"ok": 1}
    assert await page["summary_or_none"]("acme", "a long text") is None
    assert "word" in await page["summary_or_none"]("other", "a long text")
    assert vendor.requests == 2
    vendor.will(status=500)
    assert await page["summary_or_none"]("third", "a long text") is None


async def test_a_transport_counts_for_other_libraries(page: dict[str, Any], vendor: Vendor):
    body = {"model": "gpt-5.2", "messages": [], "max_tokens": 50}
    await page["client"].post(f"{vendor.url}/v1/chat/completions", json=body)
    bill = billed(*vendor.bill, counts_cached=True)
    await eventually(lambda: spent(page["agent"], "gpt-5.2"), accept=lambda found: found == bill)


def test_the_page_has_every_measure_and_fits_on_two_screens():
    assert [measure for measure in SETTLED if f"`{measure}`" not in PAGE] == []
    assert PAGE.count("\n") <= 120
