"""Calls of a guarded client, from the vendor's answers to the page of costs."""

import asyncio
import re
from typing import Any

import anthropic
import openai
import pytest

import fuseboard
from controlplane.ledger.models import UsageDay
from fuseboard.reporting import usage_tallies
from tests.llm.vendor import Vendor, serving
from tests.waiting import eventually, wait_until
from tools.demo.browser import Browser, text_of
from tools.demo.processes import Processes
from tools.demo.scenario import PENNY
from tools.demo.seed import Seeded

ASKED: Any = [{"role": "user", "content": "How long does a letter take to reach its reader?"}]


def test_what_a_vendor_charges_is_on_the_page_of_costs(
    control_plane: Processes, seeded: Seeded, redis_url: str, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(usage_tallies, "EVERY_S", 0.5)
    settings = fuseboard.AgentSettings(
        redis_url=redis_url,
        url=control_plane.by_name["gateway"].url,
        token=seeded.agent_token,
        service="shop",
        server="shop-1",
        state_dir=tmp_path / "state",
    )
    with serving() as vendor, asyncio.Runner() as runner:
        runner.run(_day(settings, vendor))
        bill = vendor.bill
    kept = UsageDay.objects.get(tenant=PENNY, model="gpt-made-up")
    other = UsageDay.objects.get(tenant="", model="claude-made-up")
    for row, charged in ((kept, bill[:3]), (other, bill[3:])):
        assert (row.calls, row.fresh, row.cached, row.written, row.output) == (
            len(charged),
            sum(one.fresh for one in charged),
            sum(one.cached for one in charged),
            sum(one.written for one in charged),
            sum(one.output for one in charged),
        )
        assert (row.estimated, row.wasted) == (0, 0)
    browser = Browser(control_plane.by_name["web"].url)
    browser.log_in("admin", seeded.logins["admin"])
    try:
        found = wait_until(lambda: browser.read("/costs?by=tenant"), accept=lambda page: PENNY in page)
        (row,) = re.findall(rf"<tr data-row(?:(?!</tr>).)*{PENNY}.*?</tr>", found, re.DOTALL)
        tokens = f"{kept.calls} {kept.fresh + kept.cached + kept.written} {kept.output}"
        assert tokens in " ".join(text_of(row).split())
    finally:
        browser.close()


async def _day(settings: fuseboard.AgentSettings, vendor: Vendor) -> None:
    """Three calls of a tenant to one model and two of no tenant to another, streamed and not."""
    made_up: Any = {"api_key": "made-up"}
    async with (
        fuseboard.Agent(settings=settings) as agent,
        openai.AsyncOpenAI(**made_up, base_url=f"{vendor.url}/v1") as of_openai,
        anthropic.AsyncAnthropic(**made_up, base_url=vendor.url) as of_anthropic,
    ):
        gpt: Any = fuseboard.guard(of_openai, agent, "llm")
        claude: Any = fuseboard.guard(of_anthropic, agent, "llm")
        with fuseboard.tenant(PENNY):
            for stream in (False, True, False):
                answer = await gpt.chat.completions.create(model="gpt-made-up", messages=ASKED, stream=stream)
                if stream:
                    async for _ in answer:
                        """Read."""
        for stream in (True, False):
            answer = await claude.messages.create(
                model="claude-made-up", max_tokens=100, messages=ASKED, stream=stream
            )
            if stream:
                async for _ in answer:
                    """Read."""
        usage = agent.counters.usage
        # Confirmed: Postgres has it.
        await eventually(lambda: usage.left == 0, "the ledger", within_s=60)
