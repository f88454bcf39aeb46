"""The client of LangChain, through our transports: in an environment of its own, as it brings a plugin."""

import asyncio
import os
import subprocess
from functools import partial
from pathlib import Path

import pytest
import redis

from tests.llm.pods import RULES, billed, pod, publish, spent
from tests.llm.vendor import Vendor
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-langchain" / "bin" / "python"


async def test_calls_of_langchain_are_counted_as_the_vendor_charges_them(
    limits: redis.Redis, redis_url: str, vendor: Vendor, tmp_path: Path
):
    if not PYTHON.exists():
        pytest.skip("no .venv-langchain: run make engine-environments")
    publish(limits, RULES, revision=1)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FUSEBOARD_")}
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "agents"), str(ROOT)]),
        "FUSEBOARD_REDIS_URL": redis_url,
        "FUSEBOARD_STATE_DIR": str(tmp_path),
        # It must send nothing anywhere else.
        "LANGSMITH_TRACING": "false",
    }
    program = [str(PYTHON), "-m", "tests.llm.langchain_app", f"{vendor.url}/v1"]
    run = partial(subprocess.run, capture_output=True, text=True, check=False, timeout=240)
    done = await asyncio.to_thread(run, program, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    assert len(vendor.bill) == 4
    async with pod(limits, redis_url) as agent:
        bill = billed(*vendor.bill, counts_cached=True)
        await eventually(lambda: spent(agent, "gpt-own"), accept=lambda found: found == bill)
