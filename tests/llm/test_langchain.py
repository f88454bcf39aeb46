"""The client of LangChain, through our transports: in an environment of its own, as it brings a plugin."""

import asyncio
import os
import subprocess
from functools import partial
from pathlib import Path

import pytest
import redis
from msgspec.structs import replace

from fuseboard import Refused
from tests.agents.limit_kinds import window
from tests.llm.pods import LIMIT, MONTH_S, RULES, billed, dependency, pod, publish, spent
from tests.llm.vendor import Vendor
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-langchain" / "bin" / "python"


async def run(program: str, redis_url: str, vendor: Vendor, folder: Path) -> None:
    if not PYTHON.exists():
        pytest.skip("no .venv-langchain: run make engine-environments")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FUSEBOARD_")}
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "agents"), str(ROOT)]),
        "FUSEBOARD_REDIS_URL": redis_url,
        "FUSEBOARD_STATE_DIR": str(folder),
        "OPENAI_API_KEY": "made-up",
        "OPENAI_BASE_URL": f"{vendor.url}/v1",
        # It must send nothing anywhere else.
        "LANGSMITH_TRACING": "false",
    }
    start = partial(subprocess.run, capture_output=True, text=True, check=False, timeout=240)
    done = await asyncio.to_thread(start, [str(PYTHON), "-m", program], cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr


async def test_calls_of_langchain_are_counted_as_the_vendor_charges_them(
    limits: redis.Redis, redis_url: str, vendor: Vendor, tmp_path: Path
):
    publish(limits, RULES, revision=1)
    await run("tests.llm.langchain_app", redis_url, vendor, tmp_path)
    assert len(vendor.bill) == 4
    async with pod(limits, redis_url) as agent:
        bill = billed(*vendor.bill, counts_cached=True)
        await eventually(lambda: spent(agent, "gpt-own"), accept=lambda found: found == bill)


async def test_the_rate_limiter_of_langchain_shares_the_limits_of_all_pods(
    limits: redis.Redis, redis_url: str, vendor: Vendor, tmp_path: Path
):
    calls = window(3, MONTH_S, name="calls", measure="calls")
    tokens = window(LIMIT, MONTH_S, name="tokens", measure="tokens")
    rules = replace(RULES, dependencies=(replace(dependency("llm"), vendor_limits=(calls, tokens)),))
    publish(limits, rules, revision=1)
    async with pod(limits, redis_url, rules) as agent:
        # Another pod has made one of the three calls.
        async with agent.call("llm"):
            pass
        await run("tests.llm.langchain_limiter", redis_url, vendor, tmp_path)
        assert len(vendor.bill) == 2
        with pytest.raises(Refused) as refused:
            await agent.admit_call("llm")
        assert refused.value.decision.rule == "calls"
