"""Two lines count all that the vendor counts: calls, tokens, and the money of account and tenant."""

import re
from pathlib import Path
from typing import Any

import pytest
import redis

import fuseboard
from fuseboard import Mode
from tests.agents.published import publish
from tests.llm.money import CLAUDE, GPT, POOLS, charge, of_account, of_tenant, priced
from tests.llm.pods import billed, spent
from tests.llm.vendor import Vendor
from tests.waiting import eventually

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "llm.md").read_text()
ASKED: list[Any] = [{"role": "user", "content": "Who counts this call, and in which measures? " * 4}]


def sample() -> dict[str, Any]:
    """The names of the first block of the page, which has one line for each client."""
    block = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)[0]
    assert [line.partition(" = ")[0] for line in block.splitlines() if "guard(" in line] == ["gpt", "claude"]
    names: dict[str, Any] = {}
    exec(compile(block, "docs/llm.md", "exec"), names)  # noqa: S102 - our own page
    return names


async def ask(client: Any, model: str, *, stream: bool) -> None:
    make = client.chat.completions if model == GPT else client.messages
    answer = await make.create(model=model, messages=ASKED, max_tokens=900, stream=stream)
    if stream:
        async for _ in answer:
            """Read."""


async def test_two_lines_count_calls_tokens_and_money_to_the_unit(
    limits: redis.Redis, redis_url: str, tmp_path: Path, vendor: Vendor, monkeypatch: pytest.MonkeyPatch
):
    """Case L1: both clients, streamed and not; limits and budgets count what the vendor does."""
    publish(limits, priced(), revision=1)
    for name in ("URL", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"FUSEBOARD_{name}", raising=False)
    monkeypatch.setenv("FUSEBOARD_REDIS_URL", redis_url)
    monkeypatch.setenv("FUSEBOARD_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("OPENAI_API_KEY", "made-up")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{vendor.url}/v1")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "made-up")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", vendor.url)
    names = sample()
    async with names["agent"] as agent, names["gpt"] as gpt, names["claude"] as claude:
        await eventually(
            lambda: agent.mode is Mode.SHARED and agent.configuration.snapshot.head.revision == 1
        )
        with fuseboard.tenant("acme"):
            for words, stream in ((7, False), (300, True), (41, True), (120, False)):
                vendor.usual.words = words
                await ask(gpt, GPT, stream=stream)
                await ask(claude, CLAUDE, stream=stream)
        bills = {model: [one for one in vendor.bill if one.body["model"] == model] for model in POOLS}
        for model, bill in bills.items():
            counted = billed(*bill, counts_cached=model == GPT)
            expected = {name: counted[name] for name in ("calls", "tokens", "input_tokens", "output_tokens")}
            await eventually(
                lambda model=model: spent(agent, POOLS[model]),
                accept=lambda found, expected=expected: found.items() >= expected.items(),
            )
            await eventually(
                lambda model=model: of_account(limits, model),
                accept=lambda found, bill=bill: found == charge(*bill),
            )
        await eventually(lambda: of_tenant(limits), accept=lambda found: found == charge(*vendor.bill))
    assert [len(bill) for bill in bills.values()] == [4, 4]
    assert of_tenant(limits) > 1_000
